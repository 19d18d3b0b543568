"""The steps of a task request: admit, read, parse, compute, respond.

It replaces FastAPI's own handling of a request. FastAPI still writes the OpenAPI document from the routes.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Executor
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from fastapi import Response
from fastapi.routing import APIRoute
from pydantic_core import to_json
from starlette.types import Receive, Scope, Send

from app import errors
from app.batching.admission import Deadline
from app.batching.engine import Engine
from app.http import openapi
from app.http.body import check_inputs, parse
from app.http.context import RequestContext, Service, context_of
from app.http.head import admit
from app.observability import tracing
from app.tasks.schemas import Input
from app.tasks.task import Question, Task, TaskResult, characters, encode_all
from model.tokenizer import Encoding, Tokenizer
from model.word_ids import MAX_QUICK_CHARACTERS, QUICK_CHARACTERS, QUICK_WORK

T = TypeVar("T")

MAX_RESPONSE_BYTES = 2 * 1024 * 1024
"""Limit on the estimated bytes of a response, which take the event loop 50 ms. A text with 510 masks and 100
predictions each would be repeated 51,000 times."""
_BUFFERED_BYTES = 64 * 1024
"""Uvicorn buffers 64 KiB of any body, so a body of this size needs no reservation."""
_UNWATCHED_SECONDS = 0.05
"""Time before the caller's connection is watched for a disconnect."""
_NO_BODY = "the body did not arrive before the deadline; send a smaller one, or allow more time"


@dataclass(frozen=True, slots=True)
class Call:
    """A parsed request of any protocol: the task's inputs and parameters, and the shape of the response."""

    inputs: Sequence[Input]
    parameters: Mapping[str, Any]
    """Arguments of `Task.question`."""
    write: Callable[[TaskResult], Any]
    """Turns the results into a response, or into the JSON of one."""
    locate: Callable[[errors.Loc], errors.Loc]
    """Maps the path of an input (`inputs`, its index) to the path in the caller's body."""
    timeout: float | None = None
    """Maximum seconds that the caller waits from now on."""


Parse = Callable[[bytes, Mapping[bytes, str], int], Any]
"""Parses a body, given the request's headers and the maximum number of inputs. Raises errors of `app.errors`."""


