"""A `DrainingServer` in this process, on a real port, with the fake backend."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import uvicorn
from prometheus_client import CollectorRegistry

from app.http.application import create_app
from app.server.draining import DrainingServer
from app.server.hangup import Hangup
from app.server.protocol import BoundedProtocol
from app.settings import Settings
from tests.app.backends import PATIENCE
from tests.app.conftest import Service
from tests.app.waiting import until


@dataclass
class Served(Service):
    """A server that runs, and a client of it."""

    server: DrainingServer
    port: int
    serving: asyncio.Task[None]

    @property
    def metrics(self) -> CollectorRegistry:
        """To read them also after the server's end."""
        return self.app.service.metrics.registry

    def send(self, number: signal.Signals) -> None:
        """Send this process a signal, which the server handles."""
        os.kill(os.getpid(), number)

    async def end(self) -> None:
        """Wait until the server has ended by itself."""
        async with asyncio.timeout(PATIENCE):
            await self.serving


StartServer = Callable[..., AbstractAsyncContextManager[Served]]


@pytest.fixture
def start_server(backend: Any) -> StartServer:
    """Start a server with some settings; it ends with the context. `send_buffer_bytes`: how much of an unread answer
    the kernel takes; by default, megabytes."""

    @asynccontextmanager
    async def start(*, send_buffer_bytes: int = 0, **settings: object) -> AsyncIterator[Served]:
        checked = Settings.model_validate({"drain_seconds": PATIENCE} | settings)
        app = create_app(checked, backend, serves_while_loading=True)
        config = uvicorn.Config(
            app,
            http=BoundedProtocol,
            lifespan="on",
            access_log=False,
            log_config=None,
            timeout_keep_alive=checked.keep_alive_seconds,
            timeout_graceful_shutdown=1,
        )
        server = DrainingServer(config, app.service.lifecycle, checked.drain_seconds, Hangup())
        thresholds = gc.get_threshold()
        gc.freeze()  # the server collects garbage, which takes long among the objects of all tests
        limits = httpx.Limits(max_connections=200)
        with socket.create_server(("127.0.0.1", 0)) as listening:
            port = listening.getsockname()[1]
            if send_buffer_bytes:
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes)
            serving = asyncio.create_task(server.serve([listening]))
            async with httpx.AsyncClient(
                base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE, limits=limits
            ) as client:
                served = Served(app, client, server, port, serving)
                try:
                    await until(
                        lambda: server.started and (server.lifecycle.has_loaded or not backend.may_load.is_set())
                    )
                    yield served
                finally:
                    backend.gate.set()
                    backend.may_load.set()
                    server.should_exit = True
                    await serving
                    await asyncio.sleep(0)
                    gc.unfreeze()
                    gc.set_threshold(*thresholds)

    return start
