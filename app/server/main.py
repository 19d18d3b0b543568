"""Serves in this process: listens, makes the app, and ends with an exit code that gives the reason."""

from __future__ import annotations

import errno
import logging
import os
import socket

import uvicorn

from app.http.application import create_app
from app.http.auth import announce
from app.observability.log_config import log_config, log_fatal
from app.server import file_limits
from app.server.draining import DrainingServer
from app.server.hangup import Hangup
from app.server.protocol import SPARE_CONNECTIONS, BoundedProtocol
from app.settings import Settings

EXIT_STARTUP_FAILED = 3
"""Exit code if the service cannot start; uvicorn uses the same."""
EXIT_BACKEND_DIED = 4
"""Exit code if inference processes ended while the service ran, and could not be replaced."""

logger = logging.getLogger(__name__)


def serve(settings: Settings, hangup: Hangup) -> int:
    """Serve until a signal comes or the models fail. Returns the exit code."""
    try:
        listening = _listen(settings.host, settings.port)  # before the models load
    except (OSError, UnicodeError) as error:  # UnicodeError: a part of the host is empty or too long
        place = f"BERT_HOST={settings.host}, BERT_PORT={settings.port}"
        reason = error.strerror if isinstance(error, OSError) else "not a host name"
        log_fatal(f"{place}: {reason}; set another host or port", settings.log_format)
        return EXIT_STARTUP_FAILED
    app = create_app(settings, serves_while_loading=True)
    lifecycle = app.service.lifecycle
    config = uvicorn.Config(
        app,
        http=BoundedProtocol,
        ws="none",
        lifespan="on",
        access_log=False,  # `RequestContext` logs requests, with their ids
        log_config=log_config(settings.log_format, settings.log_level),
        server_header=False,
        forwarded_allow_ips="*" if "*" in settings.forwarded_allow_ips else list(settings.forwarded_allow_ips),
        backlog=4096,
        timeout_keep_alive=settings.keep_alive_seconds,
        timeout_graceful_shutdown=1,  # by then the drain is over
    )
    announce(settings, os.environ)
    file_limits.warn_if_low(settings.max_connections, SPARE_CONNECTIONS)
    for opened in listening:
        host, port, *_ = opened.getsockname()
        logger.info("listening on http://%s:%d; loading the checkpoints", f"[{host}]" if ":" in host else host, port)
    DrainingServer(config, lifecycle, settings.drain_seconds, hangup).run(listening)
    if lifecycle.failure is not None:
        log_fatal(str(lifecycle.failure), settings.log_format)
        return EXIT_BACKEND_DIED if lifecycle.has_loaded else EXIT_STARTUP_FAILED
    return 0


def _listen(host: str, port: int) -> list[socket.socket]:
    """One socket for each address of the host; the host `::` includes all IPv4 addresses.

    Raises:
        OSError: the port is taken, or the host is unknown or has no address of this machine.
        UnicodeError: the host cannot be a name.
    """
    opened: list[socket.socket] = []
    absent: OSError | None = None
    for family, _, _, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE):
        port = opened[0].getsockname()[1] if opened else port  # the same free port for all
        try:
            opened.append(socket.create_server((address[0], port), family=family, dualstack_ipv6=host == "::"))
        except OSError as error:
            if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):  # localhost may have an absent ::1 too
                raise
            absent = error
    if absent is not None and not opened:
        raise absent
    return opened
