"""The fork server and its inference processes, as the HTTP process sees them."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import pickle
import signal
import socket
import time
from collections import deque
from contextlib import suppress
from multiprocessing import resource_tracker
from multiprocessing.context import SpawnProcess
from multiprocessing.util import Finalize
from typing import Any

from app.errors import BackendDiedError, ProcessDiedError
from app.inference.contract import BackendConfig, BackendInfo
from app.inference.frames import HEADER_BYTES, frame
from app.inference.process_main import NUMBER_BYTES, explain_exit, fork_server_main

_BLOCKED_SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTTOU}
"""Signals of a terminal are meant for the HTTP process, which needs the other processes while it drains. SIGTTOU would
stop a process that logs."""
EXIT_SECONDS = 5.0
"""Seconds to wait for the end of a process that has closed its connection, and again after killing it."""


class ForkServer:
    """The spawned process that loads the weights; see `app.inference.process_main`."""

    def __init__(self, config: BackendConfig) -> None:
        """Start the process. Raises BackendDiedError if the system has no room for it."""
        try:
            self._process, self._control = _spawn(config)
        except OSError as error:
            raise BackendDiedError(
                f"no inference process can be started ({error.strerror}): raise the limit of open files (ulimit -n), "
                "of processes or of memory"
            ) from error
        self._exit_reason: asyncio.Task[str] | None = None
        Finalize(self, self._process.kill, exitpriority=1)  # at exit, multiprocessing waits for its processes

    async def load(self) -> BackendInfo:
        """Wait until the models are loaded.

        Raises:
            BackendDiedError: it ended while it was loading.
            Exception: the error of loading.
        """
        reader, writer = await asyncio.open_connection(sock=self._control.dup())
        try:
            loaded = await _receive(reader)
        except (EOFError, ConnectionError):
            raise BackendDiedError(await self.exit_reason()) from None
        finally:
            writer.close()
        return _checked(loaded)

    async def start_process(self, number: int) -> InferenceProcess:
        """Start the inference process with this number, and wait until it can compute.

        Raises:
            ProcessDiedError: it ended before, or the fork server did.
            OSError: the system has no room for it.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            process = InferenceProcess(*await asyncio.open_connection(sock=ours))
            with suppress(OSError):  # if the fork server has ended, `start` finds the connection closed
                socket.send_fds(self._control, [number.to_bytes(NUMBER_BYTES, "little")], [theirs.fileno()])
        try:
            await process.start()
        except BaseException:
            process.close()
            raise
        return process

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended. Its forks end with it, or a moment earlier."""
        return not self._process.is_alive()

    def kill(self) -> None:
        """Kill the process and its forks."""
        self._process.kill()

    async def exit_reason(self) -> str:
        """The reason why the process ended; waits until it has."""
        if self._exit_reason is None:
            self._exit_reason = asyncio.create_task(asyncio.to_thread(self._join))
        return await asyncio.shield(self._exit_reason)

    def _join(self) -> str:
        """Wait for the process in a thread, because it may take a moment. Returns the reason of its end."""
        self._process.join(EXIT_SECONDS)
        self._control.close()
        must_be_killed = self._process.is_alive()
        if must_be_killed:
            self._process.kill()
            self._process.join(EXIT_SECONDS)
        until, pid = time.monotonic() + EXIT_SECONDS, self._process.pid
        assert pid is not None
        with suppress(ChildProcessError):  # no child is left; forks become children only of process 1 of a container
            while time.monotonic() < until:
                if not os.waitpid(-pid, os.WNOHANG)[0]:  # any of the process group
                    time.sleep(0.01)
        if must_be_killed:
            return "the inference process closed its connection and was killed"
        return explain_exit(self._process.exitcode)


class InferenceProcess:
    """An inference process, which computes batches in the order in which they are sent."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.pid = 0
        self.ready_at = 0.0
        """`time.monotonic()` when it could compute."""
        self.computed_seconds = 0.0
        """Time of all batches so far."""
        self.computing_since: float | None = None
        """`time.monotonic()` when the process got the batch that it computes."""
        self._reader = reader
        self._writer = writer
        self.replies: deque[asyncio.Future[Any]] = deque()
        """Replies to the batches that it has got and not answered, the oldest first."""

    async def start(self) -> None:
        """Wait until the process can compute. Raises ProcessDiedError, or the error if it cannot be forked."""
        try:
            self.pid = _checked(await _receive(self._reader))
        except (EOFError, ConnectionError):
            raise ProcessDiedError from None
        self.ready_at = time.monotonic()

    async def ask(self, batch: bytes) -> bytes:
        """Send a batch, and wait for the reply; see `app.inference.frames`.

        Raises:
            ProcessDiedError: the process ended first.
            Exception: the error of the process.
        """
        if self._writer.is_closing():  # uvloop raises RuntimeError on a write
            raise ProcessDiedError
        reply = asyncio.get_running_loop().create_future()
        self.replies.append(reply)
        self.computing_since = self.computing_since or time.monotonic()
        self._writer.write(frame(batch))
        try:
            return _checked(await reply)
        finally:  # break the cycle reply -> exception -> traceback -> this frame
            del reply

    async def deliver_replies(self) -> None:
        """Deliver the replies until the process ends."""
        try:
            with suppress(EOFError, ConnectionError):
                while True:
                    self._settle(await _receive(self._reader))
        finally:  # even if cancelled before the connection ends
            while self.replies:
                self._settle(ProcessDiedError())
            self.close()

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Close the connection, after which the process ends with its current batch."""
        self._writer.close()

    def _settle(self, reply: Any) -> None:
        """Deliver the reply, or an error in its place, to the oldest caller of `ask`, unless that was cancelled."""
        waiting = self.replies.popleft()
        self.computing_since = time.monotonic() if self.replies else None
        if not waiting.done():
            waiting.set_result(reply)


def _spawn(config: BackendConfig) -> tuple[SpawnProcess, socket.socket]:
    """Start the process. Returns it, and our end of the connection to it."""
    ours, theirs = socket.socketpair()
    context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
    process = context.Process(target=fork_server_main, args=(theirs, config), name="inference")
    resource_tracker.ensure_running()  # before the mask, because starting it unblocks signals
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED_SIGNALS)  # inherited by the process
    try:
        process.start()
    except OSError:
        ours.close()
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
    return process, ours


async def _receive(reader: asyncio.StreamReader) -> Any:
    """The next message of a process. Raises EOFError or ConnectionError if the connection has ended."""
    header = await reader.readexactly(HEADER_BYTES)
    return pickle.loads(await reader.readexactly(int.from_bytes(header, "little")))  # noqa: S301 (our own process)


def _checked(reply: Any) -> Any:
    """The reply. An error is raised instead."""
    if isinstance(reply, Exception):
        try:
            raise reply
        finally:
            del reply  # its traceback holds this frame: a cycle
    return reply
