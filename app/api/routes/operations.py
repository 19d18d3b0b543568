"""Health, info and metrics."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import PlainTextResponse

from app.api import openapi as document
from app.api.auth import check_metrics
from app.errors import UnavailableError
from app.inference.types import ServedModel, Task
from app.observability.metrics import CONTENT_TYPE, Metrics
from app.scheduling.lifecycle import Lifecycle
from bert_client.wire import Health, Info, Limits, ModelInfo

router = APIRouter(tags=["operations"])
metrics_router = APIRouter(tags=["operations"], dependencies=[Depends(check_metrics)])

_INFO = {
    "version": "0.2.0",
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


def _lifecycle(request: Request) -> Lifecycle:
    return request.app.state.lifecycle


@router.get(
    "/health/live",
    operation_id="health_live",
    summary="Liveness",
    responses=document.ok_response({"status": "alive"}) | document.refusals(503),
)
async def live(request: Request) -> Health:
    """503 once inference processes have ended and cannot be replaced."""
    if (status := _lifecycle(request).status) == "broken":
        raise UnavailableError(status)
    return Health("alive")


@router.get(
    "/health/ready",
    operation_id="health_ready",
    summary="Readiness",
    responses=document.ok_response({"status": "ready"}) | document.refusals(503),
)
async def ready(request: Request) -> Health:
    """200 after a forward pass of each model has succeeded, while no batch hangs and the service is not draining."""
    if (status := _lifecycle(request).status) != "ready":
        raise UnavailableError(status, retry_after=1)
    return Health("ready")


@router.get("/info", operation_id="info", summary="Models and limits", responses=document.ok_response(_INFO))
async def info(request: Request) -> Info:
    """Models, device, precision, limits and version."""
    lifecycle, settings = _lifecycle(request), request.app.state.settings
    backend, throughput = lifecycle.current.backend.info, lifecycle.scheduler.throughput
    return Info(
        version=request.app.version,
        status=lifecycle.status,
        device=backend.device,
        dtype=backend.dtype,
        threads=backend.threads,
        tokens_per_second=round(throughput.tokens_per_second),
        models=[_model(served) for served in backend.models.values()],
        limits=Limits(
            max_batch_tokens=throughput.batch_tokens,
            max_queue_tokens=lifecycle.scheduler.max_queue_tokens,
            max_client_batch=settings.max_client_batch,
            max_body_bytes=settings.max_body_bytes,
            request_timeout_ms=settings.request_timeout_ms,
        ),
    )


@metrics_router.get(
    "/metrics",
    operation_id="metrics",
    summary="Prometheus metrics",
    response_class=PlainTextResponse,
    responses=_METRICS,
)
async def metrics(request: Request) -> Response:
    """Counters, gauges and histograms in Prometheus' text format."""
    collected: Metrics = request.app.state.metrics
    return Response(collected.render(), headers={"Content-Type": CONTENT_TYPE})


def _model(served: ServedModel) -> ModelInfo:
    return ModelInfo(
        name=served.name,
        tasks=list(served.tasks),
        parameters=served.parameters,
        layers=served.config.num_hidden_layers,
        hidden_size=served.config.hidden_size,
        heads=served.config.num_attention_heads,
        vocab_size=served.config.vocab_size,
        max_tokens=served.config.max_position_embeddings,
        labels=served.config.labels if Task.SENTIMENT in served.tasks else None,
        problem_type=served.config.problem_type if Task.SENTIMENT in served.tasks else None,
        sha256=served.sha256,
    )
