"""A FastAPI route whose body is read, checked and parsed once, straight from bytes to the schema.

FastAPI's own way parses JSON in Python and then validates; and its errors are not this service's. The
signature of an endpoint, `(body: Schema, request: TaskRequest)`, still writes the OpenAPI document.
"""

from __future__ import annotations

import asyncio
import codecs
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NoReturn, TypeVar

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, from_json
from starlette.types import Receive

from app.api.admission import admit
from app.api.problems import shorten
from app.api.schemas import UNION_TAGS
from app.errors import (
    CallerGoneError,
    DeadlineExceededError,
    FieldError,
    InvalidInputError,
    InvalidRequestError,
    Loc,
    NotJSONError,
    TooLargeError,
)
from app.observability.metrics import Metrics
from app.scheduling.engine import Engine
from app.settings import Settings

T = TypeVar("T")

_MAX_FAULTS = 100
"""To tell apart the faults of ten thousand unknown fields takes too long; a list has one, its first."""
_MAX_NAME = 100
"""Characters of a field's name that are told"""
_JSON_WORDS = {"model_type": "Input should be an object", "list_type": "Input should be an array"}
"""In place of pydantic's own messages, which name Python's types."""


class TaskRequest(Request):
    """A request to a task, with what it needs at hand."""

    @property
    def deadline(self) -> float:
        """`time.monotonic()` after which nobody wants the answer."""
        deadline: float = self.scope["deadline"]
        return deadline

    @property
    def engine(self) -> Engine:
        engine: Engine = self.app.state.engine
        return engine

    @property
    def metrics(self) -> Metrics:
        metrics: Metrics = self.app.state.metrics
        return metrics

    @property
    def settings(self) -> Settings:
        settings: Settings = self.app.state.settings
        return settings


class TaskRoute(APIRoute):
    """Admit, read, parse, answer while somebody listens."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """See `APIRoute`."""
        endpoint: Callable[[BaseModel, TaskRequest], Awaitable[Response]] = self.endpoint
        if self.body_field is None:
            raise TypeError(f"{endpoint} takes no body")
        schema: type[BaseModel] = self.body_field.field_info.annotation  # type: ignore[assignment]

        async def handle(request: Request) -> Response:
            task_request = TaskRequest(request.scope, request.receive)
            if "deadline" not in request.scope:  # the protocol has not asked, or is not ours
                admit(task_request)
            body = parse(schema, await _read(task_request), task_request.settings.max_client_batch)
            try:
                return await while_connected(request.receive, endpoint(body, task_request))
            except InvalidInputError as error:
                if error.loc[0] == "inputs" and not isinstance(getattr(body, "inputs", []), list):
                    error.loc = ("inputs", *error.loc[2:])  # the caller sent no list
                raise

        return handle


def parse(schema: type[BaseModel], body: bytes, max_inputs: int) -> BaseModel:
    """Bytes to a schema.

    Raises:
        NotJSONError: no JSON in UTF-8; also NaN, lone surrogates, nesting and numbers beyond all measure.
        TooLargeError: more than `max_inputs` inputs; these are not validated.
        InvalidRequestError: JSON, but not this schema.
    """
    body = body.removeprefix(codecs.BOM_UTF8)  # RFC 8259 lets it be ignored
    try:
        given = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        reason = f"Invalid JSON: {error}"
        if not _is_utf_8(body):
            reason = "the body is no UTF-8; JSON is sent in no other encoding"
        raise NotJSONError(reason) from None
    inputs = given.get("inputs") if isinstance(given, dict) else None
    if isinstance(inputs, list) and len(inputs) > max_inputs:
        raise TooLargeError(f"the request has {len(inputs)} inputs, one may carry {max_inputs}")
    try:
        return schema.model_validate(given)
    except ValidationError as error:
        _refuse(error)


def _is_utf_8(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


def _refuse(error: ValidationError) -> NoReturn:
    if error.error_count() > _MAX_FAULTS:
        raise InvalidRequestError([FieldError(f"{error.error_count()} fields are wrong", ())]) from None
    faults = error.errors(include_url=False, include_input=False, include_context=False)  # no text in a log
    raise InvalidRequestError(
        [FieldError(_JSON_WORDS.get(fault["type"], fault["msg"]), _place(fault)) for fault in faults]
    ) from None


def _place(fault: ErrorDetails) -> Loc:
    """Where it is, as the caller sees it. A field that is not known may be called like a tag."""
    known = len(fault["loc"]) - (fault["type"] == "extra_forbidden")
    tagless = tuple(part for part in fault["loc"][:known] if part not in UNION_TAGS)
    return tagless + tuple(shorten(str(part), _MAX_NAME) for part in fault["loc"][known:])


async def while_connected(receive: Receive, answer: Awaitable[T]) -> T:
    """Wait for an answer, and cancel it if the caller goes away first. The body must have been read.

    Raises:
        CallerGoneError: the caller went away.
    """
    task = asyncio.current_task()
    gone = False

    async def watch() -> None:
        nonlocal gone
        while (await receive())["type"] != "http.disconnect":
            pass
        gone = True
        if task is not None:
            task.cancel()

    watcher = asyncio.create_task(watch())
    try:
        return await answer
    except asyncio.CancelledError:
        if gone and task is not None and task.uncancel() == 0:
            raise CallerGoneError("the caller closed the connection") from None
        raise
    finally:
        watcher.cancel()


async def _read(request: TaskRequest) -> bytes:
    """The body, refused as soon as it is known to be too large, and not awaited beyond the deadline."""
    try:
        with request.app.state.uploads.reserve(request.scope["body_bytes"]):
            async with asyncio.timeout(request.deadline - time.monotonic()):
                return await _collect(request.receive, request.settings.max_body_bytes)
    except TimeoutError:
        request.metrics.expired()
        raise DeadlineExceededError from None


async def _collect(receive: Receive, limit: int) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise CallerGoneError("the caller closed the connection")
        body += message.get("body", b"")
        if len(body) > limit:
            raise TooLargeError(f"the body has more than {limit} bytes")
        if not message.get("more_body", False):
            return bytes(body)
