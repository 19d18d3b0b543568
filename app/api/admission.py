"""What the head of a request to a task tells, before its body is read.

In an overload nearly everybody is refused, and what that costs is missing where others are answered. So whom
`refusal` turns away never becomes a request of the app; `json_route` asks `admit` for the others, whose
refusals the app must see: for instance those of other sites' pages, and those that are traced.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from fastapi import FastAPI, Request, Response
from starlette.types import Scope

from app.api.auth import check_key
from app.api.problems import problem_response
from app.errors import (
    FieldError,
    InvalidRequestError,
    ServiceError,
    TooLargeError,
    TooManyBytesError,
    UnsupportedMediaTypeError,
)
from app.observability.metrics import Metrics
from app.observability.request_ids import request_id_of
from app.scheduling.engine import Engine
from app.scheduling.scheduler import OwnDeadline
from app.settings import Settings

TASKS = {
    "/fill-mask": "fill-mask",
    "/next-sentence": "next-sentence",
    "/sentiment": "sentiment",
    "/hf/fill-mask": "fill-mask",
    "/hf/text-classification": "sentiment",
}
"""What is admitted, by path."""


_BUFFERED_BYTES = 64 * 1024
"""Uvicorn buffers this much of any body, so a body of this size needs no reservation."""


class Uploads:
    """Bytes of the bodies that are being received, at most `limit`; a larger body has to come alone."""

    def __init__(self, limit: int, metrics: Metrics) -> None:
        self.reserved = 0
        self._limit = limit
        self._metrics = metrics

    def check(self, size: int) -> None:
        """Check that a body of `size` bytes may come.

        Raises:
            TooManyBytesError: other bodies leave no room for it.
        """
        if size > _BUFFERED_BYTES and self.reserved and self.reserved + size > self._limit:
            self._metrics.refused()
            raise TooManyBytesError

    @contextmanager
    def reserve(self, size: int) -> Iterator[None]:
        """Reserve `size` bytes while a body is received. Raises what `check` raises."""
        self.check(size)
        held = size if size > _BUFFERED_BYTES else 0
        self.reserved += held
        try:
            yield
        finally:
            self.reserved -= held


def task_of(scope: Scope) -> str | None:
    """The task that a request is for, if it is for one."""
    return TASKS.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None


def refusal(app: FastAPI, target: bytes, scope: Scope) -> Response | None:
    """The answer to `POST target` if it has no chance, from the head alone. What is None goes its usual way,
    perhaps to be refused there."""
    task = TASKS.get(str(target, "latin-1"))
    state = app.state
    if task is None or state.engine.status != "ready" or (state.settings.cors_origins and _is_cross(scope)):
        return None
    started = time.perf_counter()
    scope["app"] = app
    try:
        admit(Request(scope))
    except ServiceError as error:
        request_id = request_id_of(scope["headers"])
        response = problem_response(error, request_id)
        response.headers["X-Request-ID"] = request_id
        state.metrics.request(task, response.status_code)
        state.metrics.duration(task, response.status_code, time.perf_counter() - started)
        return response
    except Exception:  # it comes again, where the app logs it
        return None
    return None


def admit(request: Request) -> None:
    """Note the `deadline` (`time.monotonic()`) and the `body_bytes` to reserve in the request's scope.

    Raises:
        UnauthorizedError: no key came, or a wrong one.
        UnavailableError: the service is loading, draining or broken.
        InvalidRequestError: its timeout is none.
        UnsupportedMediaTypeError: it does not say that it is JSON, or says that it is compressed.
        TooLargeError: it says that its body is.
        TooManyBytesError: too many bytes are being uploaded.
        QueueFullError: too much is waiting.
        DeadlineExceededError: too much for the deadline that the caller asked for.
    """
    check_key(request)
    engine: Engine = request.app.state.engine
    settings: Settings = request.app.state.settings
    engine.check_open()
    deadline = _deadline(request, settings.request_timeout_ms / 1000)
    _check_media_type(request)
    declared = _declared_bytes(request, settings.max_body_bytes)
    body_bytes = settings.max_body_bytes if declared is None else declared
    request.app.state.uploads.check(body_bytes)
    engine.check_backlog(declared or 0, deadline)
    request.scope["deadline"], request.scope["body_bytes"] = deadline, body_bytes


def _is_cross(scope: Scope) -> bool:
    """Whether a browser may be asking, for a page of another site."""
    return any(name == b"origin" for name, _ in scope["headers"])


_DIGITS = 12
"""Of a timeout; more of them make it no shorter, and thousands are no number for Python."""


def _deadline(request: Request, limit: float) -> float:
    """The server's, so many seconds from now, or the caller's own if that is sooner."""
    now, given = time.monotonic(), request.headers.get("x-request-timeout-ms")
    if given is None:
        return now + limit
    given = given.strip().lstrip("0")
    if not (given.isascii() and given.isdecimal()):
        raise InvalidRequestError(
            [FieldError("must be a positive number of milliseconds", ("header", "X-Request-Timeout-Ms"))]
        )
    seconds = int(given[:_DIGITS]) / 1000
    return OwnDeadline(now + seconds) if seconds < limit else now + limit


def _check_media_type(request: Request) -> None:
    """JSON as it is. A missing type is refused as well: browsers send such a body without a preflight."""
    if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise UnsupportedMediaTypeError("send the body as it is, without Content-Encoding")
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json" and not (
        media_type.startswith("application/") and media_type.endswith("+json")
    ):
        raise UnsupportedMediaTypeError("send JSON with the header Content-Type: application/json")


def _declared_bytes(request: Request, limit: int) -> int | None:
    """The body's size; None if it is not declared."""
    given = request.headers.get("content-length", "")
    declared = int(given.lstrip("0") or "0") if given.isdecimal() else None
    if declared is not None and declared > limit:
        raise TooLargeError(f"the body has {declared} bytes, the limit is {limit}")
    return declared
