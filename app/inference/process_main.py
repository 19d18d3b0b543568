"""What runs in the inference processes: load once, fork, then answer one batch after the other.

The first process loads the weights and forks the others, which share its memory. On a CPU under Linux there is
one process per core, because threads that share a forward pass wait for each other at each operation, and for
any thread that lost its core to HTTP.
"""

from __future__ import annotations

import ctypes
import gc
import logging.config
import multiprocessing
import os
import pickle
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.context import ForkProcess
from typing import TYPE_CHECKING, Any

from app.inference.types import Answer, BackendConfig, BackendInfo, Query, Task
from model.tokenizer import Encoding

if TYPE_CHECKING:
    from app.inference.torch_backend import TorchBackend

logger = logging.getLogger(__name__)

HEADER_BYTES = 8
"""Each message is a pickle after its length in so many bytes."""
PICKLABLE_PACKAGES = frozenset({"app", "model", "builtins"})
"""Packages whose errors the HTTP process can import without loading torch."""
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def frame(message: Any) -> bytes:
    """A message as it is sent."""
    body = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return len(body).to_bytes(HEADER_BYTES, "little") + body


def pack(query: Query) -> tuple[Any, ...]:
    """The parts of a query that the model needs; the characters' positions stay in the HTTP process."""
    encoding, asked = query.encoding, (query.masks, query.top_k, query.targets, query.raw_scores)
    return str(query.task), encoding.input_ids, encoding.token_type_ids, *asked


def _unpack(task: str, ids: list[int], types: list[int], *asked: Any) -> Query:
    return Query(Task(task), Encoding(ids, types, [], truncated=False), *asked)


def run_first_process(sockets: list[socket.socket], config: BackendConfig) -> None:
    """Load the weights, fork a process for each further socket that is needed, and serve on the first socket."""
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    if config.logs is not None:
        logging.config.dictConfig(config.logs)
    try:
        from app.inference.torch_backend import TorchBackend

        backend = TorchBackend(config, one_process_per_thread=sys.platform == "linux")
        with suppress(BrokenPipeError, ConnectionResetError):  # the HTTP process has ended
            loaded = _load_and_fork(backend, sockets)
            sockets[0].sendall(frame(loaded))
            if not isinstance(loaded, Exception):
                _serve(backend, sockets[0])
    except Exception:
        logger.critical("the inference process cannot go on", exc_info=True)
    finally:
        os._exit(1)  # without waiting for the forks, which end with this process


def _load_and_fork(
    backend: TorchBackend, sockets: Sequence[socket.socket]
) -> tuple[BackendInfo, list[int]] | Exception:
    """The first process's message once all processes can compute: what is loaded, and the ids of the forks."""
    try:
        backend.load()
        gc.collect()
        gc.freeze()
        context = multiprocessing.get_context("fork")
        numbers = range(1, backend.info.processes)
        forked = [context.Process(target=_run_fork, args=(backend, sockets, n), daemon=True) for n in numbers]
        for process in forked:
            process.start()
        for process in forked:
            threading.Thread(target=_end_with_fork, args=(process,), name="watcher", daemon=True).start()
        for other in sockets[1 : backend.info.processes]:  # the forks have them; the HTTP process closes the rest
            other.close()
        backend.warm_up_alone()
    except Exception as error:
        return make_picklable(error)
    return backend.info, [process.pid for process in forked if process.pid is not None]


def _run_fork(backend: TorchBackend, sockets: Sequence[socket.socket], number: int) -> None:
    """Serve in a fork, which the kernel kills when the first process ends.

    A fork must compute with one thread: OpenMP's other threads exist in the first process only.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    first = multiprocessing.parent_process()
    assert first is not None
    if os.getppid() != first.pid:  # the first process ended before prctl
        return
    for i, other in enumerate(sockets):
        if i != number:
            other.close()
    with suppress(BrokenPipeError, ConnectionResetError):
        _serve(backend, sockets[number])


def _serve(backend: TorchBackend, connection: socket.socket) -> None:
    """Answer batches until the HTTP process closes the connection."""
    with connection.makefile("rb") as stream:
        while header := stream.read(HEADER_BYTES):
            encoder, packed, alone = pickle.loads(stream.read(int.from_bytes(header, "little")))  # noqa: S301 (our own)
            connection.sendall(frame(_answer(backend, encoder, packed, alone)))


def _answer(backend: TorchBackend, encoder: str, packed: list[tuple[Any, ...]], alone: bool) -> Any:
    """(scores, token ids) or an error for each query; or the one error of the batch."""
    try:
        answers = backend.run(encoder, [_unpack(*row) for row in packed], alone=alone)
    except Exception as error:
        return make_picklable(error)
    return [(given.scores, given.token_ids) if isinstance(given, Answer) else given for given in answers]


def _end_with_fork(process: ForkProcess) -> None:
    """In a thread of the first process: end it when a fork ends, so that the HTTP process notices."""
    process.join()
    logger.critical("a forked inference process ended with exit code %s", process.exitcode)
    if process.exitcode == -signal.SIGKILL:  # end in the same way, which the HTTP process explains
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(1)


def _end_with_parent() -> None:
    """In a thread: end this process with the HTTP process, also during a batch or a load that hangs."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(0)


def make_picklable(error: Exception) -> Exception:
    """The error with its traceback as a note; in words, if the HTTP process would have to load torch for it."""
    trace = "".join(traceback.format_exception(error))
    error.add_note(trace)
    with suppress(Exception):
        if type(error).__module__.partition(".")[0] in PICKLABLE_PACKAGES:
            pickle.loads(pickle.dumps(error))  # noqa: S301 (our own)
            return error
    replacement = RuntimeError(f"{type(error).__name__}: {error}")
    replacement.add_note(trace)
    return replacement
