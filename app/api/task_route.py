"""The route of a task: admit, read, parse, run the handler, respond.

It replaces FastAPI's own handling of a request, which parses JSON in Python: for a body of 1.8 MB that takes four
times as long. FastAPI still writes the OpenAPI document from a handler's signature.
"""

from __future__ import annotations

import asyncio
import codecs
import difflib
import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import fields
from itertools import islice
from typing import Any, NoReturn, TypeVar, get_args

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, from_json, to_json
from starlette.types import Receive, Scope, Send

from app import errors
from app.api import openapi
from app.api.admission import admit
from app.api.problems import shorten
from app.api.schemas import UNION_TAGS
from app.inference.types import Task
from app.observability import tracing
from app.observability.metrics import Metrics
from app.scheduling.deadline import Deadline
from app.scheduling.engine import Engine, Reply
from app.scheduling.results import FillMaskResult, LabelResult
from app.scheduling.tokenization import Input, TextPair
from app.settings import Settings
from model.errors import InvalidTextError

T = TypeVar("T")
Schema = TypeVar("Schema", bound=BaseModel)

_VALUES_PER_INPUT, _OTHER_VALUES = 4, 1000
"""JSON values that a body may have, for each input that a request may carry and beside them: making the objects of
650,000 empty lists blocks the event loop for 100 ms."""
_UNCOUNTED_BYTES = 64 * 1024
"""A smaller body is parsed in 4 ms at most, so its values are not counted."""
_NOT_SEPARATORS = bytes(set(range(256)) - set(b",[{"))
_UNWATCHED_SECONDS = 0.05
"""Of an answer, before its caller's connection is watched."""
_MAX_FIELD_NAME = 100
"""Characters of an unknown field's name in an error."""
_PAIR = '{"text": …, "text_pair": …}'
_UNKNOWN_FIELD = ("extra_forbidden", "unexpected_keyword_argument")
_MESSAGES = {
    **dict.fromkeys(("model_type", "dict_type"), "Input should be an object"),
    "list_type": "Input should be an array",
    "dataclass_type": f"must be {_PAIR}",
    "none_required": "Input should be null",
    "too_short": "is empty: send at least one",
    **dict.fromkeys(_UNKNOWN_FIELD, "unknown field"),
}
"""Replace pydantic's messages that name Python's types or do not say what to send."""


class TaskRequest(Request):
    """A request that was admitted to a task."""

    def __init__(self, scope: Scope, receive: Receive, *, binary: bool) -> None:
        """Admit a request; see `admit`, also for what it raises."""
        super().__init__(scope, receive)
        if "deadline" not in scope:  # the HTTP protocol may have called it
            admit(self, binary=binary)
        state = self.app.state
        self.engine: Engine = state.engine
        self.metrics: Metrics = state.metrics
        self.settings: Settings = state.settings
        self.deadline: Deadline = scope["deadline"]
        """When the request is answered with 504."""
        self.held = ExitStack()
        """What is reserved until the answer is sent."""

    def fill_mask(self, inputs: Sequence[str], **parameters: Any) -> Awaitable[Reply[FillMaskResult]]:
        """See `Engine.fill_mask`."""
        return self.engine.fill_mask(inputs, deadline=self.deadline, held=self.held, **parameters)

    def labels(self, task: Task, inputs: Sequence[Input], **parameters: Any) -> Awaitable[Reply[LabelResult]]:
        """See `Engine.labels`."""
        return self.engine.labels(task, inputs, deadline=self.deadline, held=self.held, **parameters)


TaskHandler = Callable[[Any, TaskRequest], Awaitable[tuple[Reply[Any], Any]]]
"""`async def handler(body: Schema, request: TaskRequest)`: the engine's reply, and a response or the JSON of one."""
Parser = Callable[[bytes, TaskRequest], Any]
"""A request's body as the handler takes it. Raises errors of `app.errors`."""


