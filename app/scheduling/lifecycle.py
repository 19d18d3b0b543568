"""The life of the loaded models: loading, serving, reloading, draining, breaking. One owner, one state."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum

from app.errors import BackendDiedError, SettingsError, TaskNotServedError, UnavailableError
from app.inference.types import Backend, BackendInfo, BatchResult, Part, ServedModel, Task
from app.observability.metrics import Metrics
from app.scheduling.scheduler import Scheduler
from app.scheduling.throughput import Throughput
from app.settings import Settings
from bert_client.wire import Status
from model.errors import BertError

logger = logging.getLogger(__name__)

MIN_STALL_SECONDS = 5.0
"""A batch that takes longer than this, and longer than the request timeout, counts as stalled."""
MAX_RELOAD_SECONDS = 600.0
"""Timeout of a reload. Hung batches are not killed during a reload."""
WATCH_SECONDS = 0.1
"""Pause between two looks at the state."""
KILL_GRACE_SECONDS = 5.0
"""Seconds in which a process that was killed ends, unless the system cannot end it."""
LAG_WEIGHT = 0.02
"""Of one look in the mean lag of the event loop, which so is the mean of some five seconds."""
MAX_TICK_SECONDS = 1.0
"""Seconds that count per look, at most: a longer gap means that this process itself was suspended."""


class State(IntEnum):
    """What the service does. It only ever moves to a greater value."""

    LOADING = 0
    READY = 1
    DRAINING = 2
    """The end has been announced; requests are still accepted."""
    REFUSING = 3
    """New requests are refused; accepted ones are answered."""
    CLOSED = 4
    BROKEN = 5
    """No batch can succeed any more; only a restart helps."""


_STATUSES: tuple[Status, ...] = ("loading", "ready", "draining", "draining", "draining", "broken")
"""What callers are told in each `State`. A ready service may also be stalled, or load its weights again."""


@dataclass(eq=False, slots=True)
class LoadedBackend:
    """A backend, and the number of requests that rely on it: once it is replaced and has none, it is closed."""

    backend: Backend
    requests: int = 0
    is_closing: bool = False


@dataclass(frozen=True, slots=True)
class LoadedEncoder:
    """One encoder of one backend. It answers what was tokenized for it, also after a reload."""

    owner: LoadedBackend
    name: str


class Lifecycle:
    """Owns the backend, the scheduler that uses it, and the state. All methods run on the event loop."""

    def __init__(self, make_backend: Callable[[], Backend], settings: Settings, metrics: Metrics) -> None:
        self.scheduler = Scheduler(
            self._run,
            throughput=Throughput(fixed_batch_tokens=settings.max_batch_tokens),
            metrics=metrics,
            on_failure=self._on_failure,
            is_current=lambda encoder: encoder.owner is self.current,
        )
        self.current = LoadedBackend(make_backend())
        self.state = State.LOADING
        self.failure: BaseException | None = None
        """Why the models could not be loaded, or why no batch can succeed any more."""
        self.has_loaded = False
        """Whether the models have been loaded."""
        self.startup_finished = asyncio.Event()
        """Set once the models are loaded, or cannot be."""
        self.event_loop_lag = 0.0
        """Mean seconds by which the event loop is late: how long a ready callback waits for those before it."""
        self._make_backend = make_backend
        self._settings = settings
        self._metrics = metrics
        self._stall_seconds = max(settings.request_timeout_ms / 1000, MIN_STALL_SECONDS)
        self._stalled_for = 0.0
        self._killed_at: float | None = None
        """When the processes of stalled batches were killed."""
        self._last_look = time.monotonic()
        self._reload_lock = asyncio.Lock()
        self._reloading_backend: Backend | None = None
        """The backend that a reload loads."""
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def status(self) -> Status:
        """The state in one word, for callers."""
        if self.state is State.READY and not self.current.backend.is_ready:
            return "loading"
        is_stalled = self.state is State.READY and self.scheduler.computing_for > self._stall_seconds
        return "stalled" if is_stalled else _STATUSES[self.state]

    @property
    def is_draining(self) -> bool:
        """Whether the end has been announced, so that connections close after their answers."""
        return State.READY < self.state < State.BROKEN

    @property
    def refusing(self) -> bool:
        """Whether new requests are refused."""
        return self.state >= State.REFUSING

    def check_open(self) -> None:
        """Raise UnavailableError unless new requests are accepted."""
        if not self.has_loaded or self.refusing:
            raise UnavailableError(self.status)

    def advance(self, state: State) -> None:
        """Move on to a state; a smaller one has no effect."""
        self.state = max(self.state, state)

    def start(self) -> None:
        """Begin to load the models, and to watch them; `startup_finished` is set once they are loaded, or cannot be."""
        self._loading, self._watching = asyncio.create_task(self._load()), asyncio.create_task(self._watch())

    async def wait_until_ready(self) -> None:
        """Wait until the models have computed something. Raises why they cannot be loaded."""
        await self.startup_finished.wait()
        if self.failure is not None:
            raise self.failure

    async def _load(self) -> None:
        """Load the models; `startup_finished` is set at the end, also of a failure."""
        loaded, began = self.current, time.monotonic()
        try:
            await loaded.backend.load(lambda error: self._on_death(loaded, error))
        except Exception as error:
            self.scheduler.fail(error)
        else:
            self.has_loaded = True
            self.advance(State.READY)
            self._open(loaded.backend.info)
            logger.info("ready in %.0f s: %s", time.monotonic() - began, _describe(loaded.backend.info))
        self.startup_finished.set()

    async def reload(self) -> bool:
        """Load the checkpoints again, beside the old models, which go on answering. If the new ones cannot be
        served, nothing changes. Returns whether they can.
        """
        await self.startup_finished.wait()
        async with self._reload_lock:
            fresh = LoadedBackend(self._make_backend())
            self._reloading_backend = fresh.backend
            try:
                async with asyncio.timeout(MAX_RELOAD_SECONDS) as timer:
                    self.check_open()
                    await fresh.backend.load(lambda error: self._on_death(fresh, error))
                self.check_open()
            except Exception as error:
                if isinstance(error, TimeoutError) and timer.expired():  # otherwise it may be the file system's
                    error = BackendDiedError(
                        f"loading took more than {MAX_RELOAD_SECONDS:g} s; send SIGHUP to try again"
                    )
                await fresh.backend.aclose()
                if self.state in (State.DRAINING, State.REFUSING, State.CLOSED):
                    logger.info("not reloaded: the service ends")
                    return False
                self._metrics.reloaded(ok=False)
                expected = isinstance(error, BertError | SettingsError | UnavailableError | BackendDiedError)
                logger.error("not reloaded: %s", error, exc_info=None if expected else error)
                return False
            finally:
                self._reloading_backend = None
            is_stalled = self.status == "stalled"
            replaced, self.current = self.current, fresh
            self._open(fresh.backend.info)
            self._metrics.reloaded(ok=True)
            logger.info("reloaded: %s", _describe(fresh.backend.info))
            self._close_if_unused(replaced)
            if is_stalled:
                logger.error("the replaced backend hangs; killing its processes")
                replaced.is_closing = True
                await replaced.backend.aclose()
            return True

    def _open(self, info: BackendInfo) -> None:
        throughput, settings = self.scheduler.throughput, self._settings
        throughput.set(info.tokens_per_second, info.processes, info.max_useful_tokens)
        derived = throughput.policy.queue_tokens(info.tokens_per_second, settings.request_timeout_ms / 1000)
        self.scheduler.open(info.processes * info.in_flight, settings.max_queue_tokens or derived)

    @contextmanager
    def encoder_for(self, task: Task) -> Iterator[tuple[LoadedEncoder, ServedModel]]:
        """The encoder that answers a task, which is not closed before the end of the context.

        Raises:
            UnavailableError: the models are not loaded, or broken.
            TaskNotServedError: no loaded checkpoint has a head for the task.
        """
        if not self.has_loaded or self.state is State.BROKEN:
            raise UnavailableError(self.status)
        owner = self.current
        name = next((name for name, served in owner.backend.info.models.items() if task in served.tasks), None)
        if name is None:
            raise TaskNotServedError(f"the loaded checkpoint has no head for {task}; GET /info lists the tasks")
        owner.requests += 1
        try:
            yield LoadedEncoder(owner, name), owner.backend.info.models[name]
        finally:
            owner.requests -= 1
            self._close_if_unused(owner)

    async def _run(self, encoder: LoadedEncoder, parts: Sequence[Part]) -> BatchResult:
        """Compute a batch; see `Backend.run`."""
        try:
            return await encoder.owner.backend.run(encoder.name, parts)
        except BackendDiedError as error:
            if encoder.owner is self.current:
                raise
            if not encoder.owner.is_closing:  # its end is expected while we close it
                logger.warning("a replaced backend ended before it had answered: %s", error)
            return BatchResult([[UnavailableError("reloading", retry_after=1)] * part.inputs for part in parts], 0.0)

    def _close_if_unused(self, owner: LoadedBackend) -> None:
        """Close a replaced backend once no request relies on it. Every request has a deadline, so one that hangs is
        closed within the request timeout."""
        if owner is not self.current and not owner.requests:
            owner.is_closing = True
            task = asyncio.create_task(owner.backend.aclose())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _on_death(self, owner: LoadedBackend, error: BackendDiedError) -> None:
        """Processes ended and cannot be replaced, perhaps while no batch was computed."""
        if owner is self.current:
            self.scheduler.fail(error)

    def _on_failure(self, error: BaseException) -> None:
        """No further batch can succeed."""
        if self.state is State.CLOSED:
            return
        self.failure = error
        self.advance(State.BROKEN)
        explains_itself = isinstance(error, BertError | SettingsError | BackendDiedError)
        if self.has_loaded or not explains_itself:  # a failed load is the last line of the log anyway
            trace = None if explains_itself and not hasattr(error, "__notes__") else error
            logger.critical("no further batch can succeed: %s", error, exc_info=trace)

    async def _watch(self) -> None:
        """Log a batch that stalls, kill its process if it hangs, and measure the lag of the event loop, until this is
        cancelled. While draining nothing is killed, because the drain has a deadline."""
        while True:
            self.track_stall()
            if self.state < State.DRAINING and self.is_hung:
                self.kill_hung_processes()
            due = time.monotonic() + WATCH_SECONDS
            await asyncio.sleep(WATCH_SECONDS)
            self.event_loop_lag += LAG_WEIGHT * (time.monotonic() - due - self.event_loop_lag)

    @property
    def is_hung(self) -> bool:
        """Whether a batch has run for twice the stall limit. False during a reload, which replaces the backend."""
        return self._reloading_backend is None and self._stalled_for > self._stall_seconds

    def kill_hung_processes(self) -> None:
        """Kill the processes whose batch does not end; their backend replaces them. The service is broken if the system
        cannot end them."""
        if self._killed_at is None:
            logger.error("batch timed out; killing its inference process")
            self._killed_at = time.monotonic()
            self.current.backend.kill_hung(self._stall_seconds)
        elif time.monotonic() - self._killed_at > KILL_GRACE_SECONDS:
            self.scheduler.fail(
                BackendDiedError("an inference process hangs and cannot be killed; restart the service")
            )

    def track_stall(self) -> None:
        """Measure for how long a batch has stalled, which `is_hung` looks at, and log its beginning and end."""
        status, now = self.status, time.monotonic()
        passed = min(now - self._last_look, MAX_TICK_SECONDS)
        self._last_look = now
        if status == "stalled":
            if not self._stalled_for:
                logger.error(
                    "stalled: a batch has been computed for %.0f s; its process is killed after %g s",
                    self.scheduler.computing_for,
                    2 * self._stall_seconds,
                )
            self._stalled_for += passed
        elif self._stalled_for:
            if self.state is State.READY:
                logger.info("no longer stalled")
            self._stalled_for, self._killed_at = 0.0, None

    async def aclose(self, patience: float) -> None:
        """End: wait up to `patience` seconds for running batches, then kill the processes."""
        self.advance(State.CLOSED)
        if self._reloading_backend is not None:
            await self._reloading_backend.aclose()
        if not self.has_loaded:
            await self.current.backend.aclose()  # no request waits for a load
        await self.scheduler.aclose(patience)
        await self.current.backend.aclose()
        self._watching.cancel()
        await asyncio.gather(self._loading, self._watching, *self._tasks, return_exceptions=True)


def _describe(info: BackendInfo) -> str:
    models = (f"{served.name} ({', '.join(served.tasks)})" for served in info.models.values())
    return f"{', '.join(models)}; {info.device}, {info.dtype}, {info.threads} threads"
