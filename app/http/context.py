"""`Service` and `RequestContext`: the state that the app and the ASGI scope carry."""

from __future__ import annotations

import itertools
import logging
import re
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any, Protocol
from urllib.parse import quote

from fastapi import Request
from starlette.types import Receive, Scope, Send

from app.batching.admission import ByteBudget
from app.batching.lifecycle import Lifecycle
from app.observability.metrics import Metrics
from app.settings import Settings, plain_address
from app.tasks.task import Task

logger = logging.getLogger(__name__)

_VALID_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")
"""Pattern of ids that are harmless in headers and logs."""
_ID_PREFIX = secrets.token_hex(8)  # once per process, because random bytes take 30 us per request
_id_numbers = itertools.count()

CONTEXT = "bert.context"
"""The key of a request's context in its ASGI scope."""


class Route(Protocol):
    """The path of a task."""

    task: Task

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to a request; an ASGI app. Raises errors of `app.errors`."""


@dataclass(slots=True)
class Service:
    """State that all requests share."""

    settings: Settings
    metrics: Metrics
    lifecycle: Lifecycle
    tasks: Sequence[Task]
    routes: dict[str, Route] = field(default_factory=dict)
    """The tasks' routes, by path."""
    is_traced: bool = False
    """Whether spans are recorded."""
    next_connection_warning: float = 0.0
    """`time.monotonic()` before which closed connections are not logged again."""
    uploads: ByteBudget = field(init=False)
    """Bytes of bodies that are being received."""
    threads: ThreadPoolExecutor = field(init=False)
    """Tokenizes long inputs."""

    def __post_init__(self) -> None:
        self.uploads = ByteBudget(self.settings.max_upload_bytes)
        self.threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="tokenize")


@dataclass(slots=True)
class RequestContext:
    """State of one request."""

    service: Service
    is_surplus: bool = False
    """Whether its connection is above the limit."""
    is_last: Callable[[], bool] = lambda: False
    """Returns whether the response ends the connection. Called when it begins."""
    started: float = field(default_factory=time.perf_counter)
    request_id: str = ""
    route: Route | None = None
    has_query: bool = False
    inputs: int = 0
    tokens: int = 0
    computation_started: bool = False
    status: int = 0
    """Status of the response; 0 until it begins."""
    problem: str = ""
    """Code of the error with which the service responds."""

    def finish(self, scope: Scope) -> None:
        """Count, time and log the request after its response is written. The path is quoted, so that it cannot add
        lines to the log."""
        seconds = time.perf_counter() - self.started
        if self.route is not None:
            self.service.metrics.answered(self.route.task.name, self.status, seconds)
        if not logger.isEnabledFor(logging.DEBUG):
            return
        known: dict[str, Any] = {
            "client": _address(scope),
            "method": scope["method"],
            "path": quote(scope["path"]),
            "status": self.status,
            "milliseconds": round(seconds * 1000, 1),
            "task": self.route and self.route.task.name,
            "inputs": self.inputs or None,
            "tokens": self.tokens or None,
            "problem": self.problem or None,
        }
        facts = {name: value for name, value in known.items() if value is not None}
        line = " ".join(f"{name}={value}" for name, value in facts.items())
        logger.debug("%s", line, extra={"request_id": self.request_id, "facts": facts})


def begin(service: Service, scope: Scope) -> RequestContext:
    """The context of a request, with its id and its task's route. The HTTP protocol may have made it; if not, it is
    new."""
    context: RequestContext | None = scope.get(CONTEXT)
    if context is None:
        context = scope[CONTEXT] = RequestContext(service)
    context.request_id = _request_id(scope["headers"])
    if scope["method"] == "POST":
        context.route = service.routes.get(path_in_app(scope))
    return context


def _request_id(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The caller's own `X-Request-ID` if it is valid, otherwise a new id."""
    for name, value in headers:
        if name == b"x-request-id" and _VALID_REQUEST_ID.fullmatch(given := str(value, "latin-1").strip(" \t")):
            return given
    return f"{_ID_PREFIX}{next(_id_numbers):016x}"


def context_of(scope: Scope) -> RequestContext:
    return scope[CONTEXT]


def service_of(request: Request) -> Service:
    return context_of(request.scope).service


def _address(scope: Scope) -> str:
    """The caller's address, or `-` if a proxy's `X-Forwarded-For` gave something else."""
    host, port = scope["client"] or ("", 0)
    try:
        return f"{ip_address(plain_address(host.partition('%')[0]))}:{port}"  # a zone is arbitrary text
    except ValueError:
        return "-"


def path_in_app(scope: Scope) -> str:
    """The path without the prefix under which the app is mounted."""
    path: str = scope["path"]
    root = scope.get("root_path", "").rstrip("/")
    return path[len(root) :] if path.startswith(f"{root}/") else path
