"""What every response of the app goes through: plain ASGI layers (BaseHTTPMiddleware costs a task each)."""

from __future__ import annotations

import asyncio
import logging
import time
from ipaddress import ip_address
from urllib.parse import quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.auth import check_host
from app.api.problems import problem_response
from app.errors import HostNotAllowedError, UnavailableError
from app.observability import tracing
from app.observability.metrics import Metrics
from app.observability.request_ids import request_id_of
from app.scheduling.engine import Engine
from app.settings import Settings

logger = logging.getLogger(__name__)


def logs_requests() -> bool:
    """Whether each request leaves a line in the log: at the level `debug`."""
    return logger.isEnabledFor(logging.DEBUG)


class RequestContextMiddleware:
    """Request id, allowed hosts, count by status, a line in the log, and `Connection: close` while draining."""

    def __init__(self, app: ASGIApp, engine: Engine, metrics: Metrics, settings: Settings) -> None:
        self.app = app
        self.engine = engine
        self.metrics = metrics
        self.allowed_hosts = settings.allowed_hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status, method = time.perf_counter(), 0, scope["method"]
        scope = _as_get(scope)
        request_id = scope["request_id"] = request_id_of(scope["headers"])
        tracing.note_request(request_id, scope["query_string"])
        task = scope["app"].state.tasks.get(scope["path"]) if scope["method"] == "POST" else None

        async def send_with_context(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["X-Request-ID"] = request_id
                if self.engine.status == "draining" and not scope.get("pipeline"):  # others wait for their turn
                    headers["Connection"] = "close"
                status = scope.get("rejected_with", message["status"])  # answered without the app, in the end
                if task is not None:
                    self.metrics.request(task, status)
                _log(scope, method, status)
            await send(message)
            if task is not None and message["type"] == "http.response.body" and not message.get("more_body"):
                self.metrics.duration(task, status, time.perf_counter() - started)

        try:
            if self.allowed_hosts:
                check_host(Headers(scope=scope).get("host", ""), self.allowed_hosts)
        except HostNotAllowedError as error:
            await problem_response(error, request_id)(scope, receive, send_with_context)
        else:
            await self.app(scope, receive, send_with_context)


class UnhandledErrorMiddleware:
    """An answer to what nobody caught, and to what is cut off when the time for draining is over."""

    def __init__(self, app: ASGIApp, engine: Engine) -> None:
        self.app = app
        self.engine = engine

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def send_noticed(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self.app(scope, receive, send_noticed)
        except Exception as error:
            if scope["type"] != "http" or started:
                raise
            logger.exception("unhandled error", extra={"request_id": scope["request_id"]})
            await problem_response(error, scope["request_id"])(scope, receive, send)
        except asyncio.CancelledError:
            if scope["type"] != "http" or started or not self.engine.refusing:
                raise
            stopped = UnavailableError("stopped")
            await problem_response(stopped, scope["request_id"])(scope, receive, send)


def _log(scope: Scope, method: str, status: int) -> None:
    """Uvicorn's own lines lack the request's id. Quoted, a path cannot begin a line of its own."""
    if logs_requests():
        line = f'{_address(scope)} "{method} {quote(scope["path"])}" {status}'
        logger.debug(line, extra={"request_id": scope["request_id"]})


def _address(scope: Scope) -> str:
    """Of the caller; a proxy's `X-Forwarded-For` may hold anything."""
    host, port = scope["client"] or ("", 0)
    try:
        return f"{ip_address(host.partition('%')[0])}:{port}"  # without a zone, which may be anything too
    except ValueError:
        return "-"


def _as_get(scope: Scope) -> Scope:
    """HEAD is GET whose body the server leaves out."""
    return dict(scope, method="GET") if scope["method"] == "HEAD" else scope
