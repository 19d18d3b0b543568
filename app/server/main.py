"""Serve in this process: make the app, listen, and end with an exit code that says why."""

from __future__ import annotations

import os
import socket

import uvicorn

from app.api.application import create_app
from app.api.auth import announce
from app.observability.log_config import log_config, log_fatal
from app.scheduling.engine import Engine
from app.server.draining_server import DrainingServer
from app.server.http_protocol import BoundedProtocol
from app.settings import Settings

EXIT_STARTUP_FAILED = 3
"""Exit code where the service cannot start; uvicorn has the same."""
EXIT_BACKEND_DIED = 4
"""Exit code where an inference process ended while the service ran."""


def run(settings: Settings) -> int:
    """Serve until a signal comes, or until the service cannot go on. Returns the exit code."""
    app = create_app(settings)
    engine: Engine = app.state.engine
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        loop="auto",
        http=BoundedProtocol,
        ws="none",
        lifespan="on",
        access_log=False,  # `middleware` logs requests, with their ids
        log_config=log_config(settings.log_format, settings.log_level),
        server_header=False,
        backlog=4096,
        timeout_keep_alive=settings.keep_alive_seconds,
        timeout_graceful_shutdown=1,  # by then the drain is over
    )
    announce(settings, os.environ)
    try:
        DrainingServer(config, engine, settings.drain_seconds).run(_sockets(settings))
    except OSError as error:
        log_fatal(str(error), settings.log_format)
        return EXIT_STARTUP_FAILED
    except SystemExit as error:  # uvicorn could not listen, and has logged why
        return error.code if isinstance(error.code, int) else EXIT_STARTUP_FAILED
    if engine.lifecycle.failure is not None:
        log_fatal(str(engine.lifecycle.failure), settings.log_format)
        return EXIT_BACKEND_DIED if engine.lifecycle.has_served else EXIT_STARTUP_FAILED
    return 0


def _sockets(settings: Settings) -> list[socket.socket] | None:
    """For the host `::`, a socket that takes IPv4 too; otherwise uvicorn makes its own."""
    if settings.host != "::":
        return None
    return [socket.create_server((settings.host, settings.port), family=socket.AF_INET6, dualstack_ipv6=True)]
