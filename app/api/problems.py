"""Every error to its status: one table, one shape (RFC 9457, `application/problem+json`)."""

from __future__ import annotations

import http
import logging
from dataclasses import dataclass

from fastapi import FastAPI, Request, Response
from pydantic_core import to_json
from starlette.exceptions import HTTPException

from app import errors
from bert_client.wire import FieldProblem, Problem
from model.errors import (
    EmptyTextError,
    InvalidTextError,
    NoMaskError,
    PairError,
    TextTooLongError,
    UnknownTargetError,
)

logger = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"
_MAX_DETAIL = 500

_HTTP_DETAILS = {
    400: "this is not an HTTP/1.1 request, or its method is unknown",
    404: "there is nothing at this path",
    405: "this path has other methods",
    431: "the request line and the headers have more than 64 KiB",
}


@dataclass(frozen=True, slots=True)
class Kind:
    """How one sort of error looks from outside."""

    status: int
    code: str
    title: str


INTERNAL = Kind(500, "internal_error", "Something is broken here, not in the request")

# The first class of an error's own hierarchy that stands here decides.
TABLE: dict[type[Exception], Kind] = {
    errors.NotJSONError: Kind(400, "not_json", "The body is not JSON"),
    errors.HostNotAllowedError: Kind(400, "host_not_allowed", "The Host header names none of the allowed hosts"),
    errors.UnauthorizedError: Kind(401, "unauthorized", "A valid API key is needed"),
    errors.TaskNotServedError: Kind(404, "task_not_served", "No loaded model can do this"),
    errors.TooLargeError: Kind(413, "too_large", "The request is too large"),
    errors.UnsupportedMediaTypeError: Kind(415, "unsupported_media_type", "Only JSON is read here"),
    errors.InvalidRequestError: Kind(422, "invalid_request", "The request does not fit the schema"),
    errors.InvalidInputError: Kind(422, "invalid_input", "An input cannot be answered"),
    EmptyTextError: Kind(422, "empty_text", "A text is empty"),
    InvalidTextError: Kind(422, "invalid_text", "A string is not valid text"),
    PairError: Kind(422, "no_pairs", "The model reads single texts only"),
    TextTooLongError: Kind(422, "text_too_long", "A text is longer than the model reads"),
    NoMaskError: Kind(422, "no_mask", "A text has no mask"),
    UnknownTargetError: Kind(422, "unknown_target", "A target is not a token of the vocabulary"),
    errors.QueueFullError: Kind(429, "queue_full", "Too much is waiting already"),
    errors.TooManyBytesError: Kind(429, "too_many_bytes", "Too many bytes are being uploaded"),
    errors.CallerGoneError: Kind(499, "caller_gone", "The caller closed the connection"),
    errors.InferenceError: Kind(500, "inference_failed", "The model failed on this input"),
    errors.UnavailableError: Kind(503, "unavailable", "The service cannot answer now"),
    errors.DeadlineExceededError: Kind(504, "deadline_exceeded", "The deadline passed"),
}


def kind_of(error: Exception) -> Kind:
    """What an error is called outside; anything unforeseen is an internal error."""
    if isinstance(error, errors.InvalidInputError):
        return kind_of(error.error)
    if isinstance(error, errors.UnavailableError):
        return Kind(503, error.status, TABLE[errors.UnavailableError].title)
    if isinstance(error, HTTPException):
        phrase = http.HTTPStatus(error.status_code).phrase
        return Kind(error.status_code, phrase.lower().replace(" ", "_").replace("-", "_"), phrase)
    return next((TABLE[cls] for cls in type(error).__mro__ if cls in TABLE), INTERNAL)


def problem_response(error: Exception, request_id: str) -> Response:
    """The response to an error. Says nothing about errors that were not raised on purpose."""
    kind = kind_of(error)
    detail = shorten(_detail(error, kind))
    faults = [FieldProblem(shorten(fault.message), list(fault.loc)) for fault in _faults(error)]
    body = Problem(
        type=f"urn:bert-service:problem:{kind.code}",
        title=kind.title,
        status=kind.status,
        detail=detail,
        code=kind.code,
        request_id=request_id,
        error=detail,
        errors=faults,
    )
    return Response(to_json(body), kind.status, headers=_headers(error), media_type=MEDIA_TYPE)


def install(app: FastAPI) -> None:
    """Answer every error that is raised on purpose. The rest reaches `middleware.UnhandledErrorMiddleware`."""

    async def handle(request: Request, error: Exception) -> Response:
        if kind_of(error).status == 500:
            logger.error("%s", error, extra={"request_id": request.scope["request_id"]})
        return problem_response(error, request.scope["request_id"])

    for cls in (errors.ServiceError, HTTPException):
        app.add_exception_handler(cls, handle)


def _detail(error: Exception, kind: Kind) -> str:
    if isinstance(error, HTTPException):
        return _HTTP_DETAILS.get(error.status_code, kind.title)
    return str(error) if kind is not INTERNAL else "an internal error; the request id finds it in the log"


def _faults(error: Exception) -> list[errors.FieldError]:
    if isinstance(error, errors.InvalidRequestError):
        return error.errors
    if isinstance(error, errors.InvalidInputError):
        return [errors.FieldError(str(error), error.loc)]
    return []


def _headers(error: Exception) -> dict[str, str]:
    if retry_after := getattr(error, "retry_after", None):
        return {"Retry-After": str(retry_after)}
    if isinstance(error, errors.UnauthorizedError):
        return {"WWW-Authenticate": error.challenge}
    if isinstance(error, HTTPException):
        return dict(error.headers or {})
    return {}


def shorten(text: str, most: int = _MAX_DETAIL) -> str:
    """At most so many characters of what may be the caller's own text."""
    return text if len(text) <= most else text[: most - 1] + "…"
