"""uvicorn's server, with draining on SIGTERM and at the end of its terminal, and reloading on SIGHUP."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
import time
from types import FrameType

import uvicorn

from app.batching.lifecycle import Lifecycle, State
from app.server.freed_memory import give_back, give_back_after_growth, resident_bytes
from app.server.hangup import Hangup

logger = logging.getLogger(__name__)

_GC_THRESHOLD = 10_000
"""Number of new objects after which Python collects garbage. CPython's default of 700 took 5% of the time in an
overload, because each collection visits every waiting request."""
_MEMORY_CHECK_TICKS = 50
"""Ticks of 0.1 s between two checks of the memory."""
_BROKEN_SECONDS = 5.0
"""Seconds to keep answering 503 before exiting: Docker restarts exited containers, not unhealthy ones."""


class DrainingServer(uvicorn.Server):
    """Uvicorn that, on SIGTERM, keeps listening until the accepted requests are answered.

    The port stays open, so that a load balancer sees readiness turn 503, and a late request gets 503 instead of a
    refused connection (uvicorn issue 2414). Uvicorn itself would raise the signal again at the end, and so exit with a
    code that means "killed".
    """

    def __init__(self, config: uvicorn.Config, lifecycle: Lifecycle, drain_seconds: float, hangup: Hangup) -> None:
        super().__init__(config)
        self._hangup = hangup
        self.lifecycle = lifecycle
        self._drain_seconds = drain_seconds
        self._drain_until: float | None = None
        self._signal = ""
        """The signal that ends the service."""
        self._tick_saw_signal = False
        self._accepted: set[asyncio.Task[None]] = set()
        """While draining: the accepted requests without a complete response."""
        self._broken_since: float | None = None
        self._resident_bytes = resident_bytes()
        """Memory of this process at its start."""
        self._reload_requested = asyncio.Event()
        self._reloading: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to serve, and to reload on SIGHUP unless it is ignored."""
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._handle_hangup)
        self._reloading = asyncio.create_task(self._reload_on_request())
        await super().startup(sockets)

    async def _reload_on_request(self) -> None:
        """Reload after each signal. Signals that arrive during a reload cause one more reload, because the files may
        have changed since it began."""
        await self.lifecycle.startup_finished.wait()
        _freeze_objects()
        gc.set_threshold(_GC_THRESHOLD)
        while True:
            await self._reload_requested.wait()
            self._reload_requested.clear()
            logger.info("SIGHUP: loading the checkpoints again")
            give_back()  # both models need room
            try:
                if await self.lifecycle.reload():
                    _freeze_objects()
            except Exception:  # keep handling later SIGHUPs
                logger.exception("reload failed")

    def _handle_hangup(self) -> None:
        if not self._hangup.note_signal():  # otherwise the next tick drains
            self._reload_requested.set()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Drain on the first signal; end at once on Ctrl-C after that."""
        if self._drain_until is not None:
            if sig == signal.SIGINT:
                self.force_exit = self.should_exit = True
                _keep_uvicorn_quiet()
            return
        self._drain_until = time.monotonic() + self._drain_seconds
        self._signal = signal.Signals(sig).name
        self.lifecycle.advance(State.DRAINING)

    async def on_tick(self, counter: int) -> bool:
        """Check the state; called every 0.1 s. Returns whether the server ends."""
        self.config.app.service.metrics.connections(len(self.server_state.connections))  # type: ignore[union-attr]
        if counter % _MEMORY_CHECK_TICKS == 0:
            give_back_after_growth(self._resident_bytes)
        if self._hangup.has_come():
            self.handle_exit(signal.SIGHUP, None)
        if self.lifecycle.failure is not None and self._has_answered_503_long_enough():
            _keep_uvicorn_quiet()
            return True
        ends = await super().on_tick(counter)  # while draining too: it sets the clock of the Date header
        if self._drain_until is None or self.should_exit:
            return ends
        if not self.lifecycle.refusing:
            # Requests that are in the sockets when the signal comes are read before the next tick, and are accepted.
            # The first tick may come at the moment of the signal, so requests are refused from the second one on.
            if self._tick_saw_signal:
                self.lifecycle.advance(State.REFUSING)
                self._accepted = set(self.server_state.tasks)
                accepted = len(self._accepted)
                logger.info(
                    "%s: draining; requests to answer: %d, within %g s", self._signal, accepted, self._drain_seconds
                )
            self._tick_saw_signal = True
            return False
        if not self._is_answering():
            logger.info("drained: all requests are answered")
            return True
        if time.monotonic() < self._drain_until:
            return False
        logger.warning(
            "BERT_DRAIN_SECONDS=%g have passed; requests without a complete response: %d",
            self._drain_seconds,
            sum(not task.done() for task in self._accepted),
        )
        _keep_uvicorn_quiet()
        return True

    def _has_answered_503_long_enough(self) -> bool:
        """Whether the service has been broken for `_BROKEN_SECONDS`. True at once if the models never loaded."""
        now = time.monotonic()
        self._broken_since = self._broken_since or now
        return not self.lifecycle.has_loaded or now - self._broken_since > _BROKEN_SECONDS

    def _is_answering(self) -> bool:
        """Whether an accepted request has no complete response, or a response is not sent completely."""
        return not all(task.done() for task in self._accepted) or any(
            connection.transport.get_write_buffer_size() for connection in self.server_state.connections
        )


def _freeze_objects() -> None:
    """Exclude all present objects from full collections, because each visited all of them, and requests waited 0.2 s.

    Garbage is collected first: once frozen, it would never be freed, nor would the old weights that it refers to.
    """
    gc.collect()
    gc.freeze()


def _keep_uvicorn_quiet() -> None:
    """Silence uvicorn's log, which has an error for each task that is cut off."""
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)