class TaskRoute(APIRoute):
    """`POST path`: the route of a task."""

    def __init__(
        self,
        path: str,
        task: Task,
        to_call: Callable[[Any], Call],
        *,
        request: Any,
        response: Any,
        example: Any,
        summary: str,
        description: str = "",
        tag: str = "tasks",
        parse_body: Parse | None = None,
    ) -> None:
        """Make a route.

        Args:
            to_call: Turns a body of the schema `request` into a call.
            request: Schema of the body.
            response: Type of the response's body.
            example: A response's body, for the OpenAPI document.
            description: Description in the OpenAPI document; by default the docstring of `to_call`.
            tag: Group of operations in the OpenAPI document.
            parse_body: Parses a body; by default, JSON that fits the schema. With another parser, bodies may also be
                `application/octet-stream` or lack a media type, and responses may be binary.
        """

        def endpoint(body: Any) -> Call:
            return to_call(body)

        endpoint.__annotations__["body"] = request  # FastAPI documents it
        super().__init__(
            path,
            endpoint,
            methods=["POST"],
            operation_id=path.strip("/").replace("/", "_").replace("-", "_"),
            summary=summary,
            description=description or inspect.getdoc(to_call),
            tags=[tag],
            response_model=None,
            **openapi.task(response, example, binary=parse_body is not None),
        )
        self.task = task
        self._binary = parse_body is not None
        self.app = self.answer  # for paths that only FastAPI's router recognises, and for traced requests
        self._to_call = to_call
        self._parse = parse_body or (lambda body, _, max_inputs: parse(request, body, max_inputs))

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to a request; an ASGI app. Raises errors of `app.errors`."""
        context = context_of(scope)
        service = context.service
        headers = {name: str(value, "latin-1") for name, value in reversed(scope["headers"])}  # of several, the first
        deadline, max_bytes = admit(context, headers, binary=self._binary)
        call: Call | None = None
        try:
            async with asyncio.timeout_at(deadline.at) as timer:
                body = await _read(receive, service, max_bytes)
                call = self._to_call(self._parse(body, headers, service.settings.max_client_batch))
                del body
                check_inputs(len(call.inputs), service.settings.max_client_batch)
                if call.timeout is not None and call.timeout < deadline.remaining:
                    deadline = Deadline.after(call.timeout, from_client=True)
                    timer.reschedule(deadline.at)
                result = await cancel_on_disconnect(receive, task_result(context, self.task, call, deadline))
        except TimeoutError:
            if not timer.expired():
                raise
            raise (errors.DeadlineExceededError() if call else errors.DeadlineExceededError(_NO_BODY)) from None
        except errors.LocatedError as error:
            if call is not None:
                error.relocate(call.locate)
            raise
        context.inputs, context.tokens = len(result.results), result.tokens
        response = _make_response(service, self.task, result, call)
        del result, call  # the caller may read slowly
        await response(scope, receive, send)


async def _read(receive: Receive, service: Service, max_bytes: int) -> bytes:
    """Read the body. `max_bytes`: its declared size, or the limit if it has none.

    Raises:
        TooManyBytesError: too many bytes are being uploaded.
        TooLargeError: the body exceeds the limit.
        CallerGoneError: the caller disconnected.
    """
    limit, parts, size, more = service.settings.max_body_bytes, list[bytes](), 0, True
    with nullcontext() if max_bytes <= _BUFFERED_BYTES else service.uploads.reserve(max_bytes):
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise errors.CallerGoneError
            parts.append(message.get("body", b""))
            size, more = size + len(parts[-1]), message.get("more_body", False)
            if size > limit:
                raise errors.TooLargeError(f"the body has more than {limit} bytes; send fewer or shorter inputs")
    return b"".join(parts)


async def task_result(context: RequestContext, task: Task, call: Call, deadline: Deadline) -> TaskResult:
    """Compute the results of a task. Raises errors of `app.errors`."""
    began = time.monotonic()
    engine = context.service.lifecycle.engine
    encoder, served = engine.model_with(task.head, task.name)
    question = task.question(served, call.inputs, **call.parameters)
    query = question.query(await _tokenize(context.service.threads, engine, question))
    if (size := question.response_bytes(query)) > MAX_RESPONSE_BYTES:
        raise errors.TooLargeError(
            f"the answer would have {size} bytes, more than {MAX_RESPONSE_BYTES}; {question.split_advice}"
        )
    try:
        outputs = await engine.compute(query, encoder, deadline) if question.needs_model else []
    finally:
        context.computation_started = query.started < time.monotonic()
    done = time.monotonic()
    submitted, started = query.submitted or done, min(query.started, done)
    stages = {"tokenize": submitted - began, "queue": started - submitted, "inference": done - started}
    return TaskResult(served.name, question.results(query, outputs), sum(query.lengths), stages)


async def _tokenize(threads: Executor, engine: Engine, question: Question) -> list[Encoding]:
    """Tokenize the inputs: on the event loop if that is quick, otherwise in a thread. Handing a sentence to a thread
    would cost the loop as much as tokenizing it."""
    size = sum(map(characters, question.inputs))
    if size <= QUICK_CHARACTERS:
        return encode_all(question)
    if size <= MAX_QUICK_CHARACTERS and not question.spans:
        tokenizer = question.served.tokenizer
        with suppress(_NotQuickError):
            return encode_all(question, partial(_check_quick, tokenizer, tokenizer.work + QUICK_WORK))
    has_ended = threading.Event()

    def check_cancelled(_: Input) -> None:
        if has_ended.is_set():
            raise CancelledError

    encode = partial(encode_all, question, check_cancelled)
    with engine.tokenizing([characters(given) * question.needs_model for given in question.inputs]):
        try:
            return await asyncio.get_running_loop().run_in_executor(threads, encode)
        finally:
            has_ended.set()


class _NotQuickError(Exception):
    """An input needs too much work for the event loop."""


def _check_quick(tokenizer: Tokenizer, max_work: int, given: Input) -> None:
    """Raise _NotQuickError if the next input may hold the event loop for some ms, or `max_work` is exceeded."""
    texts = (given,) if isinstance(given, str) else (given.text, given.text_pair)
    if tokenizer.work > max_work or not all(map(tokenizer.is_quick, texts)):
        raise _NotQuickError


def _make_response(service: Service, task: Task, result: TaskResult, call: Call) -> Response:
    """The response, with the time of each stage in `Server-Timing`."""
    service.metrics.latency(task.name, result.stages)
    if service.is_traced:
        tracing.note_stages(result.stages)
    answer = call.write(result)
    if not isinstance(answer, Response):
        answer = Response(to_json(answer), media_type="application/json")
    tokenize, queue, inference = result.stages.values()
    answer.headers["Server-Timing"] = (
        f"tokenize;dur={tokenize * 1000:.3f}, queue;dur={queue * 1000:.3f}, inference;dur={inference * 1000:.3f}"
    )
    return answer


async def cancel_on_disconnect(receive: Receive, answer: Awaitable[T]) -> T:
    """Await a response, and cancel it if the caller disconnects first. The body must have been read before.

    Watching begins after `_UNWATCHED_SECONDS`, because a watcher costs as much as tokenizing a sentence.

    Raises:
        CallerGoneError: the caller disconnected.
    """
    task = asyncio.current_task()
    assert task is not None
    gone = False
    watchers: list[asyncio.Task[None]] = []

    async def watch() -> None:
        nonlocal gone
        while (await receive())["type"] != "http.disconnect":
            pass
        gone = True
        task.cancel()

    loop = asyncio.get_running_loop()
    timer = loop.call_later(_UNWATCHED_SECONDS, lambda: watchers.append(loop.create_task(watch())))
    try:
        return await answer
    except asyncio.CancelledError:
        if gone and task.uncancel() == 0:
            raise errors.CallerGoneError from None
        raise
    finally:
        timer.cancel()
        for watcher in watchers:
            watcher.cancel()
