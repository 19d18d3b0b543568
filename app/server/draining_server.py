"""uvicorn's server, with draining on SIGTERM and reloading on SIGHUP."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
import time
from types import FrameType

import uvicorn

from app.scheduling.engine import Engine
from app.server import file_limits

logger = logging.getLogger(__name__)

_GARBAGE = 10_000
"""New objects after which Python collects garbage. CPython's default of 700 took 5% of the time in an overload,
because each collection visits thousands of waiting texts."""
_BROKEN_SECONDS = 5.0
"""Seconds to keep answering 503 before exiting: Docker restarts exited containers, not unhealthy ones."""
_CROWDED = 0.9
"""Share of the open-file limit at which a warning is logged; above the limit, connections fail without one."""


class DrainingServer(uvicorn.Server):
    """Uvicorn that, on SIGTERM, keeps listening until the accepted requests are answered.

    The port stays open meanwhile, so that a load balancer sees readiness turn 503 and a late request gets
    503 instead of a refused connection. Uvicorn would also raise the signal anew at the end, and so exit
    with a code that says "killed".
    """

    def __init__(self, config: uvicorn.Config, engine: Engine, drain_seconds: float) -> None:
        super().__init__(config)
        self.engine = engine
        self.drain_seconds = drain_seconds
        self.drain_until: float | None = None
        self.noticed = False
        """Whether a tick has seen the signal."""
        self.broken_since: float | None = None
        self._reload_requested = asyncio.Event()
        self._reloading: asyncio.Task[None] | None = None
        self.accepted: set[asyncio.Task[None]] = set()
        """Once all others are refused, those that had been there before."""
        self.crowded = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to reload on SIGHUP, and to answer."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._reload_requested.set)
        self._reloading = asyncio.create_task(self._reload_on_request())
        await super().startup(sockets)

    async def _reload_on_request(self) -> None:
        """Signals that come while a reload runs are one more reload, because the files may have changed since."""
        await self.engine.startup_finished.wait()
        _freeze_garbage_collector()
        gc.set_threshold(_GARBAGE)
        while True:
            await self._reload_requested.wait()
            self._reload_requested.clear()
            if await self.engine.reload():
                _freeze_garbage_collector()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """A first signal drains; Ctrl-C after that ends at once."""
        if self.drain_until is not None:
            if sig == signal.SIGINT:  # a worker gets it from the terminal, and SIGTERM from its parent as well
                self.force_exit = self.should_exit = True
            return
        self.drain_until = time.monotonic() + self.drain_seconds
        self.engine.drain()

    async def on_tick(self, counter: int) -> bool:
        """Every 0.1 s: whether to end."""
        self.engine.publish_state()
        if self.drain_until is None and self.engine.is_hung:
            await self.engine.kill_hung_backend()
        self._count_connections()
        if self.engine.failure is not None and self._gives_up():
            return True
        ends = await super().on_tick(counter)  # while draining too: it sets the clock of the Date header
        if self.drain_until is None or self.should_exit:
            return ends
        if not self.engine.refusing:
            # What had reached the socket when the signal came is read within a tick, and counts as accepted;
            # but the first tick may come in the moment of the signal. After the second one, all is refused.
            if self.noticed:
                self.engine.refuse()
                self.accepted = set(self.server_state.tasks)
            self.noticed = True
            return False
        return not self._busy() or time.monotonic() >= self.drain_until

    def _gives_up(self) -> bool:
        """Whether the process ends: at once if it never could answer, else after some seconds of 503."""
        now = time.monotonic()
        self.broken_since = self.broken_since or now
        return not self.engine.loaded or now - self.broken_since > _BROKEN_SECONDS

    def _busy(self) -> bool:
        """Whether a request that was accepted is not answered yet, or an answer not sent yet."""
        return not all(task.done() for task in self.accepted) or any(
            connection.transport.get_write_buffer_size() for connection in self.server_state.connections
        )

    def _count_connections(self) -> None:
        """Tell how many there are; and once, if there can hardly be more."""
        count, most = len(self.server_state.connections), file_limits.limit()
        self.config.app.state.metrics.connections(count)  # type: ignore[union-attr]
        crowded = most is not None and count > _CROWDED * most
        if crowded and not self.crowded:
            logger.warning("%d connections are open, and no more than %s files can be (ulimit -n)", count, most)
        self.crowded = crowded


def _freeze_garbage_collector() -> None:
    """Take the objects that stay out of full collections, which looked through all of them for 0.2 s.

    Collect first: garbage that is frozen is never collected, and with it the old weights.
    """
    gc.collect()
    gc.freeze()