class TaskRoute(APIRoute):
    """`POST path`, answered by a handler. Its docstring describes the operation in the OpenAPI document."""

    def __init__(
        self,
        path: str,
        handler: TaskHandler,
        *,
        task: str,
        summary: str,
        response: Any,
        example: Any,
        tag: str = "tasks",
        parser: Parser | None = None,
        binary: bool = False,
    ) -> None:
        """Make a route.

        Args:
            task: the task's label in the metrics.
            response: type of the response's body.
            example: a response's body, for the OpenAPI document.
            tag: group of operations in the OpenAPI document.
            parser: by default, the body is JSON that fits the schema of the handler's first parameter.
            binary: bodies may also be `application/octet-stream` or have no media type, and so may answers.
        """
        super().__init__(
            path,
            handler,
            methods=["POST"],
            operation_id=path.strip("/").replace("/", "_").replace("-", "_"),
            summary=summary,
            tags=[tag],
            response_model=None,
            **openapi.task(response, example, binary=binary),
        )
        self.task = task
        self.binary = binary
        self.app = self.answer
        assert self.body_field is not None
        schema: Any = self.body_field.field_info.annotation
        self._parser = parser or (lambda body, request: parse(schema, body, request.settings.max_client_batch))

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; an ASGI app. Raises errors of `app.errors`."""
        request = TaskRequest(scope, receive, binary=self.binary)
        with request.held:
            body = self._parser(await _read(request), request)
            try:
                reply, answer = await cancel_on_disconnect(receive, self.endpoint(body, request))
            except errors.InputError as error:
                if not isinstance(getattr(body, "inputs", []), list):  # the caller sent one input
                    error.relocate(lambda loc: ("inputs", *loc[2:]) if loc[0] == "inputs" else loc)
                raise
            scope["logged"] |= {"inputs": len(reply.results), "tokens": reply.tokens}
            is_large, response = reply.is_large, await _respond(request, self.task, reply, answer)
            del reply, answer
            if is_large:
                await _send_until_read(response, send)
            else:
                await response(scope, receive, send)


async def _send_until_read(response: Response, send: Send) -> None:
    """Send an answer. The server waits before the last message, which is empty, until the caller has read nearly all of
    the one before."""
    await send({"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers})
    await send({"type": "http.response.body", "body": response.body, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _respond(request: TaskRequest, task: str, reply: Reply[Any], answer: Any) -> Response:
    """The answer as JSON, with the time of each stage in `Server-Timing`."""
    request.metrics.latency(task, reply.stages)
    tracing.note_stages(request.app.state.traced, reply.stages)
    timing = ", ".join(f"{name};dur={seconds * 1000:.3f}" for name, seconds in reply.stages.items())
    if not isinstance(answer, Response):
        body = await asyncio.to_thread(to_json, _in_pieces(answer)) if reply.is_large else to_json(answer)
        answer = Response(body, media_type="application/json")
    answer.headers["Server-Timing"] = timing
    return answer


def _in_pieces(value: Any) -> Any:
    """The same JSON, made of generators: `to_json` lets the event loop run only while it calls Python."""
    if isinstance(value, list):
        return (_in_pieces(item) for item in value)
    if isinstance(value, dict):
        return {name: _in_pieces(part) for name, part in value.items()}
    return value


def check_inputs(count: int, max_inputs: int) -> None:
    """Raise TooLargeError if a request has more than `max_inputs` inputs."""
    if count > max_inputs:
        raise errors.TooLargeError(f"the request has {count} inputs, one may carry {max_inputs}; send several requests")


def parse(schema: type[Schema], body: bytes, max_inputs: int) -> Schema:
    """Parse a body into a schema.

    Raises:
        NotJSONError: the body is not JSON in UTF-8, holds NaN, or is nested too deeply.
        InvalidInputError: a string holds half of a surrogate pair.
        TooLargeError: the body has more than `max_inputs` inputs, which are not validated, or far more values, which
            are not parsed.
        InvalidRequestError: the JSON does not fit the schema.
    """
    body = body.removeprefix(codecs.BOM_UTF8)  # RFC 8259 allows ignoring it
    _check_values(body, max_inputs)
    try:
        given = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        _raise_not_json(body, error)
    inputs = given.get("inputs") if isinstance(given, dict) else None
    if isinstance(inputs, list):
        check_inputs(len(inputs), max_inputs)
    try:
        return schema.model_validate(given)
    except ValidationError as error:
        _raise_invalid(error, schema)


def _check_values(body: bytes, max_inputs: int) -> None:
    """Raise TooLargeError if a large body has more JSON values than a request of `max_inputs` inputs. They are counted
    without parsing: every value but the first of a list or object follows a comma."""
    most = _VALUES_PER_INPUT * max_inputs + _OTHER_VALUES
    if len(body) <= _UNCOUNTED_BYTES or _separators(body) <= most:
        return
    if b"\\" in body:
        body = body.replace(rb"\\", b"").replace(rb"\"", b"")  # the quotes that remain begin and end strings
    parts = body.split(b'"', 2 * most)
    if len(parts) > 2 * most or _separators(b"".join(parts[::2])) > most:
        raise errors.TooLargeError(
            f"the JSON has more than {most} values; send at most {max_inputs} inputs in a request, and no other fields "
            "than documented"
        )


def _separators(body: bytes) -> int:
    """Number of commas, brackets and braces that begin a value."""
    return len(body.translate(None, _NOT_SEPARATORS))


def _raise_not_json(body: bytes, error: ValueError) -> NoReturn:
    """Raise why a body cannot be parsed. Python's `json` accepts halves of surrogate pairs, so it finds them."""
    reason, given = f"Invalid JSON: {error}" if body.strip() else "the body is empty; send JSON", None
    try:
        given = json.loads(body.decode("utf-8", "surrogatepass"))
    except UnicodeDecodeError:
        reason = "the body is not UTF-8, the only encoding of JSON"
    except (ValueError, RecursionError):
        pass
    if _has_half_character(given):
        inputs = given.get("inputs") if isinstance(given, dict) else None
        items = enumerate(inputs) if isinstance(inputs, list) else ()
        having = islice((i for i, one in items if _has_half_character(one)), errors.MAX_FAULTS)
        places: list[errors.Loc] = [("inputs", i) for i in having]
        places = places or [("inputs",) if _has_half_character(inputs) else ()]
        raise errors.InvalidInputError([(InvalidTextError(), loc) for loc in places]) from None
    raise errors.NotJSONError(reason) from None


