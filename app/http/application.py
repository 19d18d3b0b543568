"""The FastAPI application."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.batching.lifecycle import Lifecycle
from app.errors import HostNotAllowedError, UnavailableError
from app.http import native, openapi, operations, pages, problems
from app.http.auth import check_host
from app.http.context import RequestContext, Service, begin, context_of
from app.http.handle import TaskRoute
from app.http.protocols import ADAPTERS
from app.inference.contract import Backend, BackendConfig
from app.inference.process_pool import ProcessPool
from app.observability import tracing
from app.observability.log_config import log_config
from app.observability.metrics import Metrics
from app.settings import Settings, version
from app.tasks import TASKS
from app.tasks.task import Task
from model.inference.cpu_features import available_cpus

DESCRIPTION = """\
Masked words, next sentences and sentiment from a BERT that was built and trained from scratch.

Every error is a [problem document](https://www.rfc-editor.org/rfc/rfc9457). Every response has the header
`X-Request-ID`."""


class Application(FastAPI):
    """FastAPI with a context for each request. Unless CORS or tracing is on, a task request goes straight to its route,
    because FastAPI's routing takes 43 us."""

    def __init__(self, service: Service, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle an ASGI connection."""
        if scope["type"] != "http":
            await super().__call__(scope, receive, send)
            return
        service = self.service
        context, scope_as_sent = begin(service, scope), scope
        if scope["query_string"]:  # may hold a caller's text; agents within the app would write it into their spans
            scope, context.has_query = dict(scope, query_string=b""), True
            tracing.remove_query()
        if scope["method"] == "HEAD":  # the server leaves the body out
            scope = dict(scope, method="GET")

        async def send_with_context(message: Message) -> None:
            if message["type"] == "http.response.start":
                _complete(message, context)
            try:
                await send(message)
            finally:
                if message["type"] == "http.response.body" and not message.get("more_body"):
                    context.finish(scope_as_sent)

        try:
            check_host(scope, service.settings.allowed_hosts)
        except HostNotAllowedError as error:
            await problems.error_response(error, context)(scope, receive, send_with_context)
            return
        if context.route is None or service.settings.cors_origins or service.is_traced:
            await super().__call__(scope, receive, send_with_context)
        else:
            await respond(super().__call__, scope, receive, send_with_context)


def _complete(message: Message, context: RequestContext) -> None:
    """Add the service's headers to the start of a response, and the request id to the request's span."""
    context.status = message["status"]
    headers = [*message.get("headers", ()), (b"x-request-id", context.request_id.encode())]
    if context.is_last():
        headers.append((b"connection", b"close"))
    message["headers"] = headers
    if context.service.is_traced:
        tracing.note_request(context.request_id)


class RespondMiddleware:
    """Applies `respond`. It is inside CORS, so browsers can read the responses to errors."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await (respond(self.app, scope, receive, send) if scope["type"] == "http" else self.app(scope, receive, send))


async def respond(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Call the route of a task, or `app` for other paths, and respond to its errors. Requests that are cancelled at the
    end of draining get 503."""
    context = context_of(scope)
    route = None if context.service.is_traced else context.route  # FastAPI's router names the span
    try:
        await (route.answer if route else app)(scope, receive, send)
    except Exception as error:
        if context.status:  # the response has begun
            raise
        await problems.error_response(error, context)(scope, receive, send)
    except asyncio.CancelledError:
        if context.status or not context.service.lifecycle.refusing:
            raise
        await problems.error_response(UnavailableError("stopped"), context)(scope, receive, send)


def create_app(
    settings: Settings,
    backend: Backend | None = None,
    *,
    tasks: Sequence[Task] = TASKS,
    serves_while_loading: bool = False,
) -> Application:
    """Make the ASGI app. Its lifespan loads the weights, and raises if they cannot be loaded.

    Args:
        backend: The backend; by default, inference processes.
        serves_while_loading: Whether start-up ends before the models are loaded. Then requests get 503 until they are,
            and a failed load raises nothing: `lifecycle.failure` has the reason.
    """
    metrics = Metrics()
    lifecycle = Lifecycle(lambda: backend or _process_pool(settings), settings, metrics)
    service = Service(settings, metrics, lifecycle, tasks)
    metrics.read_tokens_per_second(lambda: lifecycle.engine.throughput.tokens_per_second)
    metrics.read_queue_requests(lambda: lifecycle.unanswered_requests)
    metrics.read_queue_tokens(lambda: lifecycle.queued_tokens)
    metrics.read_event_loop_lag(lambda: lifecycle.event_loop_lag)
    metrics.inference_time.read = lambda: lifecycle.engine.backend.process_seconds()
    metrics.read_ready(lambda: lifecycle.status == "ready")

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.is_traced = tracing.enabled()
        lifecycle.start()
        try:
            if not serves_while_loading:
                await lifecycle.wait_until_ready()
            yield
        finally:
            await lifecycle.aclose()
            service.threads.shutdown(wait=False, cancel_futures=True)

    routes = [route for adapter in (native, *ADAPTERS) for route in adapter.routes(tasks)]
    routes += operations.router.routes
    routes += operations.metrics_router.routes if settings.metrics != "off" else []
    routes += pages.router.routes if settings.docs != "off" else []
    for route in routes:
        if isinstance(route, TaskRoute):
            if route.path in service.routes:
                raise ValueError(f"two tasks have the path {route.path}")
            service.routes[route.path] = route
    app = Application(
        service,
        routes=routes,  # `include_router` would replace `TaskRoute.answer` by FastAPI's own handler
        title="BERT service",
        version=version(),
        description=DESCRIPTION,
        lifespan=lifespan,
        openapi_url=None,  # also turns off FastAPI's pages: `pages` has ours
        redirect_slashes=False,
        telemetry=tracing.config(),
    )
    if settings.docs != "off":
        openapi.install(app, settings, [adapter.TAG for adapter in ADAPTERS])
    problems.install(app)
    app.add_middleware(RespondMiddleware)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=["GET", "HEAD", "POST"],
            allow_headers=["*"],  # Hugging Face's client sends User-Agent, tracers send traceparent
            allow_private_network="*" not in settings.cors_origins,  # Chrome asks before it calls a local address
            expose_headers=["X-Request-ID", "Server-Timing", "Retry-After", "Inference-Header-Content-Length"],
        )
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
