"""What the head of a request to a task tells, before its body is read.

In an overload nearly everybody is refused, and what that costs is missing where others are answered. So whom
`refusal` turns away never becomes a request of the app; `json_route` asks `admit` for the others, whose
refusals the app must see: for instance those of other sites' pages, and those that are traced.
"""

from __future__ import annotations

import time

from fastapi import FastAPI, Request, Response
from starlette.types import Scope

from app.access import check_key
from app.batcher import OwnDeadline
from app.engine import Engine
from app.errors import (
    FieldError,
    InvalidRequestError,
    ServiceError,
    TooLargeError,
    UnsupportedMediaTypeError,
)
from app.problems import problem_response
from app.request_ids import request_id_of
from app.settings import Settings

TASKS = {
    "/fill-mask": "fill-mask",
    "/next-sentence": "next-sentence",
    "/sentiment": "sentiment",
    "/hf/fill-mask": "fill-mask",
    "/hf/text-classification": "sentiment",
}
"""What is admitted, by path."""


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
    scope["app"] = app
    try:
        admit(Request(scope))
    except ServiceError as error:
        request_id = request_id_of(scope["headers"])
        response = problem_response(error, request_id)
        response.headers["X-Request-ID"] = request_id
        state.metrics.request(task, response.status_code)
        return response
    except Exception:  # it comes again, where the app logs it
        return None
    return None


def admit(request: Request) -> None:
    """Note the `deadline` in the request's scope (`time.monotonic()`).

    Raises:
        UnauthorizedError: no key came, or a wrong one.
        UnavailableError: the service is loading, draining or broken.
        InvalidRequestError: its timeout is none.
        UnsupportedMediaTypeError: it says that it is no JSON, or compressed.
        TooLargeError: it says that its body is.
        QueueFullError: too much is waiting.
        DeadlineExceededError: too much for the deadline that the caller asked for.
    """
    check_key(request)
    engine: Engine = request.app.state.engine
    settings: Settings = request.app.state.settings
    engine.check_open()
    deadline = _deadline(request, settings.request_timeout_ms / 1000)
    _check_media_type(request)
    engine.check_backlog(_declared_bytes(request, settings.max_body_bytes), deadline)
    request.scope["deadline"] = deadline


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
    """JSON as it is, or nothing said at all."""
    if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise UnsupportedMediaTypeError("send the body as it is, without Content-Encoding")
    given = request.headers.get("content-type")
    if given is None:
        return
    media_type = given.partition(";")[0].strip().lower()
    if media_type != "application/json" and not (
        media_type.startswith("application/") and media_type.endswith("+json")
    ):
        raise UnsupportedMediaTypeError("send JSON with the header Content-Type: application/json")


def _declared_bytes(request: Request, limit: int) -> int:
    """Of the body; 0 if they are not declared."""
    given = request.headers.get("content-length", "").lstrip("0")
    declared = int(given) if given.isdecimal() else 0
    if declared > limit:
        raise TooLargeError(f"the body has {declared} bytes, the limit is {limit}")
    return declared
