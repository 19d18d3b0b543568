"""The inference processes: they load the weights once, then compute one batch after the other.

On a CPU under Linux there is one inference process per core. Threads that share a forward pass would wait for each
other at each operation, and for any thread that lost its core to HTTP. The processes are forks of a fork server, which
loads the weights, computes no batch, and forks again when a fork has ended. The forks share its memory. A GPU's context
does not survive a fork, so there the process that loads also computes.
"""

from __future__ import annotations

import ctypes
import gc
import logging.config
import multiprocessing
import os
import pickle
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from app.errors import BackendDiedError
from app.inference.contract import BackendConfig, BackendInfo
from app.inference.frames import HEADER_BYTES, frame, read_batch, write_scores

if TYPE_CHECKING:
    from app.inference.torch_backend import TorchBackend

logger = logging.getLogger(__name__)

T = TypeVar("T")

NUMBER_BYTES = 4
"""Length of the inference process's number, which the fork server receives with a connection."""
PICKLABLE_PACKAGES = frozenset({"app", "model", "builtins"})
"""Packages whose errors the HTTP process can import without loading torch."""
KILLED = (
    "the inference process was killed by signal 9: by the service if a batch timed out before, else probably by the "
    "operating system because memory ran out; then raise the memory limit of the container, or set a lower "
    "BERT_THREADS (one process for each) or BERT_MAX_BATCH_TOKENS"
)

_NICE = 5
"""Inference processes have a lower priority: while the HTTP process waits for a core, batches cannot fill up."""
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_THREADS = Path("/proc/self/task")
_THREAD_END_SECONDS = 5.0
"""Time for threads to end before a fork. A library may have started one that never ends."""


def pickled(message: Any) -> bytes:
    """A pickled message with its header."""
    return frame(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))


def explain_exit(code: int | None) -> str:
    """The reason why an inference process ended, from its exit code; negative for a signal."""
    if code == -signal.SIGKILL:
        return KILLED
    how = f"exit code {code}" if code is None or code >= 0 else f"signal {-code}"
    return f"the inference process ended with {how}; the log may have the reason"


def fork_server_main(control: socket.socket, config: BackendConfig) -> None:
    """Load the weights, send the backend's info through `control`, and serve each connection that comes through it: in
    a fork, or in this process where forks cannot compute."""
    os.setpgrp()  # so that the HTTP process finds the forks by their group after this process has ended
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    if config.logs is not None:
        logging.config.dictConfig(config.logs)
    try:
        from app.inference.torch_backend import TorchBackend

        forks = sys.platform == "linux"
        backend = TorchBackend(config, one_process_per_thread=forks)
        # Loading starts OpenMP's threads, which belong to the thread that computed. They end with it, so that forks can
        # start their own. A process that does not fork goes on in that thread, which has selected the GPU.
        threads = set(_THREADS.iterdir()) if forks else set()
        with ThreadPoolExecutor(1, "inference") as loader, suppress(BrokenPipeError, ConnectionResetError):
            loaded = loader.submit(_load, backend).result()
            control.sendall(pickled(loaded))
            if not isinstance(loaded, Exception):
                if forks and loaded.device == "cpu":
                    loader.shutdown()
                    _wait_for_other_threads(threads)
                    _fork_on_request(backend, control)
                else:
                    connection, number = _receive(control)
                    loader.submit(_serve, backend, connection, number).result()
    except Exception:
        logger.critical("the inference process cannot go on", exc_info=True)
    finally:
        os._exit(1)  # without waiting for the forks, which end with this process


def _load(backend: TorchBackend) -> BackendInfo | Exception:
    try:
        backend.load()
    except Exception as error:
        return make_picklable(error)
    gc.collect()
    gc.freeze()
    return backend.info


def _receive(control: socket.socket) -> tuple[socket.socket, int]:
    """Receive a connection to the HTTP process, and the number of the inference process that serves it. Raises
    ConnectionResetError if the HTTP process has ended."""
    number, files, _, _ = socket.recv_fds(control, NUMBER_BYTES, 1)
    if not files:
        raise ConnectionResetError
    return socket.socket(fileno=files[0]), int.from_bytes(number, "little")


