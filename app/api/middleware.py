"""Middleware around the whole app, as plain ASGI: BaseHTTPMiddleware would start a task per request."""

from __future__ import annotations

import asyncio
import logging
import time
from ipaddress import ip_address
from urllib.parse import quote

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api import problems
from app.api.auth import check_host
from app.errors import HostNotAllowedError, UnavailableError
from app.observability import tracing
from app.observability.request_ids import request_id_of

logger = logging.getLogger(__name__)


def logs_requests() -> bool:
    """Whether each request is logged, which is so at the level `debug`."""
    return logger.isEnabledFor(logging.DEBUG)


class RequestContextMiddleware:
    """Sets the request id, checks the host, and counts, times and logs requests. Closes connections while draining, and
    those above their limit."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = time.perf_counter()
        method, state = scope["method"], scope["app"].state
        if method == "HEAD":  # the server leaves the body out
            scope = dict(scope, method="GET")
        request_id = scope["request_id"] = request_id_of(scope["headers"])
        tracing.note_request(state.traced, request_id, scope["query_string"])
        route = scope["task_route"] = state.tasks.get(_path_in_app(scope)) if method == "POST" else None
        task = None if route is None else route.task
        scope["logged"] = {} if task is None else {"task": str(task)}

        async def send_with_context(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [header for header in message.get("headers", ()) if header[0] != b"x-request-id"]
                headers.append((b"x-request-id", request_id.encode()))
                closes = state.lifecycle.is_draining or scope.get("is_surplus")
                if closes and not scope.get("pipeline"):  # no pipelined request waits
                    headers.append((b"connection", b"close"))
                message["headers"] = headers
                scope["status"] = scope.get("rejected_with", message["status"])  # the HTTP protocol may have answered
            try:
                await send(message)
            finally:
                if message["type"] == "http.response.body" and not message.get("more_body"):
                    seconds = time.perf_counter() - started
                    if task is not None:
                        state.metrics.answered(task, scope["status"], seconds)
                    _log(scope, method, seconds)

        try:
            check_host(scope, state.settings.allowed_hosts)
        except HostNotAllowedError as error:
            await problems.error_response(error, scope)(scope, receive, send_with_context)
        else:
            await self.app(scope, receive, send_with_context)


class AnswerMiddleware:
    """Calls a task's route directly, because FastAPI's routing takes 43 us. Answers errors, and requests that are
    cancelled at the end of draining (503)."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = scope.get("task_route")
        # With traces, FastAPI's router has to run: it names the span.
        app = self.app if route is None or scope["app"].state.traced else route.answer
        try:
            await app(scope, receive, send)
        except Exception as error:
            if scope["type"] != "http" or "status" in scope:  # set when the answer begins
                raise
            await problems.error_response(error, scope)(scope, receive, send)
        except asyncio.CancelledError:
            if scope["type"] != "http" or "status" in scope or not scope["app"].state.lifecycle.refusing:
                raise
            await problems.error_response(UnavailableError("stopped"), scope)(scope, receive, send)


def _log(scope: Scope, method: str, seconds: float) -> None:
    """Log one request with its id. The path is quoted, so that it cannot add lines to the log."""
    if logs_requests():
        facts = {"client": _address(scope), "method": method, "path": quote(scope["path"]), "status": scope["status"]}
        facts |= {"milliseconds": round(seconds * 1000, 1)} | scope["logged"]
        line = " ".join(f"{name}={value}" for name, value in facts.items())
        logger.debug("%s", line, extra={"request_id": scope["request_id"], "facts": facts})


def _address(scope: Scope) -> str:
    """The caller's address, or `-` if a proxy's `X-Forwarded-For` gave something else."""
    host, port = scope["client"] or ("", 0)
    try:
        return f"{ip_address(host.partition('%')[0])}:{port}"  # without the zone, which is arbitrary text
    except ValueError:
        return "-"


def _path_in_app(scope: Scope) -> str:
    """The path without the prefix under which the app is mounted."""
    path: str = scope["path"]
    root = scope.get("root_path", "").rstrip("/")
    return path[len(root) :] if path.startswith(f"{root}/") else path
