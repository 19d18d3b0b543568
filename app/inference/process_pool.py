"""The backend in processes of its own, so that PyTorch and the event loop do not wait for one another.

In one process they share Python's lock: a forward pass takes it between any two of its hundreds of operations,
and each time waits until the event loop has let go of it. Under load a pass then takes five times as long.

On Linux, on a CPU, there is a process for each thread that it may take. Threads that share a forward pass wait
for each other at every turn, and for any of them that has lost its core to HTTP; processes wait for nobody. The
first one loads the weights and forks the others, so they share its memory.
"""

from __future__ import annotations

import ctypes
import gc
import logging.config
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess, SpawnProcess
from multiprocessing.util import Finalize
from pathlib import Path
from queue import PriorityQueue
from typing import TYPE_CHECKING, Any

from app.errors import BackendDiedError
from app.inference.types import Answer, Backend, Query, ServedModel, Task
from model.tokenizer import Encoding

if TYPE_CHECKING:
    from app.inference.torch_backend import TorchBackend

logger = logging.getLogger(__name__)

_BUSY_SHARE, _LOOK_SECONDS = 0.5, 0.25
"""Of a core, and how often it is looked at."""
_SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
"""Whoever sends them to all processes means the one that speaks HTTP: it still needs the other to drain."""
PICKLABLE_PACKAGES = {"app", "model", "builtins"}
"""Where errors are defined that the process which speaks HTTP can tell apart."""
_KILLED_WITHIN = 5.0
"""Seconds"""
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


@dataclass(frozen=True, slots=True)
class _Loaded:
    """What the first process says once all can compute."""

    models: dict[str, ServedModel]
    device: str
    dtype: str
    threads: int
    beside: list[int]
    """Ids of the processes that it has forked."""
    most_tokens: int
    tokens_per_second: float


class RemoteBackend:
    """`TorchBackend` in other processes, which end with this object or with this process."""

    def __init__(
        self,
        pretrained: Path,
        sentiment: Path,
        *,
        device: str,
        dtype: str,
        threads: int,
        logs: dict[str, Any] | None = None,
    ) -> None:
        """`logs`: configuration of the other processes' log, for `logging.config`."""
        self.models: dict[str, ServedModel] = {}
        self.device = device
        self.dtype = dtype
        self.threads = threads
        self.processes = 1
        self.most_tokens = 0
        self.tokens_per_second = 0.0
        self._directories = (pretrained, sentiment)
        self._logs = logs
        self._process: SpawnProcess | None = None
        self._watcher: threading.Thread | None = None
        self._lock = threading.Lock()
        self._ended = False
        self._closed = False
        self._died: Callable[[Backend, BackendDiedError], None] | None = None
        self._connections: list[Connection] = []
        self._beside: list[int] = []
        self._free: PriorityQueue[int] = PriorityQueue()
        """Processes without a batch; the first one first, since only that one can take all threads."""
        self._looked, self._used = time.monotonic(), time.process_time()
        self._busy = False

    def load(self) -> None:
        """See `Backend.load`. The processes are started here."""
        context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
        resource_tracker.ensure_running()  # which unblocks signals as it starts
        pipes = [context.Pipe() for _ in range(self.threads)]  # as many as it may want
        self._connections = [ours for ours, _ in pipes]
        others = [theirs for _, theirs in pipes]
        given = (others, *self._directories, self.device, self.dtype, self.threads, self._logs)
        with self._lock:
            if self._closed:
                raise BackendDiedError("closed before it was loaded")
            self._process = context.Process(target=_compute, args=given, name="inference")
            before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # it inherits this
            self._process.start()
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            # It has nothing to lose; and at exit, multiprocessing would wait for it for ever.
            self._end = Finalize(self, self._process.kill, exitpriority=1)
            watched = (self._process, self._beside, weakref.ref(self))
            self._watcher = threading.Thread(target=_watch, args=watched, name="watcher", daemon=True)
            self._watcher.start()
        for other in others:
            other.close()
        loaded: _Loaded = self._receive(0)
        self._beside += loaded.beside
        self.processes = 1 + len(loaded.beside)
        for connection in self._connections[self.processes :]:
            connection.close()
        for number in range(self.processes):
            self._free.put(number)
        self.most_tokens = loaded.most_tokens
        self.device, self.dtype, self.threads = loaded.device, loaded.dtype, loaded.threads
        self.tokens_per_second = loaded.tokens_per_second
        self.models = loaded.models

    def run(self, lane: str, queries: Sequence[Query]) -> Sequence[Answer | Exception]:
        """See `Backend.run`."""
        number = self._free.get()
        alone = number == 0 and len(queries) == 1 and self._free.qsize() == self.processes - 1
        try:
            self._send(number, (lane, [_packed(query) for query in queries], alone))
            answers = self._receive(number)
        finally:
            self._free.put(number)
        return [given if isinstance(given, Exception) else Answer(*given) for given in answers]

    def watch(self, died: Callable[[Backend, BackendDiedError], None]) -> None:
        """See `Backend.watch`."""
        with self._lock:
            self._died = died
            ended = self._ended
        if ended:
            died(self, self._death())

    def close(self) -> None:
        """See `Backend.close`."""
        with self._lock:
            self._closed = True
            self._died = None
        if self._watcher is not None:
            self._end()
            self._watcher.join(_KILLED_WITHIN)

    @property
    def at_once(self) -> int:
        """See `Backend.at_once`: one batch fewer while this process, which speaks HTTP, needs a core."""
        now, used = time.monotonic(), time.process_time()
        if now - self._looked > _LOOK_SECONDS:
            self._busy = used - self._used > _BUSY_SHARE * (now - self._looked)
            self._looked, self._used = now, used
        return max(self.processes - self._busy, 1)

    def _send(self, number: int, request: Any) -> None:
        try:
            self._connections[number].send(request)
        except OSError:
            raise self._death() from None

    def _receive(self, number: int) -> Any:
        try:
            reply = self._connections[number].recv()
        except (EOFError, OSError):
            raise self._death() from None
        if isinstance(reply, Exception):
            raise reply
        return reply

    def _death(self) -> BackendDiedError:
        assert self._process is not None
        assert self._watcher is not None
        if self._watcher is not threading.current_thread():
            self._watcher.join(_KILLED_WITHIN)
        return BackendDiedError(f"the inference process ended with exit code {self._process.exitcode}")