def _wait_for_other_threads(threads: set[Path]) -> None:
    """Wait until only these threads run. `shutdown` returns before a thread has freed MKL's memory. A fork at that
    moment inherits the lock of that memory, and its first batch never ends."""
    until = time.monotonic() + _THREAD_END_SECONDS
    while not threads.issuperset(_THREADS.iterdir()) and time.monotonic() < until:
        time.sleep(0.001)


def _fork_on_request(backend: TorchBackend, control: socket.socket) -> None:
    """Fork an inference process for each connection that the HTTP process sends, until it closes `control`."""
    signal.signal(signal.SIGCHLD, _log_ended_forks)
    while True:
        connection, number = _receive(control)
        with connection:
            server = os.getpid()
            try:
                is_fork = os.fork() == 0
            except OSError as error:  # too many processes, or no memory
                connection.sendall(pickled(make_picklable(error)))
                continue
            if is_fork:
                control.close()
                _serve_in_fork(backend, connection, number, server)


def _serve_in_fork(backend: TorchBackend, connection: socket.socket, number: int, server: int) -> None:
    """Serve in a fork. The kernel kills it when the fork server ends. Does not return."""
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.nice(_NICE)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
        if os.getppid() == server:  # otherwise the server ended before prctl
            with suppress(BrokenPipeError, ConnectionResetError):
                _serve(backend, connection, number)
    except Exception:
        logger.critical("the inference process cannot go on", exc_info=True)
    finally:
        os._exit(1)


def _log_ended_forks(*_: object) -> None:
    """Handle SIGCHLD in the fork server: log forks that have ended."""
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            logger.error("process %d: %s", ended[0], explain_exit(os.waitstatus_to_exitcode(ended[1])))


def _serve(backend: TorchBackend, connection: socket.socket, number: int) -> None:
    """Send the process id once this process can compute, then compute batches until the connection is closed.

    A device may have several batches in flight: while it computes one, the next is launched, and only then the older
    one is awaited.
    """
    if number == 0:
        backend.warm_up_alone()
    connection.sendall(pickled(os.getpid()))
    launched: deque[tuple[float, Callable[[], bytes] | Exception]] = deque()
    done_at = 0.0
    while True:
        is_full = len(launched) == backend.info.in_flight
        if launched and (is_full or not select.select([connection], [], [], 0)[0]):  # nothing has arrived
            launched_at, wait = launched.popleft()
            reply = wait if isinstance(wait, Exception) else _result_or_error(wait)
            began, done_at = max(launched_at, done_at), time.perf_counter()
            if not isinstance(reply, Exception):
                reply = write_scores(done_at - began, reply)
            connection.sendall(pickled(reply))
            continue
        body = _received(connection, int.from_bytes(_received(connection, HEADER_BYTES), "little"))
        if not body:
            return
        launched.append((time.perf_counter(), _result_or_error(partial(backend.launch, read_batch(body)))))


def _received(connection: socket.socket, size: int) -> bytearray:
    """The next `size` bytes; empty if the connection has ended. Reads in a loop, because a process that was stopped by
    SIGSTOP gets only some of them from one call."""
    data, at = bytearray(size), 0
    while at < size:
        received = connection.recv_into(memoryview(data)[at:])
        if not received:
            return bytearray()
        at += received
    return data


def _result_or_error(work: Callable[[], T]) -> T | Exception:
    try:
        return work()
    except BackendDiedError:
        logger.critical("this process can compute no further batch, and ends", exc_info=True)
        os._exit(1)
    except Exception as raised:
        return make_picklable(raised)


def _end_with_parent() -> None:
    """End this process with the HTTP process, also during a batch or a load that hangs. Runs in a thread."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(0)


def make_picklable(error: Exception) -> Exception:
    """The error with its traceback as a note. It is replaced by its text if unpickling it would load torch."""
    trace = "".join(traceback.format_exception(error))
    error.add_note(trace)
    with suppress(Exception):
        if type(error).__module__.partition(".")[0] in PICKLABLE_PACKAGES:
            pickle.loads(pickle.dumps(error))  # noqa: S301 (our own)
            return error
    replacement = RuntimeError(f"{type(error).__name__}: {error}")
    replacement.add_note(trace)
    return replacement
