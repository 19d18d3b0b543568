"""The FastAPI application."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware
from starlette.types import Receive, Scope, Send

from app.api import openapi, problems
from app.api.admission import BUFFERED_BYTES
from app.api.middleware import AnswerMiddleware, RequestContextMiddleware
from app.api.protocols import ADAPTERS
from app.api.routes import operations, pages, tasks
from app.api.task_route import TaskRoute
from app.inference.process_pool import ProcessPool
from app.inference.types import Backend, BackendConfig
from app.observability import tracing
from app.observability.log_config import log_config
from app.observability.metrics import Metrics
from app.scheduling.byte_budget import ByteBudget
from app.scheduling.engine import Engine
from app.scheduling.lifecycle import Lifecycle
from app.settings import Settings, version
from model.inference.cpu_features import available_cpus

DESCRIPTION = """\
Masked words, next sentences and sentiment from a BERT that was built and trained from scratch.

Every error is a [problem document](https://www.rfc-editor.org/rfc/rfc9457). Every response has the header
`X-Request-ID`."""


class Service(FastAPI):
    """FastAPI, but a task goes to its route by a shorter way, where nothing is configured that has to see it."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._tasks = RequestContextMiddleware(AnswerMiddleware(super().__call__))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """An ASGI app."""
        is_task = scope["type"] == "http" and scope["method"] == "POST" and scope["path"] in self.state.tasks
        if not is_task or self.state.settings.cors_origins or self.state.traced:
            await super().__call__(scope, receive, send)
        else:
            scope["app"] = self
            await self._tasks(scope, receive, send)


def create_app(settings: Settings, backend: Backend | None = None, *, serves_while_loading: bool = False) -> Service:
    """Make the ASGI app. Its lifespan loads the weights, and raises if they cannot be loaded.

    Args:
        serves_while_loading: Whether start-up ends before the models are loaded. Then requests get 503 until they are,
            and a failed load raises nothing: `lifecycle.failure` has the reason.
    """
    metrics = Metrics()
    lifecycle = Lifecycle(lambda: backend or _process_pool(settings), settings, metrics)
    engine = Engine(lifecycle, metrics)
    metrics.read_tokens_per_second(lambda: engine.scheduler.throughput.tokens_per_second)
    metrics.read_queue_requests(lambda: engine.scheduler.unanswered_requests)
    metrics.read_queue_tokens(lambda: engine.scheduler.queued_tokens)
    metrics.read_event_loop_lag(lambda: lifecycle.event_loop_lag)
    metrics.inference_time.read = lambda: lifecycle.current.backend.process_seconds()
    metrics.read_ready(lambda: lifecycle.status == "ready")

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.traced = tracing.enabled()
        lifecycle.start()
        try:
            if not serves_while_loading:
                await lifecycle.wait_until_ready()
            yield
        finally:
            await engine.close()

    routes = [*tasks.ROUTES, *(route for adapter in ADAPTERS for route in adapter.ROUTES)]
    app = Service(
        routes=routes,  # `include_router` would replace `TaskRoute.answer` by FastAPI's own handler
        title="BERT service",
        version=version(),
        description=DESCRIPTION,
        lifespan=lifespan,
        openapi_url=None,  # and no pages of FastAPI: `pages` has ours
        redirect_slashes=False,
        telemetry=tracing.config(),
    )
    app.state.settings, app.state.metrics, app.state.traced = settings, metrics, False
    app.state.lifecycle, app.state.engine = lifecycle, engine
    app.state.uploads = ByteBudget(
        settings.max_upload_bytes, metrics, free=BUFFERED_BYTES, what="bytes are being uploaded"
    )
    app.state.tasks = {route.path: route for route in routes if isinstance(route, TaskRoute)}
    app.include_router(operations.router)
    if settings.metrics != "off":
        app.include_router(operations.metrics_router)
    if settings.docs != "off":
        app.include_router(pages.router)
        openapi.install(app, settings, [adapter.TAG for adapter in ADAPTERS])
    problems.install(app)
    app.add_middleware(AnswerMiddleware)  # inside CORS, so that browsers can read its answers
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=["GET", "HEAD", "POST"],
            allow_headers=["*"],  # Hugging Face's client sends User-Agent, tracers send traceparent
            allow_private_network="*" not in settings.cors_origins,  # Chrome asks before it calls a local address
            expose_headers=["X-Request-ID", "Server-Timing", "Retry-After", "Inference-Header-Content-Length"],
        )
    app.add_middleware(RequestContextMiddleware)  # outermost
    return app


def _process_pool(settings: Settings) -> ProcessPool:
    return ProcessPool(
        BackendConfig(
            settings.pretrained,
            settings.sentiment,
            device=settings.device,
            dtype=settings.dtype,
            threads=settings.threads or available_cpus(),
            logs=log_config(settings.log_format, settings.log_level),
        )
    )
