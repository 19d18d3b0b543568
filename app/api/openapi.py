"""The OpenAPI document: good enough to generate clients from. `docs/openapi.json` is the versioned one.

`python -m app.api > docs/openapi.json` rewrites it; a test fails until that is done.
"""

from __future__ import annotations

import json
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
    401: (
        "API keys are configured, and none or a wrong one came.",
        errors.UnauthorizedError(HOW_TO_SEND_A_KEY),
    ),
    404: (
        "The loaded checkpoint cannot do this task.",
        errors.TaskNotServedError("the loaded checkpoint has no head for next-sentence"),
    ),
    413: (
        "Too many bytes, inputs or tokens for one request.",
        errors.TooLargeError("the request has 600 inputs, one may carry 512"),
    ),
    415: (
        "The body is not declared as JSON: no `Content-Type`, or another one.",
        errors.UnsupportedMediaTypeError("send JSON with the header Content-Type: application/json"),
    ),
    422: (
        "Well-formed but meaningless: wrong types, empty or too long a text, no mask, unknown target.",
        errors.InvalidInputError(TextTooLongError(tokens=614, limit=512), ("inputs", 3)),
    ),
    429: (
        "The queue is full, or too long for the server's deadline, or too many bytes are being uploaded; the "
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
_REQUEST_ID = {
    "X-Request-ID": {
        "description": "The caller's own, or one that was made.",
        "schema": {"type": "string"},
    }
}
_RETRY_AFTER = {"Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer", "minimum": 1}}}
_CHALLENGE = {"WWW-Authenticate": {"description": "That a key is wanted, as `Bearer`.", "schema": {"type": "string"}}}
_SERVER_TIMING = {
    "Server-Timing": {
        "description": "Milliseconds per stage: `tokenize;dur=0.1, queue;dur=0.2, inference;dur=3.4`.",
        "schema": {"type": "string"},
    }
}
_PARAMETERS = [
    {
        "name": "X-Request-Timeout-Ms",
        "in": "header",
        "description": "Milliseconds after which the answer is of no use; at most the server's own limit.",
        "schema": {"type": "integer", "minimum": 1},
    },
    {
        "name": "X-Request-ID",
        "in": "header",
        "description": "Comes back in the response and stands in the log, with an error 500 or at the level "
        "`debug`, if it has up to 128 letters, digits and `._:/+=-`; else another is made.",
        "schema": {"type": "string"},
    },
]
_TAGS = [
    {"name": "tasks", "description": "Ask the models."},
    {"name": "Hugging Face clients", "description": "The same in the wire shapes of Hugging Face's clients."},
    {
        "name": "operations",
        "description": "Health, limits, metrics; the first two never ask for an API key.",
    },
]
_API_KEY = {"type": "http", "scheme": "bearer", "description": "One of the keys in BERT_API_KEYS."}

Responses = dict[int | str, dict[str, Any]]


def task(response: Any, example: Any) -> dict[str, Any]:
    """Arguments of `router.post` that document a task which returns a ready response."""
    ok = {
        "model": response,
        "description": "One answer per input, in order.",
        "headers": _REQUEST_ID | _SERVER_TIMING,
        "content": {"application/json": {"example": example}},
    }
    return {"responses": {200: ok} | problems(*_PROBLEMS), "openapi_extra": {"parameters": _PARAMETERS}}


def answer(example: Any) -> Responses:
    """The 200 of an operation that takes no body."""
    content = {"application/json": {"example": example}}
    return {200: {"description": "The answer.", "headers": _REQUEST_ID, "content": content}}


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
        return _CHALLENGE
    return _RETRY_AFTER if hasattr(error, "retry_after") else {}


def install(app: FastAPI, settings: Settings) -> None:
    """Let `app.openapi()` write the whole document: FastAPI leaves out what every error refers to."""
    app.openapi_tags = _TAGS
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = generate()
            _add_problem(document["components"]["schemas"])
            _leave_out_defaults(document["components"]["schemas"])
            if settings.metrics == "key":
                document["paths"]["/metrics"]["get"]["responses"] |= {"401": problem(*_PROBLEMS[401])}
            if settings.api_keys:
                _ask_for_keys(document)
        return app.openapi_schema or {}

    app.openapi = openapi  # type: ignore[method-assign]


def _add_problem(schemas: dict[str, Any]) -> None:
    problem = TypeAdapter(Problem).json_schema(ref_template="#/components/schemas/{model}")
    schemas |= problem.pop("$defs") | {"Problem": problem}
    for name in ("HTTPValidationError", "ValidationError"):  # FastAPI's own, which are never sent
        schemas.pop(name, None)


def _leave_out_defaults(schemas: dict[str, Any]) -> None:
    """Generators for TypeScript take a field with a default for one that is always there."""
    for schema in schemas.values():
        for field in schema.get("properties", {}).values():
            field.pop("default", None)


def _ask_for_keys(document: dict[str, Any]) -> None:
    """What asks for a key is what documents a 401."""
    document["components"]["securitySchemes"] = {"apiKey": _API_KEY}
    for operations in document["paths"].values():
        for operation in operations.values():
            if "401" in operation["responses"]:
                operation["security"] = [{"apiKey": []}]
