"""The OpenAPI document, complete enough to generate clients from it. `docs/openapi.json` is a copy.

`python -m app.api > docs/openapi.json` updates the copy; a test fails while it differs.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI
from pydantic import TypeAdapter

from app import errors
from app.api.auth import HOW_TO_SEND_A_KEY
from app.api.problems import MEDIA_TYPE, problem_response
from app.settings import Settings
from bert_client.wire import Problem
from model.errors import TextTooLongError

_EXAMPLE_ID = "5d3e8f02c61ba794"
_PROBLEMS: dict[int, tuple[str, errors.ServiceError]] = {
    400: (
        "The body is not JSON, or the `Host` is not allowed.",
        errors.NotJSONError("Invalid JSON: EOF while parsing a value"),
    ),
    401: ("The API key is missing or invalid.", errors.UnauthorizedError(HOW_TO_SEND_A_KEY)),
    404: (
        "The loaded checkpoint has no head for this task.",
        errors.TaskNotServedError("the loaded checkpoint has no head for next-sentence; GET /info lists the tasks"),
    ),
    413: (
        "The request exceeds a limit on bytes, inputs or tokens.",
        errors.TooLargeError("the request has 600 inputs, one may carry 512; send several requests"),
    ),
    415: (
        "The `Content-Type` is missing or not JSON.",
        errors.UnsupportedMediaTypeError("send JSON with the header Content-Type: application/json"),
    ),
    422: (
        "Valid JSON that cannot be answered: wrong types, an empty or too long text, no mask, an unknown target.",
        errors.InvalidInputError(TextTooLongError(tokens=614, limit=512), ("inputs", 3)),
    ),
    429: (
        "The queue is full, or extends beyond the server's deadline, or too many bytes are being uploaded. The "
        "request was not started.",
        errors.QueueFullError(retry_after=2),
    ),
    500: ("The model failed on this input.", errors.InferenceError()),
    503: ("Loading, reloading, draining, stalled, stopped or broken.", errors.UnavailableError("loading")),
    504: (
        "The deadline passed (`deadline_exceeded`), or the caller's own, `X-Request-Timeout-Ms`, cannot be met "
        "(`deadline_unreachable`, with `Retry-After`).",
        errors.DeadlineUnreachableError(retry_after=2),
    ),
}


def _header(name: str, description: str, **schema: Any) -> dict[str, Any]:
    return {name: {"description": description, "schema": {"type": "string"} | schema}}


_REQUEST_ID = _header("X-Request-ID", "The caller's own id, or a new one.")
_RETRY_AFTER = _header("Retry-After", "Seconds to wait.", type="integer", minimum=1)
_WWW_AUTHENTICATE = _header("WWW-Authenticate", "`Bearer`: how to send a key.")
_SERVER_TIMING = _header(
    "Server-Timing", "Milliseconds per stage: `tokenize;dur=0.1, queue;dur=0.2, inference;dur=3.4`."
)
_PARAMETERS = [
    {
        "name": "X-Request-Timeout-Ms",
        "in": "header",
        "description": "Deadline of this request in milliseconds, if it is shorter than the server's own.",
        "schema": {"type": "integer", "minimum": 1},
    },
    {
        "name": "X-Request-ID",
        "in": "header",
        "description": "Returned in the response, and logged with every error 500 (at the level `debug`, with every "
        "request). At most 128 letters, digits and `._:/+=-`; otherwise a new id is made.",
        "schema": {"type": "string"},
    },
]
_TAGS = [
    {"name": "tasks", "description": "Predictions of the loaded models."},
    {"name": "operations", "description": "Health, limits and metrics. Health and limits never require an API key."},
]
_API_KEY = {"type": "http", "scheme": "bearer", "description": "One of the keys in BERT_API_KEYS."}

_BINARY = {
    "application/octet-stream": {
        "schema": {"type": "string", "format": "binary"},
        "example": '{"model_name": …, "outputs": …}, then the tensors',
    }
}

Responses = dict[int | str, dict[str, Any]]


def task(response: Any, example: Any, *, binary: bool) -> dict[str, Any]:
    """Arguments of `APIRoute` that document a task. `binary`: answers may also be `application/octet-stream`."""
    ok = {
        "model": response,
        "description": "One result per input, in order.",
        "headers": _REQUEST_ID | _SERVER_TIMING,
        "content": {"application/json": {"example": example}} | (_BINARY if binary else {}),
    }
    return {"responses": {200: ok} | problems(*_PROBLEMS), "openapi_extra": {"parameters": _PARAMETERS}}


def answer(example: Any) -> Responses:
    """The 200 response of an operation without a body."""
    content = {"application/json": {"example": example}}
    return {200: {"description": "Success.", "headers": _REQUEST_ID, "content": content}}


def problems(*statuses: int) -> Responses:
    """The error responses of an operation."""
    return {status: problem(*_PROBLEMS[status]) for status in statuses}


def problem(description: str, error: errors.ServiceError) -> dict[str, Any]:
    """One error response."""
    example = json.loads(bytes(problem_response(error, _EXAMPLE_ID).body))
    schema = {"$ref": "#/components/schemas/Problem"}
    return {
        "description": description,
        "headers": _REQUEST_ID | _headers(error),
        "content": {MEDIA_TYPE: {"schema": schema, "example": example}},
    }


def _headers(error: errors.ServiceError) -> dict[str, Any]:
    if isinstance(error, errors.UnauthorizedError):
        return _WWW_AUTHENTICATE
    return _RETRY_AFTER if hasattr(error, "retry_after") else {}


def install(app: FastAPI, settings: Settings, tags: Sequence[dict[str, str]]) -> None:
    """Complete `app.openapi()` with the schema of problems and with API keys. `tags`: further groups of operations."""
    app.openapi_tags = [*_TAGS, *tags]
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = generate()
            _add_problem(document["components"]["schemas"])
            for operation in (one for methods in document["paths"].values() for one in methods.values()):
                if "HTTPValidationError" in str(operation["responses"].get("422")):  # a name in a path is any string
                    del operation["responses"]["422"]
            _leave_out_defaults(document["components"]["schemas"])
            if settings.metrics == "key":
                document["paths"]["/metrics"]["get"]["responses"] |= {"401": problem(*_PROBLEMS[401])}
            _add_keys(document, required=bool(settings.api_keys))
        return app.openapi_schema or {}

    app.openapi = openapi  # type: ignore[method-assign]


def _add_problem(schemas: dict[str, Any]) -> None:
    problem = TypeAdapter(Problem).json_schema(ref_template="#/components/schemas/{model}")
    schemas |= problem.pop("$defs") | {"Problem": problem}
    for name in ("HTTPValidationError", "ValidationError"):  # FastAPI's own errors, which are never sent
        schemas.pop(name, None)


def _leave_out_defaults(schemas: dict[str, Any]) -> None:
    """Remove defaults: generators for TypeScript treat a field with a default as always present."""
    for schema in schemas.values():
        for field in schema.get("properties", {}).values():
            field.pop("default", None)


def _add_keys(document: dict[str, Any], *, required: bool) -> None:
    """Operations that document a 401 take a key. It is in the document also if none is required, so that generated
    clients can send one to other installations."""
    document["components"]["securitySchemes"] = {"apiKey": _API_KEY}
    for operations in document["paths"].values():
        for operation in operations.values():
            if "401" in operation["responses"]:
                operation["security"] = [{"apiKey": []}] if required else [{}, {"apiKey": []}]
