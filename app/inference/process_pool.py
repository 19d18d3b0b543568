"""Starts the inference processes from the event loop, exchanges messages with them, and replaces them when they end.

PyTorch and the event loop do not share a process, because they would share Python's lock. A forward pass takes the lock
between any two of its hundreds of operations and then waits for the event loop. Under load, passes took five times as
long.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from app.errors import BackendDiedError, ProcessDiedError, UnavailableError
from app.inference.contract import BackendConfig, BackendInfo, BatchResult, Part
from app.inference.frames import read_scores, write_batch
from app.inference.processes import ForkServer, InferenceProcess

logger = logging.getLogger(__name__)

MAX_DEATHS, DEATH_WINDOW_SECONDS = 3, 60.0
"""Three processes that end within a minute are not the fault of single texts, so none is started again."""
_RESTART_PAUSE_SECONDS = 0.1
"""Pause after a process ended before it could compute, because forks may end just before their fork server does."""


class ProcessPool:
    """A `Backend` with one process, or on a CPU one process per core. The processes share the weights' memory."""

    def __init__(self, config: BackendConfig) -> None:
        self.info = BackendInfo(config.device, config.dtype, config.threads)
        self._config = config
        self._fork_server: ForkServer | None = None
        self._processes: dict[int, InferenceProcess] = {}
        """Running processes by number; only process 0 can use all threads."""
        self._keepers: list[asyncio.Task[None]] = []
        self._replacing = asyncio.Lock()
        self._deaths: deque[float] = deque(maxlen=MAX_DEATHS)
        """Times (`time.monotonic()`) at which processes have ended."""
        self._error: BackendDiedError | None = None
        """The reason why no batch can be computed any more."""
        self._on_death: Callable[[BackendDiedError], None] = lambda _: None
        self._on_start: Callable[[], None] = lambda: None

    async def load(self, on_death: Callable[[BackendDiedError], None], on_start: Callable[[], None]) -> None:
        """Start the processes and load the weights."""
        server, self.info = await self._start_server()
        for number in range(self.info.processes):
            try:
                process = await server.start_process(number)
            except ProcessDiedError:
                raise BackendDiedError(await server.exit_reason()) from None
            self._processes[number] = process
            self._keepers.append(asyncio.create_task(self._keep_running(number, process)))
        self._check_error()
        self._on_death, self._on_start = on_death, on_start

    async def _start_server(self) -> tuple[ForkServer, BackendInfo]:
        self._check_error()
        self._fork_server = ForkServer(self._config)
        return self._fork_server, await self._fork_server.load()

    async def run(self, encoder: str, parts: Sequence[Part]) -> BatchResult:
        """Send a batch to a free process, and wait for the outputs."""
        self._check_error()
        free = [number for number, process in self._processes.items() if len(process.replies) < self.info.in_flight]
        if not free:  # the process that it was meant for has just ended
            raise UnavailableError("loading", retry_after=1)
        number = min(free)
        alone = number == 0 and len(parts) == parts[0].inputs == 1 and len(free) == self.info.processes
        batch = write_batch(list(self.info.models).index(encoder), parts, alone=alone)
        try:
            process = self._processes[number]
            reply = await process.ask(batch)
        except ProcessDiedError:
            self._check_error()
            raise
        result = read_scores(parts, reply)
        process.computed_seconds += result.seconds
        return result

    async def aclose(self) -> None:
        """Kill the processes, and wait for their end."""
        self._on_death, self._on_start = lambda _: None, lambda: None
        self._end(BackendDiedError("the inference processes were closed"))
        if self._fork_server is not None:
            self._fork_server.kill()
            await self._fork_server.exit_reason()
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        self._keepers.clear()  # a cancelled task's traceback refers to this pool: the cycle would outlive `gc.freeze`
        for process in self._processes.values():
            process.close()

    def kill_hung(self, seconds: float) -> None:
        """Kill processes that compute a batch for too long."""
        until = time.monotonic() - seconds
        for process in self._processes.values():
            if process.computing_since is not None and process.computing_since < until:
                process.kill()

    def process_seconds(self) -> Mapping[int, tuple[float, float]]:
        """Seconds computing and waiting, by process number."""
        now = time.monotonic()
        return {
            number: (process.computed_seconds, now - process.ready_at - process.computed_seconds)
            for number, process in self._processes.items()
        }

    @property
    def slots(self) -> int:
        """Number of batches that the running processes take."""
        return len(self._processes) * self.info.in_flight

    @property
    def computing_since(self) -> float | None:
        """The earliest `InferenceProcess.computing_since`."""
        return min(
            (process.computing_since for process in self._processes.values() if process.computing_since), default=None
        )

    async def _keep_running(self, number: int, process: InferenceProcess) -> None:
        """Deliver the replies of a process, and replace it when it ends, until the pool ends."""
        try:
            while True:
                server, self._processes[number] = self._fork_server, process
                self._on_start()
                await process.deliver_replies()
                del self._processes[number]
                process = await self._replace(number, server)
                logger.info("inference process %d was replaced", number)
        except BackendDiedError as error:
            await asyncio.sleep(0)  # until the batches of the process have failed with ProcessDiedError
            self._end(error)
        except Exception as error:
            self._end(BackendDiedError(f"an inference process ended, and none can be started in its place: {error}"))

    async def _replace(self, number: int, server: ForkServer | None) -> InferenceProcess:
        """Start a process in place of a fork of `server` that has ended.

        Raises:
            BackendDiedError: too many processes have ended.
            Exception: the weights cannot be loaded again.
        """
        async with self._replacing:
            # A new server means that the old one's end ended several processes, and is already counted.
            if server is self._fork_server:
                self._count_death()
            while self._error is None:
                assert self._fork_server is not None
                if self._fork_server.has_ended:
                    logger.error("%s; loading the weights again", await self._fork_server.exit_reason())
                    await self._restart_server()
                with suppress(ProcessDiedError):
                    return await self._fork_server.start_process(number)
                await asyncio.sleep(_RESTART_PAUSE_SECONDS)
                if not self._fork_server.has_ended:
                    self._count_death()
            raise BackendDiedError(str(self._error))

    async def _restart_server(self) -> None:
        """Load the weights again. Raises BackendDiedError if they have changed, because waiting inputs were tokenized
        for the old ones."""
        _, info = await self._start_server()
        if _identity(info) != _identity(self.info):
            raise BackendDiedError("the checkpoints have changed since they were loaded; restart the service")

    def _count_death(self) -> None:
        """Count a process that ended. Raises BackendDiedError if there are too many."""
        now = time.monotonic()
        self._deaths.append(now)
        if len(self._deaths) == MAX_DEATHS and now - self._deaths[0] < DEATH_WINDOW_SECONDS:
            raise BackendDiedError(
                f"inference processes ended {MAX_DEATHS} times within {DEATH_WINDOW_SECONDS:g} s; see the log"
            )

    def _check_error(self) -> None:
        """Raise BackendDiedError if no batch can be computed any more."""
        if self._error is not None:
            raise BackendDiedError(str(self._error)) from None

    def _end(self, error: BackendDiedError) -> None:
        """Note the reason why no batch can be computed any more, and report it once."""
        if self._error is None:
            self._error = error
            self._on_death(error)


def _identity(info: BackendInfo) -> dict[str, tuple[Any, ...]]:
    """The parts of each model that must not change: weights, configuration and tokenizer."""
    return {name: (served.sha256, served.config, served.tokenizer.to_json()) for name, served in info.models.items()}
