"""The life of the service: loading, serving, reloading, draining, breaking. Also watches for hung batches."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from enum import IntEnum
from typing import Literal

from app.batching.engine import Engine
from app.errors import BackendDiedError, SettingsError, UnavailableError
from app.inference.contract import Backend, BackendInfo
from app.observability.metrics import Metrics
from app.settings import Settings
from model.errors import BertError

logger = logging.getLogger(__name__)

Status = Literal["loading", "ready", "stalled", "draining", "broken"]

MIN_STALL_SECONDS = 5.0
"""A batch that takes longer than this, and longer than the request timeout, counts as stalled."""
MAX_RELOAD_SECONDS = 600.0
"""Timeout of a reload. Hung batches are not killed during a reload."""
WATCH_SECONDS = 0.1
"""Pause between two checks of the state."""
KILL_GRACE_SECONDS = 5.0
"""Seconds in which a killed process must have ended; after that, the system cannot end it."""
LAG_WEIGHT = 0.02
"""Weight of one sample in the moving average of the event loop's lag, which covers about five seconds."""
CLOSE_GRACE_SECONDS = 10.0
"""Seconds that running batches have when the service closes."""
MAX_TICK_SECONDS = 1.0
"""Upper bound on the time counted per check: a longer gap means that this process itself was suspended."""


class State(IntEnum):
    """The state of the service. It only ever moves to a greater value."""

    LOADING = 0
    READY = 1
    DRAINING = 2
    """The shutdown has been announced; requests are still accepted."""
    REFUSING = 3
    """New requests are refused; accepted ones are answered."""
    CLOSED = 4
    BROKEN = 5
    """No batch can succeed any more; only a restart helps."""


_STATUSES: tuple[Status, ...] = ("loading", "ready", "draining", "draining", "draining", "broken")
"""The status that `/health` shows in each `State`. A ready service may also be stalled or reloading its weights."""


