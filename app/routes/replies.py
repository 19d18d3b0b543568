"""What the task routes share: their way of answering."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response
from pydantic_core import to_json

from app import traces
from app.engine import Reply
from app.json_route import JSONRoute, TaskRequest


def task_router(prefix: str = "", **options: Any) -> APIRouter:
    """A router for endpoints `(body: Schema, request: TaskRequest) -> Response`."""
    return APIRouter(prefix=prefix, route_class=JSONRoute, **options)


def respond(request: TaskRequest, task: str, reply: Reply[Any], body: Any) -> Response:
    """A body of dataclasses as JSON, with the times it took."""
    times = reply.timings
    request.metrics.latency(task, tokenize=times.tokenize, queue=times.queue, inference=times.inference)
    stages = (("tokenize", times.tokenize), ("queue", times.queue), ("inference", times.inference))
    traces.note_stages(*stages)
    timing = ", ".join(f"{name};dur={seconds * 1000:.3f}" for name, seconds in stages)
    return Response(to_json(body), headers={"Server-Timing": timing}, media_type="application/json")