def _watch(process: SpawnProcess, beside: list[int], reference: weakref.ref[RemoteBackend]) -> None:
    """In a thread: wait for the end of the process, and tell who relies on it."""
    process.join()
    for number in beside:
        with suppress(ChildProcessError):  # they are ours if this is the first process of a container
            os.waitpid(number, 0)
    backend = reference()
    if backend is None:
        return
    with backend._lock:
        backend._ended = True
        died = backend._died
    if died is not None:
        died(backend, backend._death())


def _packed(query: Query) -> tuple[Any, ...]:
    """What the model needs of a query; the places of its tokens stay here."""
    encoding = query.encoding
    return str(query.task), encoding.input_ids, encoding.token_type_ids, query.masks, query.top_k, query.targets


def _unpacked(
    task: str, ids: list[int], types: list[int], masks: tuple[int, ...], top_k: int, targets: tuple[int, ...]
) -> Query:
    return Query(Task(task), Encoding(ids, types, [], truncated=False), masks, top_k, targets)


def _compute(
    connections: list[Connection],
    pretrained: Path,
    sentiment: Path,
    device: str,
    dtype: str,
    threads: int,
    logs: dict[str, Any] | None,
) -> None:
    """The first process."""
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    if logs is not None:
        logging.config.dictConfig(logs)
    from app.inference.torch_backend import TorchBackend

    forks = sys.platform == "linux"
    backend = TorchBackend(pretrained, sentiment, device=device, dtype=dtype, threads=threads, beside_others=forks)
    try:
        with suppress(EOFError, OSError):  # nobody is there any more
            prepared = _prepared(backend, connections)
            connections[0].send(prepared)
            if isinstance(prepared, _Loaded):
                _serve(backend, connections[0])
    finally:
        os._exit(1)  # the others end with this one; multiprocessing would wait for them


def _prepared(backend: TorchBackend, connections: Sequence[Connection]) -> _Loaded | Exception:
    """Load, and fork the other processes."""
    try:
        backend.load()
        gc.collect()
        gc.freeze()
        beside = [_fork(backend, connections, number) for number in range(1, backend.processes)]
        for process in beside:
            threading.Thread(target=_end_with, args=(process,), name="watcher", daemon=True).start()
        for connection in connections[1:]:
            connection.close()
        backend.load_alone()
    except Exception as error:
        return _picklable(error)
    return _Loaded(
        backend.models,
        backend.device,
        backend.dtype,
        backend.threads,
        [process.pid for process in beside if process.pid is not None],
        backend.most_tokens,
        backend.tokens_per_second,
    )


def _fork(backend: TorchBackend, connections: Sequence[Connection], number: int) -> ForkProcess:
    given = (backend, connections, number)
    process = multiprocessing.get_context("fork").Process(target=_beside, args=given, daemon=True)
    process.start()
    return process


def _beside(backend: TorchBackend, connections: Sequence[Connection], number: int) -> None:
    """Another process. It is killed when the first one ends, whatever it is doing.

    It must never compute with several threads: those of the first one, which OpenMP believes to have, were not
    forked.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    first = multiprocessing.parent_process()
    assert first is not None
    if os.getppid() != first.pid:  # it has ended before
        return
    for i, connection in enumerate(connections):
        if i != number:
            connection.close()
    with suppress(EOFError, OSError):
        _serve(backend, connections[number])


def _serve(backend: TorchBackend, connection: Connection) -> None:
    while True:
        lane, packed, alone = connection.recv()
        connection.send(_computed(backend, lane, packed, alone))


def _end_with(process: ForkProcess) -> None:
    """In a thread of the first process."""
    process.join()
    logger.critical("the inference process beside this one ended with exit code %s", process.exitcode)
    os._exit(1)


def _end_with_parent() -> None:
    """In a thread: also in the midst of a batch, or of a load that hangs."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(0)


def _computed(backend: TorchBackend, lane: str, packed: list[tuple[Any, ...]], alone: bool) -> Any:
    """Answers, or an error."""
    try:
        answers = backend.run(lane, [_unpacked(*row) for row in packed], alone=alone)
        return [_sent(answer) for answer in answers]
    except Exception as error:
        return _picklable(error)


def _sent(answer: Answer | Exception) -> Any:
    return answer if isinstance(answer, Exception) else (answer.scores, answer.token_ids)


def _picklable(error: Exception) -> Exception:
    """An error with its traceback, or what can be said of it, for the other process: that one is not to load
    PyTorch for an error of PyTorch's."""
    trace = "".join(traceback.format_exception(error))
    error.add_note(trace)
    with suppress(Exception):
        if type(error).__module__.partition(".")[0] in PICKLABLE_PACKAGES:
            pickle.loads(pickle.dumps(error))  # noqa: S301 (our own)
            return error
    told = RuntimeError(f"{type(error).__name__}: {error}")
    told.add_note(trace)
    return told