class Lifecycle:
    """Owns the engines and the state. All methods run on the event loop."""

    def __init__(self, make_backend: Callable[[], Backend], settings: Settings, metrics: Metrics) -> None:
        self._make_backend = make_backend
        self._settings = settings
        self._metrics = metrics
        self.engine = self._new_engine()
        """The engine that takes requests."""
        self.state = State.LOADING
        self.failure: BaseException | None = None
        """The reason why the models could not be loaded, or why no batch can succeed any more."""
        self.has_loaded = False
        """Whether the models have been loaded."""
        self.startup_finished = asyncio.Event()
        """Set once the models are loaded, or cannot be."""
        self.event_loop_lag = 0.0
        """Mean lag of the event loop in seconds: how long a ready callback waits for those before it."""
        self._engines = [self.engine]
        """All engines that are not closed: current, being loaded by a reload, and replaced."""
        self._stall_seconds = max(settings.request_timeout_ms / 1000, MIN_STALL_SECONDS)
        self._computing_since: float | None = None
        """Start of the longest-running batch; see `Backend.computing_since`."""
        self._computing_for = 0.0
        """Seconds that it has been running, without those in which this process was suspended."""
        self._killed_at: float | None = None
        """When the processes of stalled batches were killed."""
        self._last_look = time.monotonic()
        self._reload_lock = asyncio.Lock()

    @property
    def unanswered_requests(self) -> int:
        """Requests that wait for a batch or are being computed."""
        return sum(engine.unanswered_requests for engine in self._engines)

    @property
    def queued_tokens(self) -> int:
        """Tokens that wait for a batch."""
        return sum(engine.queued_tokens for engine in self._engines)

    @property
    def status(self) -> Status:
        """The state in one word, for callers."""
        backend = self.engine.backend
        if self.state is State.READY:
            if not backend.slots:
                return "loading"
            if self._computing_for > self._stall_seconds and self._computing_since == backend.computing_since:
                return "stalled"
        return _STATUSES[self.state]

    @property
    def is_draining(self) -> bool:
        """Whether the shutdown has been announced, so that connections close after their responses."""
        return State.READY < self.state < State.BROKEN

    @property
    def refusing(self) -> bool:
        """Whether new requests are refused."""
        return self.state >= State.REFUSING

    def check_open(self) -> None:
        """Raise UnavailableError unless new requests are accepted."""
        if not self.has_loaded or self.state >= State.REFUSING:
            raise UnavailableError(self.status)

    def advance(self, state: State) -> None:
        """Move on to a state; a smaller one has no effect."""
        self.state = max(self.state, state)

    def start(self) -> None:
        """Begin to load the models, and to watch them; `startup_finished` is set once they are loaded, or cannot be."""
        self._loading, self._watching = asyncio.create_task(self._load()), asyncio.create_task(self._watch())

    async def wait_until_ready(self) -> None:
        """Wait until the models have computed something. Raises the error if they cannot be loaded."""
        await self.startup_finished.wait()
        if self.failure is not None:
            raise self.failure

    async def _load(self) -> None:
        """Load the models; `startup_finished` is set at the end, even after a failure."""
        began = time.monotonic()
        try:
            await self.engine.load()
        except Exception as error:
            self.engine.fail(error)
        else:
            self.has_loaded = True
            self.advance(State.READY)
            logger.info("ready in %.0f s: %s", time.monotonic() - began, _describe(self.engine.backend.info))
        self.startup_finished.set()

    async def reload(self) -> bool:
        """Load the checkpoints again, while the old models go on answering. Returns whether the new ones can be served;
        if they cannot, nothing changes."""
        await self.startup_finished.wait()
        async with self._reload_lock:
            fresh = self._new_engine()
            self._engines.append(fresh)
            try:
                async with asyncio.timeout(MAX_RELOAD_SECONDS) as timer:
                    self.check_open()
                    await fresh.load()
                self.check_open()
            except Exception as error:
                if isinstance(error, TimeoutError) and timer.expired():  # otherwise it may be the file system's
                    error = BackendDiedError(
                        f"loading took more than {MAX_RELOAD_SECONDS:g} s; send SIGHUP to try again"
                    )
                await fresh.aclose()
                self._forget(fresh)
                self._log_failed_reload(error)
                return False
            is_stalled = self.status == "stalled"
            replaced, self.engine = self.engine, fresh
            replaced.replace(self._forget)
            self._metrics.reloaded(ok=True)
            logger.info("reloaded: %s", _describe(fresh.backend.info))
            if is_stalled:
                logger.error("the replaced backend hangs; killing its processes")
                await replaced.aclose()
                self._forget(replaced)
            return True

    def _forget(self, engine: Engine) -> None:
        """Drop a closed engine so that it is freed at once: a reload freezes all objects, so no later collection sees
        it."""
        self._engines = [other for other in self._engines if other is not engine]

    def _log_failed_reload(self, error: Exception) -> None:
        if self.state in (State.DRAINING, State.REFUSING, State.CLOSED):
            logger.info("not reloaded: the service ends")
            return
        self._metrics.reloaded(ok=False)
        is_expected = isinstance(error, BertError | SettingsError | UnavailableError | BackendDiedError)
        logger.error("not reloaded: %s", error, exc_info=None if is_expected else error)

    def _new_engine(self) -> Engine:
        return Engine(self._make_backend(), self._settings, self._metrics, self._on_failure)

    def _on_failure(self, engine: Engine, error: BaseException) -> None:
        """Handle an engine that can compute no further batch."""
        if self.state is State.CLOSED:
            return
        if engine is not self.engine:
            logger.warning("a replaced backend ended before it had answered: %s", error)
            return
        self.failure = error
        self.advance(State.BROKEN)
        explains_itself = isinstance(error, BertError | SettingsError | BackendDiedError)
        if self.has_loaded or not explains_itself:  # a failed load is the last line of the log anyway
            logger.critical("no further batch can succeed: %s", error, exc_info=None if explains_itself else error)

    async def _watch(self) -> None:
        """Log a stalled batch, kill its process if it hangs, and measure the event loop's lag, until cancelled. Nothing
        is killed while draining, because the drain has a deadline."""
        while True:
            self.track_stall()
            if self.state < State.DRAINING and self.is_hung:
                self.kill_hung_processes()
            due = time.monotonic() + WATCH_SECONDS
            await asyncio.sleep(WATCH_SECONDS)
            self.event_loop_lag += LAG_WEIGHT * (time.monotonic() - due - self.event_loop_lag)

    @property
    def is_hung(self) -> bool:
        """Whether a batch has been running for twice the stall limit. False during a reload, which replaces the
        backend."""
        return not self._reload_lock.locked() and self._computing_for > 2 * self._stall_seconds

    def kill_hung_processes(self) -> None:
        """Kill the processes of hung batches; their backend replaces them. The service is broken if the system cannot
        end them."""
        if self._killed_at is None:
            logger.error("batch timed out; killing its inference process")
            self._killed_at = time.monotonic()
            self.engine.backend.kill_hung(self._stall_seconds)
        elif time.monotonic() - self._killed_at > KILL_GRACE_SECONDS:
            self.engine.fail(BackendDiedError("an inference process hangs and cannot be killed; restart the service"))

    def track_stall(self) -> None:
        """Measure how long a batch has been running, and log the beginning and end of a stall."""
        since, now, before = self.engine.backend.computing_since, time.monotonic(), self._computing_for
        if since is not None and since == self._computing_since:
            self._computing_for += min(now - self._last_look, MAX_TICK_SECONDS)
            if before <= self._stall_seconds < self._computing_for and self.state is State.READY:
                logger.error(
                    "stalled: a batch has been running for %.0f s; its process is killed after %g s",
                    self._computing_for,
                    2 * self._stall_seconds,
                )
        else:
            self._computing_since, self._computing_for, self._killed_at = since, 0.0, None
            if before > self._stall_seconds and self.state is State.READY:
                logger.info("no longer stalled")
        self._last_look = now

    async def aclose(self, grace_seconds: float = CLOSE_GRACE_SECONDS) -> None:
        """Shut down: wait up to `grace_seconds` for running batches, then kill the processes. Waiting requests fail."""
        self.advance(State.CLOSED)
        await asyncio.gather(*(engine.aclose(grace_seconds) for engine in self._engines))
        self._watching.cancel()
        await asyncio.gather(self._loading, self._watching, return_exceptions=True)


def _describe(info: BackendInfo) -> str:
    models = ", ".join(f"{served.name} ({', '.join(served.heads)})" for served in info.models.values())
    return f"{models}; {info.device}, {info.dtype}, {info.threads} threads, {info.tokens_per_second:,.0f} tokens/s"
