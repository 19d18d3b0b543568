"""What the task routes share: their way of answering."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response
from pydantic_core import to_json

from app.api.task_route import TaskRequest, TaskRoute
from app.observability import tracing
from app.scheduling.engine import Reply


def task_router(prefix: str = "", **options: Any) -> APIRouter:
    """A router for endpoints `(body: Schema, request: TaskRequest) -> Response`."""
    return APIRouter(prefix=prefix, route_class=TaskRoute, **options)


def respond(request: TaskRequest, task: str, reply: Reply[Any], body: Any) -> Response:
    """A body of dataclasses as JSON, with the times it took."""
    times = reply.timings
    request.metrics.latency(task, tokenize=times.tokenize, queue=times.queue, inference=times.inference)
    stages = (("tokenize", times.tokenize), ("queue", times.queue), ("inference", times.inference))
    tracing.note_stages(*stages)
    timing = ", ".join(f"{name};dur={seconds * 1000:.3f}" for name, seconds in stages)
    return Response(to_json(body), headers={"Server-Timing": timing}, media_type="application/json")
