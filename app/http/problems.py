"""Errors as problem documents (RFC 9457, `application/problem+json`): one table of types, one shape."""

from __future__ import annotations

import difflib
import logging
import re
from dataclasses import dataclass, replace

from fastapi import FastAPI, Request, Response
from pydantic_core import to_json
from starlette.exceptions import HTTPException
from typing_extensions import TypedDict

from app import errors
from app.http.context import RequestContext, context_of, path_in_app, service_of
from app.tasks.schemas import described
from model import errors as model_errors

logger = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"
_MAX_DETAIL = 500
_QUERY_IGNORED = "; the query string is not read: its values belong in the JSON"


@described
class FieldProblem(TypedDict):
    """A fault and its place in the body."""

    message: str
    loc: list[str | int]
    """Fields and indices from the body's root, such as `["inputs", 3]`; of a header, `["header", "…"]`."""


@described
class Problem(TypedDict):
    """The reason why a request failed (RFC 9457)."""

    type: str
    """A URN that ends with `code`."""
    title: str
    """The kind of problem."""
    status: int
    detail: str
    """A sentence about this problem."""
    code: str
    """The kind of problem, for programs: `queue_full`, `text_too_long` and so on."""
    request_id: str
    """The service logs it with every error 500, and at level `debug` with every request."""
    error: str
    """A copy of `detail`, for Hugging Face's clients."""
    errors: list[FieldProblem]
    """Faults with their places in the body or the headers."""


@dataclass(frozen=True, slots=True)
class ProblemType:
    """How an error is sent to the caller."""

    status: int
    code: str
    title: str


INTERNAL_ERROR = ProblemType(500, "internal_error", "Internal server error")

# An error has the type of the first of its base classes in this table; an HTTPException that of its status.
PROBLEM_TYPES: dict[type[Exception] | int, ProblemType] = {
    404: ProblemType(404, "not_found", "Not found"),
    405: ProblemType(405, "method_not_allowed", "Method not allowed"),
    errors.NotJSONError: ProblemType(400, "not_json", "The body is not JSON"),
    errors.HostNotAllowedError: ProblemType(400, "host_not_allowed", "Host not allowed"),
    errors.UnauthorizedError: ProblemType(401, "unauthorized", "Missing or invalid API key"),
    errors.TaskNotServedError: ProblemType(404, "task_not_served", "No loaded model has a head for this task"),
    errors.TooLargeError: ProblemType(413, "too_large", "Request too large"),
    errors.UnsupportedMediaTypeError: ProblemType(415, "unsupported_media_type", "Unsupported media type"),
    errors.InvalidRequestError: ProblemType(422, "invalid_request", "The request does not fit the schema"),
    model_errors.EmptyTextError: ProblemType(422, "empty_text", "A text is empty"),
    model_errors.InvalidTextError: ProblemType(422, "invalid_text", "A string is not valid text"),
    model_errors.PairError: ProblemType(422, "no_pairs", "The model takes single texts only"),
    model_errors.TextTooLongError: ProblemType(422, "text_too_long", "A text is longer than the model's limit"),
    model_errors.NoMaskError: ProblemType(422, "no_mask", "A text has no mask, or lost one by truncation"),
    model_errors.UnknownTargetError: ProblemType(422, "unknown_target", "A target is not a token of the vocabulary"),
    errors.QueueFullError: ProblemType(429, "queue_full", "Queue full"),
    errors.TooManyBytesError: ProblemType(429, "too_many_bytes", "Too many bytes are being received"),
    errors.CallerGoneError: ProblemType(499, "caller_gone", "The caller closed the connection"),
    errors.InferenceError: ProblemType(500, "inference_failed", "Inference failed"),
    errors.UnavailableError: ProblemType(503, "unavailable", "Service unavailable"),
    errors.DeadlineExceededError: ProblemType(504, "deadline_exceeded", "Deadline exceeded"),
    errors.DeadlineUnreachableError: ProblemType(504, "deadline_unreachable", "The deadline cannot be met"),
}