def _has_half_character(value: Any) -> bool:
    try:
        (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)).encode()
    except UnicodeEncodeError:
        return True
    except RecursionError:  # `json.loads` takes a little more nesting
        pass
    return False


def _raise_invalid(error: ValidationError, schema: type[BaseModel]) -> NoReturn:
    details = error.errors(include_url=False, include_input=False, include_context=False)  # keeps texts out of logs
    details = details[: errors.MAX_FAULTS]
    raise errors.InvalidRequestError([errors.FieldError(_message(d, schema), _loc(d)) for d in details]) from None


def _message(detail: ErrorDetails, schema: type[BaseModel]) -> str:
    """What is wrong, in the words of JSON. For an unknown field, the known ones or the one that was meant."""
    message = _MESSAGES.get(detail["type"], detail["msg"])
    if detail["type"] == "too_long":
        message = message.replace("List", "Input").replace(" after validation", "")
    *path, name = detail["loc"] or ("",)
    if (detail["type"], name) == ("string_type", "string"):  # the tag of `schemas.TextOrPair`
        return f"must be a text or {_PAIR}"
    if detail["type"] not in _UNKNOWN_FIELD:
        return message
    is_of_pair = detail["type"] == "unexpected_keyword_argument"
    known = [field.name for field in fields(TextPair)] if is_of_pair else _field_names(schema, path)
    if not path and name in _field_names(schema, ["parameters"]):
        return "belongs in parameters"
    near = difflib.get_close_matches(str(name)[:_MAX_FIELD_NAME], known, n=1, cutoff=0.6)
    return f"{message}; did you mean {near[0]}?" if near else f"{message}; known are {', '.join(known)}"


def _field_names(schema: Any, path: list[str | int]) -> list[str]:
    """Names of the fields of the object at a path; none if it is not of a pydantic model."""
    for part in path:
        if isinstance(part, int) or part in UNION_TAGS:
            continue
        field = schema.model_fields.get(part)
        schema = None if field is None else _model_in(field.annotation)
        if schema is None:
            return []
    return list(schema.model_fields)


def _model_in(annotation: Any) -> Any:
    """The first pydantic model of an annotation such as `list[Model] | None`, if there is one."""
    if hasattr(annotation, "model_fields"):
        return annotation
    return next(filter(None, map(_model_in, get_args(annotation))), None)


def _loc(detail: ErrorDetails) -> errors.Loc:
    """The field's path without the tags of unions. An unknown field, which may be named like a tag, stays in it."""
    known = len(detail["loc"]) - (detail["type"] in _UNKNOWN_FIELD)
    tagless = tuple(part for part in detail["loc"][:known] if part not in UNION_TAGS)
    return tagless + tuple(shorten(str(part), _MAX_FIELD_NAME) for part in detail["loc"][known:])


async def cancel_on_disconnect(receive: Receive, answer: Awaitable[T]) -> T:
    """Await an answer, and cancel it if the caller disconnects first. The body must have been read before. An answer
    that comes at once is not watched, because that would take as long as tokenizing a sentence.

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
            raise errors.CallerGoneError("the caller closed the connection") from None
        raise
    finally:
        timer.cancel()
        for watcher in watchers:
            watcher.cancel()


async def _read(request: TaskRequest) -> bytes:
    """The body. Reading ends with an error once the body exceeds the limit, or at the deadline."""
    limit, parts, size, more = request.settings.max_body_bytes, list[bytes](), 0, True
    with request.app.state.uploads.reserve(request.scope["body_bytes"]):
        try:
            async with asyncio.timeout(request.deadline.remaining):
                while more:
                    message = await request.receive()
                    if message["type"] == "http.disconnect":
                        if "rejected_with" not in request.scope:  # else it is closed because its bytes are no HTTP
                            request.metrics.cancelled()
                        raise errors.CallerGoneError("the caller closed the connection")
                    parts.append(message.get("body", b""))
                    size, more = size + len(parts[-1]), message.get("more_body", False)
                    if size > limit:
                        raise errors.TooLargeError(
                            f"the body has more than {limit} bytes; send fewer or shorter inputs"
                        )
        except TimeoutError:
            request.metrics.expired()
            raise errors.DeadlineExceededError(
                "the body did not arrive before the deadline; send a smaller one, or allow more time"
            ) from None
    return b"".join(parts)
