"""Inference processes, started and spoken to from the event loop.

PyTorch and the event loop do not share a process, because they would share Python's lock: a forward pass takes
it between any two of its hundreds of operations and then waits for the event loop. Under load, passes took five
times as long.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import pickle
import signal
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing import resource_tracker
from multiprocessing.context import SpawnProcess
from multiprocessing.util import Finalize
from typing import Any

from app.errors import BackendDiedError
from app.inference.process_main import HEADER_BYTES, frame, pack, run_first_process
from app.inference.types import Answer, BackendConfig, BackendInfo, Query

_BUSY_FRACTION, _BUSY_CHECK_SECONDS = 0.5, 0.25
"""Fraction of a core from which on the HTTP process counts as busy, and how often that is looked at."""
_BLOCKED_SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
"""Signals to the whole process group concern the HTTP process, which needs the others while it drains."""
_EXIT_SECONDS = 5.0
"""Seconds to wait for the end of a process that has closed its connection, and again after killing it."""
_KILLED = (
    "the inference process was killed by signal 9, probably by the operating system because memory ran out; raise the "
    "memory limit of the container, or set a lower BERT_THREADS (one process for each) or BERT_MAX_BATCH_TOKENS"
)


class ProcessPool:
    """A `Backend` of one process, or on a CPU of one process per core, which share the weights' memory."""

    def __init__(self, config: BackendConfig) -> None:
        self.info = BackendInfo(config.device, config.dtype, config.threads)
        self._config = config
        self._process: SpawnProcess | None = None
        self._channels: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        """The connection to each process: one request at a time, and its reply."""
        self._forked: list[int] = []
        self._free: asyncio.PriorityQueue[int] = asyncio.PriorityQueue()
        """Numbers of the processes without a batch, the lowest first: only process 0 can use all threads."""
        self._closed = False
        self._on_death: Callable[[BackendDiedError], None] | None = None
        self._death: asyncio.Task[str] | None = None
        self._busy_checked, self._busy_time = time.monotonic(), time.process_time()
        self._http_is_busy = False

    async def load(self, on_death: Callable[[BackendDiedError], None]) -> None:
        """See `Backend.load`. The processes are started here."""
        if self._closed:
            raise BackendDiedError("closed before it was loaded")
        try:
            ends = self._start()
        except OSError as error:
            raise BackendDiedError(
                f"no inference process can be started ({error.strerror}): raise the limit of open files (ulimit -n), "
                "of processes or of memory"
            ) from error
        for ours in ends:
            self._channels.append(await asyncio.open_connection(sock=ours))
        self.info, self._forked = await self._exchange(0, None)
        for _, unused in self._channels[self.info.processes :]:
            unused.close()
        for number in range(self.info.processes):
            self._free.put_nowait(number)
        self._on_death = on_death
        if self._death is not None:
            raise await self._death_error()

    def _start(self) -> list[socket.socket]:
        """Start the first process. Returns our ends of the connections: as many as processes may be needed."""
        pairs = [socket.socketpair() for _ in range(self._config.threads)]
        ours, theirs = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
        process = context.Process(target=run_first_process, args=(theirs, self._config), name="inference")
        resource_tracker.ensure_running()  # before the mask, because starting it unblocks signals
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED_SIGNALS)  # inherited by the process
        try:
            process.start()
        except OSError:  # too many processes or files, or no memory
            for end in ours:
                end.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            for end in theirs:
                end.close()
        self._process = process
        asyncio.get_running_loop().add_reader(process.sentinel, self._on_end)
        Finalize(self, process.kill, exitpriority=1)  # at exit, multiprocessing waits for its processes
        return ours

    async def run(self, encoder: str, queries: Sequence[Query]) -> Sequence[Answer | Exception]:
        """See `Backend.run`."""
        number = await self._free.get()
        alone = number == 0 and len(queries) == 1 and self._free.qsize() == self.info.processes - 1
        try:
            answers = await self._exchange(number, (encoder, [pack(query) for query in queries], alone))
        # Not after CancelledError: the process still computes, and its late reply would go to the next request.
        except Exception:
            self._free.put_nowait(number)
            raise
        self._free.put_nowait(number)
        return [given if isinstance(given, Exception) else Answer(*given) for given in answers]

    async def aclose(self) -> None:
        """See `Backend.aclose`."""
        self._closed = True
        self._on_death = None
        if self._process is not None:
            self._process.kill()
            await self._death_error()
        for _, writer in self._channels:
            writer.close()

    @property
    def preferred_concurrent_batches(self) -> int:
        """See `Backend.preferred_concurrent_batches`: one batch fewer while the HTTP process is busy."""
        now = time.monotonic()
        if now - self._busy_checked > _BUSY_CHECK_SECONDS:
            used = time.process_time()
            self._http_is_busy = used - self._busy_time > _BUSY_FRACTION * (now - self._busy_checked)
            self._busy_checked, self._busy_time = now, used
        return max(self.info.processes - self._http_is_busy, 1)

    async def _exchange(self, number: int, request: Any) -> Any:
        """Send a request, if there is one, and wait for the reply.

        Raises:
            BackendDiedError: the process ended first.
            Exception: what the process raised.
        """
        reader, writer = self._channels[number]
        if writer.is_closing():  # uvloop raises RuntimeError at a write
            raise await self._death_error()
        if request is not None:
            writer.write(frame(request))
        try:
            header = await reader.readexactly(HEADER_BYTES)
            body = await reader.readexactly(int.from_bytes(header, "little"))
        except (EOFError, OSError):
            raise await self._death_error() from None
        reply = pickle.loads(body)  # noqa: S301 (our own process)
        if isinstance(reply, Exception):
            try:
                raise reply
            finally:
                del reply  # its traceback holds this frame, and so the batch: a cycle
        return reply

    def _on_end(self) -> None:
        """A process has ended, or its connection: all end together."""
        if self._death is None:
            assert self._process is not None
            asyncio.get_running_loop().remove_reader(self._process.sentinel)
            self._death = asyncio.create_task(self._join_processes(self._process))

    async def _death_error(self) -> BackendDiedError:
        """Wait for the end of the processes. Returns why no batch can be computed."""
        self._on_end()
        assert self._death is not None
        return BackendDiedError(await asyncio.shield(self._death))

    async def _join_processes(self, process: SpawnProcess) -> str:
        """Wait for the end of the processes, and report it. Returns the reason."""
        ended_alone = await asyncio.to_thread(self._join, process)
        reason = f"the inference process ended with exit code {process.exitcode}; the log may have the reason"
        if ended_alone and process.exitcode == -signal.SIGKILL and not self._closed:
            reason = _KILLED
        if self._on_death is not None:
            self._on_death(BackendDiedError(reason))
        return reason

    def _join(self, process: SpawnProcess) -> bool:
        """In a thread, because it may take a moment. Returns whether the first process ended before this killed it."""
        process.join(_EXIT_SECONDS)
        ended_alone = not process.is_alive()
        process.kill()  # without effect after it has ended
        process.join(_EXIT_SECONDS)
        for number in self._forked:
            with suppress(ChildProcessError):  # they are children of this process if it is process 1 of a container
                os.waitpid(number, 0)
        return ended_alone
