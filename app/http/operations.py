"""Health, info and metrics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import PlainTextResponse
from typing_extensions import TypedDict

from app.batching.lifecycle import Status
from app.errors import UnavailableError
from app.http import openapi as document
from app.http.auth import check_metrics
from app.http.context import service_of
from app.inference.contract import Head, ServedModel
from app.observability.metrics import CONTENT_TYPE
from app.tasks.schemas import described
from app.tasks.task import Task

router = APIRouter(tags=["operations"])
metrics_router = APIRouter(tags=["operations"], dependencies=[Depends(check_metrics)])

_INFO = {
    "version": "0.4.0",
    "status": "ready",
    "device": "cpu",
    "dtype": "float32",
    "threads": 2,
    "tokens_per_second": 52000,
    "models": [  # one model: FastAPI would leave out the null fields of the other
        {
            "name": "sentiment",
            "tasks": ["sentiment"],
            "parameters": 10590338,
            "layers": 4,
            "hidden_size": 384,
            "heads": 6,
            "vocab_size": 8192,
            "max_tokens": 512,
            "labels": ["NEGATIVE", "POSITIVE"],
            "problem_type": "single_label_classification",
            "sha256": "803b8a0bd3c345c20aef1dc4f5af10890535781c03bdf47a50f72a85430e4809",
        },
    ],
    "limits": {
        "max_batch_tokens": 2048,
        "max_queue_tokens": 1560000,
        "max_client_batch": 512,
        "max_body_bytes": 2097152,
        "request_timeout_ms": 30000,
    },
}
_METRICS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Metrics in Prometheus' text format.",
        "content": {"text/plain": {"schema": {"type": "string"}, "example": "bert_queue_tokens 0.0\n"}},
    }
}


@described
class Health(TypedDict):
    """The state of the service."""

    status: Literal["alive", "ready"]


@described
class ModelInfo(TypedDict):
    """One loaded checkpoint."""

    name: str
    tasks: list[str]
    """Tasks of this checkpoint, such as fill-mask, next-sentence, sentiment."""
    parameters: int
    layers: int
    hidden_size: int
    heads: int
    vocab_size: int
    max_tokens: int
    """Tokens of one input, special tokens included. A longer input is refused or cut."""
    labels: list[str] | None
    """A classifier's labels in the order of their ids."""
    problem_type: str | None
    """A classifier's problem type as in `config.json`, which says how its scores are computed."""
    sha256: str
    """SHA-256 of the file `model.safetensors`; if there are several weight files, of all `*.safetensors` end to end, in
    the order of their names."""


@described
class Limits(TypedDict):
    """Limits of a request: on its size (beyond it, the response is 413 or 429), and on its time (504)."""

    max_batch_tokens: int
    """Tokens of one forward pass: as set, or derived from the measured speed."""
    max_queue_tokens: int
    """Tokens that may wait ahead of a request, its own included, if they can be computed before the deadline."""
    max_client_batch: int
    """Maximum number of inputs in one request."""
    max_body_bytes: int
    request_timeout_ms: int


@described
class Info(TypedDict):
    """The service and the checkpoints that it has loaded."""

    version: str
    status: Status
    device: str
    dtype: str
    threads: int
    """Number of CPU cores for inference."""
    tokens_per_second: int
    """Speed with full batches, measured at start-up, later on requests. 0 while loading."""
    models: list[ModelInfo]
    """The loaded models; empty during loading."""
    limits: Limits


@router.get(
    "/health/live",
    operation_id="health_live",
    summary="Liveness",
    responses=document.ok_response({"status": "alive"}) | document.refusals(503),
)
async def live(request: Request) -> Health:
    """200, or 503 once inference processes have ended and cannot be replaced."""
    if (status := service_of(request).lifecycle.status) == "broken":
        raise UnavailableError(status)
    return {"status": "alive"}


@router.get(
    "/health/ready",
    operation_id="health_ready",
    summary="Readiness",
    responses=document.ok_response({"status": "ready"}) | document.refusals(503),
)
async def ready(request: Request) -> Health:
    """200 after a forward pass of each model has succeeded, while no batch hangs and the service is not draining."""
    if (status := service_of(request).lifecycle.status) != "ready":
        raise UnavailableError(status, retry_after=1)
    return {"status": "ready"}


@router.get("/info", operation_id="info", summary="Models and limits", responses=document.ok_response(_INFO))
async def info(request: Request) -> Info:
    """Models, device, precision, limits and version."""
    service = service_of(request)
    engine, settings = service.lifecycle.engine, service.settings
    backend = engine.backend.info
    return {
        "version": request.app.version,
        "status": service.lifecycle.status,
        "device": backend.device,
        "dtype": backend.dtype,
        "threads": backend.threads,
        "tokens_per_second": round(engine.throughput.tokens_per_second),
        "models": [_model(served, service.tasks) for served in backend.models.values()],
        "limits": {
            "max_batch_tokens": engine.throughput.batch_tokens,
            "max_queue_tokens": engine.admission.max_queue_tokens,
            "max_client_batch": settings.max_client_batch,
            "max_body_bytes": settings.max_body_bytes,
            "request_timeout_ms": settings.request_timeout_ms,
        },
    }


@metrics_router.get(
    "/metrics",
    operation_id="metrics",
    summary="Prometheus metrics",
    response_class=PlainTextResponse,
    responses=_METRICS,
)
async def metrics(request: Request) -> Response:
    """Counters, gauges and histograms in Prometheus' text format."""
    return Response(service_of(request).metrics.render(), headers={"Content-Type": CONTENT_TYPE})


def _model(served: ServedModel, tasks: Sequence[Task]) -> ModelInfo:
    has_labels = Head.LABELS in served.heads
    return {
        "name": served.name,
        "tasks": [task.name for task in tasks if task.head in served.heads],
        "parameters": served.parameters,
        "layers": served.config.num_hidden_layers,
        "hidden_size": served.config.hidden_size,
        "heads": served.config.num_attention_heads,
        "vocab_size": served.config.vocab_size,
        "max_tokens": served.config.max_position_embeddings,
        "labels": list(served.config.labels) if has_labels else None,
        "problem_type": served.config.problem_type if has_labels else None,
        "sha256": served.sha256,
    }