def problem_type(error: Exception) -> ProblemType:
    """The type of an error; the internal error for any exception that `app` does not raise on purpose."""
    if isinstance(error, errors.InvalidInputError):
        return problem_type(error.faults[0][0])
    if isinstance(error, errors.UnavailableError):
        return replace(PROBLEM_TYPES[errors.UnavailableError], code=error.status)
    if isinstance(error, HTTPException):
        return PROBLEM_TYPES.get(error.status_code, INTERNAL_ERROR)
    return next((PROBLEM_TYPES[cls] for cls in type(error).__mro__ if cls in PROBLEM_TYPES), INTERNAL_ERROR)


def error_response(error: Exception, context: RequestContext) -> Response:
    """The response to the error of a request. The error is counted, and logged if it is the service's own fault."""
    kind, metrics = problem_type(error), context.service.metrics
    context.problem = kind.code
    if kind.status == 429:
        metrics.refused()
    elif kind.status == 504:
        metrics.expired()
    elif kind.status == 499 and not context.computation_started:
        metrics.cancelled()
    elif kind is INTERNAL_ERROR:
        logger.error("unhandled error", exc_info=error, extra={"request_id": context.request_id})
    elif kind.status == 500:
        logger.error("%s", error, extra={"request_id": context.request_id})
    remark = _QUERY_IGNORED if context.has_query and kind.status in (400, 405, 415, 422) else ""
    return problem_response(error, context.request_id, remark)


def problem_response(error: Exception, request_id: str, remark: str = "") -> Response:
    """The response to an error. An internal error does not show its message. `remark`: the end of `detail`."""
    kind = problem_type(error)
    detail = shorten(_detail(error, kind) + remark)
    body: Problem = {
        "type": f"urn:bert-service:problem:{kind.code}",
        "title": kind.title,
        "status": kind.status,
        "detail": detail,
        "code": kind.code,
        "request_id": request_id,
        "error": detail,
        "errors": [{"message": shorten(fault.message), "loc": list(fault.loc)} for fault in _field_errors(error)],
    }
    return Response(to_json(body), kind.status, headers=_headers(error), media_type=MEDIA_TYPE)


def install(app: FastAPI) -> None:
    """Respond to unknown paths and methods. `application.respond` handles all other errors."""

    async def handle(request: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException) and error.status_code == 404:
            error = HTTPException(404, _no_such_path(request))
        return error_response(error, context_of(request.scope))

    app.add_exception_handler(HTTPException, handle)


def _no_such_path(request: Request) -> str:
    """The message for an unknown path. It names the paths of this method with the same first segment, otherwise those
    with a similar spelling, otherwise the tasks. `/v1` is compared as `/v2`, because their paths are similar."""
    path = re.sub(r"^/v1\b", "/v2", path_in_app(request.scope)[:_MAX_DETAIL])
    paths = [route.path for route in request.app.routes if request.method in route.methods]
    family = [known for known in paths if known.split("/")[1] == path.lstrip("/").partition("/")[0]]
    near = difflib.get_close_matches(path, family, 5, 0) or difflib.get_close_matches(path, paths)
    tasks = (operation.path for task in service_of(request).tasks for operation in task.operations)
    return "no such path; " + (f"see {request.method} {', '.join(near)}" if near else f"see POST {', '.join(tasks)}")


def _detail(error: Exception, problem: ProblemType) -> str:
    if problem is INTERNAL_ERROR:
        return "internal error; the log has it with this request id"
    if isinstance(error, HTTPException):
        return f"use {_headers(error)['Allow']}" if error.status_code == 405 else error.detail
    return str(error)


def _field_errors(error: Exception) -> list[errors.Fault]:
    if isinstance(error, errors.InvalidRequestError):
        return error.errors
    if isinstance(error, errors.LocatedError):
        return [errors.Fault(str(fault), loc) for fault, loc in error.faults]
    return []


def _headers(error: Exception) -> dict[str, str]:
    if retry_after := getattr(error, "retry_after", None):
        return {"Retry-After": str(retry_after)}
    if isinstance(error, errors.UnauthorizedError):
        return {"WWW-Authenticate": error.challenge}
    if isinstance(error, HTTPException):
        return {name: "GET, HEAD" if value == "GET" else value for name, value in (error.headers or {}).items()}
    return {}


def shorten(text: str, most: int = _MAX_DETAIL) -> str:
    """A text cut to at most `most` characters, because it may be the caller's own."""
    return text if len(text) <= most else text[: most - 1] + "…"
