"""What the task routes share: their documentation and their way of answering."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response
from pydantic_core import to_json

from app.engine import Reply
from app.json_route import JSONRoute, TaskRequest
from app.problems import MEDIA_TYPE

_STATUSES = {
    400: "The body is no JSON.",
    401: "API keys are configured, and none or a wrong one came.",
    404: "The loaded checkpoint cannot do this task.",
    413: "Too many bytes, inputs or tokens for one request.",
    415: "The body is not declared as JSON.",
    422: "Well-formed but meaningless: wrong types, empty or too long a text, no mask, unknown target.",
    429: "The queue is full. `Retry-After` says when to try again.",
    500: "The model failed on this input.",
    503: "Loading, draining or broken. `Retry-After` says when to try again.",
    504: "The deadline passed (`X-Request-Timeout-Ms`, or the server's own).",
}
PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {
        "description": description,
        "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
    for status, description in _STATUSES.items()
}
_HEADERS = [
    {
        "name": "X-Request-Timeout-Ms",
        "in": "header",
        "description": "Milliseconds after which the answer is of no use; at most the server's own limit.",
        "schema": {"type": "integer", "minimum": 1},
    },
    {
        "name": "X-Request-ID",
        "in": "header",
        "description": "Comes back in the response and stands in the log.",
        "schema": {"type": "string", "maxLength": 128},
    },
]


def task_router(prefix: str = "", **options: Any) -> APIRouter:
    """A router for endpoints `(body: Schema, request: TaskRequest) -> Response`."""
    return APIRouter(prefix=prefix, route_class=JSONRoute, **options)


def documented(response: Any, example: Any) -> dict[str, Any]:
    """Arguments of `router.post` that document an endpoint which returns a ready response."""
    ok = {"model": response, "content": {"application/json": {"example": example}}}
    return {"responses": {200: ok, **PROBLEMS}, "openapi_extra": {"parameters": _HEADERS}}


def respond(request: TaskRequest, task: str, reply: Reply[Any], body: Any) -> Response:
    """A body of dataclasses as JSON, with the times it took."""
    times = reply.timings
    request.metrics.latency(task, tokenize=times.tokenize, queue=times.queue, inference=times.inference)
    stages = (("tokenize", times.tokenize), ("queue", times.queue), ("inference", times.inference))
    timing = ", ".join(f"{name};dur={seconds * 1000:.3f}" for name, seconds in stages)
    return Response(to_json(body), headers={"Server-Timing": timing}, media_type="application/json")
