"""The OpenAPI document, complete enough to generate clients from it. `docs/openapi.json` is a copy.

`python -m app.http > docs/openapi.json` updates the copy; a test fails while it differs.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fastapi import FastAPI
from pydantic import TypeAdapter

from app import errors
from app.http import problems
from app.settings import Settings
from model.errors import EmptyTextError, TextTooLongError

_EXAMPLE_ID = "5d3e8f02c61ba794"
_EXAMPLES: dict[int, errors.ServiceError] = {
    400: errors.NotJSONError("Invalid JSON: EOF while parsing a value"),
    401: errors.UnauthorizedError("send an API key: Authorization: Bearer <key>"),
    404: errors.TaskNotServedError("the loaded checkpoint has no head for next-sentence; GET /info lists the tasks"),
    413: errors.TooLargeError("the request has 600 inputs, the limit is 512; send several requests"),
    415: errors.UnsupportedMediaTypeError("send JSON with the header Content-Type: application/json"),
    422: errors.InvalidInputError(
        [(TextTooLongError(614, limit=512), ("inputs", 3)), (EmptyTextError(""), ("inputs", 7))]
    ),
    429: errors.QueueFullError(retry_after=2),
    500: errors.InferenceError(),
    503: errors.UnavailableError("loading"),
    504: errors.DeadlineUnreachableError(retry_after=2),
}
"""An example error for each status that a task may have."""


def _header(name: str, description: str, **schema: Any) -> dict[str, Any]:
    return {name: {"description": description, "schema": {"type": "string"} | schema}}


_REQUEST_ID = _header("X-Request-ID", "The caller's own id, or a new one.")
_ERROR_HEADERS = {
    401: _header("WWW-Authenticate", "`Bearer`: how to send a key."),
    **dict.fromkeys((429, 503, 504), _header("Retry-After", "Seconds to wait.", type="integer", minimum=1)),
}
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
    """Arguments of `APIRoute` that document a task. `binary`: whether responses may be `application/octet-stream`."""
    ok = {
        "model": response,
        "description": "One result per input, in order.",
        "headers": _REQUEST_ID | _SERVER_TIMING,
        "content": {"application/json": {"example": example}} | (_BINARY if binary else {}),
    }
    return {"responses": {200: ok} | refusals(*_EXAMPLES), "openapi_extra": {"parameters": _PARAMETERS}}


def ok_response(example: Any) -> Responses:
    """The 200 response of an operation without a body."""
    content = {"application/json": {"example": example}}
    return {200: {"description": "Success.", "headers": _REQUEST_ID, "content": content}}


def refusals(*statuses: int) -> Responses:
    """The error responses of an operation."""
    return {status: _refusal(status) for status in statuses}


def _refusal(status: int) -> dict[str, Any]:
    """An error response: the problem types with this status, and an example."""
    example = _EXAMPLES[status]
    kinds = [kind for error, kind in problems.PROBLEM_TYPES.items() if kind.status == status and error != status]
    if status == 503:
        kinds = [replace(kinds[0], code="`, `".join(errors.UNAVAILABLE_STATUSES))]
    body = json.loads(bytes(problems.problem_response(example, _EXAMPLE_ID).body))
    schema = {"$ref": "#/components/schemas/Problem"}
    return {
        "description": ". ".join(f"{kind.title} (`{kind.code}`)" for kind in kinds),
        "headers": _REQUEST_ID | _ERROR_HEADERS.get(status, {}),
        "content": {problems.MEDIA_TYPE: {"schema": schema, "example": body}},
    }


def install(app: FastAPI, settings: Settings, tags: Sequence[dict[str, str]]) -> None:
    """Complete `app.openapi()` with the schema of problems and with API keys. `tags`: further groups of operations."""
    app.openapi_tags = [*_TAGS, *tags]
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = generate()
            _add_problem(document["components"]["schemas"])
            for operation in (one for methods in document["paths"].values() for one in methods.values()):
                if "HTTPValidationError" in str(operation["responses"].get("422")):  # FastAPI's own, never sent
                    del operation["responses"]["422"]
            _leave_out_defaults(document["components"]["schemas"])
            if settings.metrics == "key":
                document["paths"]["/metrics"]["get"]["responses"] |= {"401": _refusal(401)}
            _add_keys(document, required=bool(settings.api_keys))
        return app.openapi_schema or {}

    app.openapi = openapi  # type: ignore[method-assign]


def _add_problem(schemas: dict[str, Any]) -> None:
    problem = TypeAdapter(problems.Problem).json_schema(ref_template="#/components/schemas/{model}")
    schemas |= problem.pop("$defs") | {"Problem": problem}
    for name in ("HTTPValidationError", "ValidationError"):  # FastAPI's own errors, never sent
        schemas.pop(name, None)


def _leave_out_defaults(schemas: dict[str, Any]) -> None:
    """Remove defaults: generators for TypeScript treat a field with a default as always present."""
    for schema in schemas.values():
        for field in schema.get("properties", {}).values():
            field.pop("default", None)


def _add_keys(document: dict[str, Any], *, required: bool) -> None:
    """Let operations that document a 401 take a key. It is in the document even if none is required, so that generated
    clients can send one to other installations."""
    document["components"]["securitySchemes"] = {"apiKey": _API_KEY}
    for operations in document["paths"].values():
        for operation in operations.values():
            if "401" in operation["responses"]:
                operation["security"] = [{"apiKey": []}] if required else [{}, {"apiKey": []}]
