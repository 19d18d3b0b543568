"""N processes on one port. This one only watches them, and loads no torch."""

from __future__ import annotations

import ctypes
import logging
import logging.config
import math
import multiprocessing
import multiprocessing.connection
import multiprocessing.sharedctypes
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.context import SpawnProcess
from pathlib import Path

from app.access import announce
from app.logs import last_words, log_config
from app.settings import Settings

logger = logging.getLogger(__name__)

SHARED_METRICS = "PROMETHEUS_MULTIPROC_DIR"
"""Environment variable, read by prometheus_client when it is imported."""

FAILED = 3  # exit code of a process that cannot start; uvicorn's own
DIED = 4  # exit code of a process whose inference process died while it served
_STEADY = 60.0
"""Seconds after which a worker counts as healthy, and its end as news."""
_LONGEST_PAUSE = 60.0
_LOOK_SECONDS = 1.0
_SILENT = 30.0
"""Seconds without a heartbeat, after which a worker is killed: it holds its share of the connections."""
_LAST_SECONDS = 15.0
"""Beyond the time to drain: a process that computes is given eleven to end by itself."""
_METRICS_BYTES = 256 * 1024
"""More than the metrics of one worker take."""


@dataclass(slots=True)
class Worker:
    """A process, and of how many in a row it is the replacement."""

    process: SpawnProcess
    attempt: int
    began: float
    """`time.monotonic()`, as everywhere here."""
    heartbeats: ctypes.c_uint64
    """In shared memory; ten a second."""
    seen: int = 0
    silent: float = 0.0
    """Seconds in which this process looked, and saw no further one."""
    killed: bool = False


class Workers:
    """Processes that serve the same port, each with its own models; one that crashes is replaced.

    The first ones have to start, or the service ends. A later one that cannot, because its checkpoint is broken
    meanwhile, is tried again as long as others serve.

    They are spawned, never forked: CUDA does not survive a fork. Each listens with its own socket
    (SO_REUSEPORT), so the kernel spreads connections evenly.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.context = multiprocessing.get_context("spawn")
        self.workers: list[Worker] = []
        self.due: list[tuple[float, int]] = []
        """(when, attempt) of workers to start."""
        self.ending = False
        self.end_by = math.inf
        self.looked = time.monotonic()

    def run(self) -> int:
        """Serve until a signal comes or no worker can start. Returns the exit code."""
        try:
            shared = tempfile.TemporaryDirectory(prefix="bert-serve-")
        except OSError as error:
            last_words(f"no folder for the metrics of several workers: {error}", self.settings.log_format)
            return FAILED
        with shared as folder:
            # The files have holes, and who writes into one that cannot be filled is killed.
            free, needed = shutil.disk_usage(folder).free, self.settings.workers * _METRICS_BYTES
            if free < needed:
                reason = f"{folder}: {free:,} bytes are free, but the metrics of all workers may take {needed:,}"
                last_words(f"{reason}: make room, or set TMPDIR", self.settings.log_format)
                return FAILED
            os.environ[SHARED_METRICS] = folder
            return self._run()

    def _run(self) -> int:
        logging.config.dictConfig(log_config(self.settings.log_format, self.settings.log_level))
        try:
            reserved = _reserve(self.settings.host, self.settings.port)
        except OSError as error:
            last_words(str(error), self.settings.log_format)
            return FAILED
        self.settings = self.settings.model_copy(update={"port": reserved.getsockname()[1]})
        logger.info("%d workers on port %d", self.settings.workers, self.settings.port)
        announce(self.settings, os.environ)
        for sig in (signal.SIGTERM, signal.SIGINT):
            signal.signal(sig, self._end)
        signal.signal(signal.SIGHUP, self._reload)
        self.due = [(0.0, 0)] * self.settings.workers
        codes: list[int] = []
        while self.workers or (self.due and not self.ending):
            codes += self._start_due()
            multiprocessing.connection.wait([worker.process.sentinel for worker in self.workers], _LOOK_SECONDS)
            codes += self._reap()
            self._kill_hung()
        reserved.close()
        return max(codes, default=0)

    def _start_due(self) -> list[int]:
        """Exit codes of workers that should start now, and cannot, and are not tried again."""
        codes: list[int] = []
        now = time.monotonic()
        due = [attempt for when, attempt in self.due if when <= now]
        self.due = [(when, attempt) for when, attempt in self.due if when > now]
        for attempt in due:
            try:
                if not self.ending:
                    self._start(attempt)
            except OSError as error:  # too many processes or files, or no memory
                if not (attempt and self.workers):
                    logger.error("a worker cannot be started: %s", error)
                    codes.append(FAILED)
                    self._end()
                    continue
                again, pause = next_attempt(attempt, 0.0)
                logger.error("a worker cannot be started: %s; trying again in %g s", error, pause)
                self.due.append((now + pause, again))
        return codes

    def _start(self, attempt: int) -> None:
        heartbeats = multiprocessing.sharedctypes.RawValue(ctypes.c_uint64, 0)
        process = self.context.Process(target=_serve_worker, args=(self.settings, heartbeats))
        # Inherited: it has no handlers at first. This process is told of what comes meanwhile.
        resource_tracker.ensure_running()  # which unblocks signals as it starts
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, _held_back())
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        self.workers.append(Worker(process, attempt, time.monotonic(), heartbeats))
        if self.ending:  # the signal came meanwhile
            self._end()

    def _reap(self) -> list[int]:
        """Exit codes of workers that ended for good; crashed ones are replaced."""
        codes = []
        for worker in [worker for worker in self.workers if worker.process.exitcode is not None]:
            self.workers.remove(worker)
            code = worker.process.exitcode
            # Its requests are gone with it; what it counted stays, unless it never began.
            gone = "*" if code == FAILED else "gauge_live*"
            for file in Path(os.environ[SHARED_METRICS]).glob(f"{gone}_{worker.process.pid}.db"):
                file.unlink(missing_ok=True)
            if not self.ending and (code != FAILED or (worker.attempt and self.workers)):
                attempt, pause = next_attempt(worker.attempt, time.monotonic() - worker.began)
                hint = " (no room in the temporary directory?)" if code == -signal.SIGBUS else ""
                pid = worker.process.pid
                logger.error("worker %s ended with %s%s; starting another in %g s", pid, code, hint, pause)
                self.due.append((time.monotonic() + pause, attempt))
                continue
            # A worker that is told to end before it can listen to that has lost nothing.
            codes.append(0 if code == -signal.SIGTERM else abs(code or 0))
            self._end()
        return codes

    def _kill_hung(self) -> None:
        """Those that hang, and at the end those that do not end."""
        now = time.monotonic()
        passed = min(now - self.looked, _LOOK_SECONDS)  # while this process was stopped, they may have been as well
        self.looked = now
        for worker in self.workers:
            heartbeats = worker.heartbeats.value
            worker.silent = worker.silent + passed if heartbeats and heartbeats == worker.seen else 0.0
            worker.seen = heartbeats
            if not worker.killed and (worker.silent >= _SILENT or now >= self.end_by):
                logger.error("worker %s hangs: killed", worker.process.pid)
                worker.process.kill()
                worker.killed = True

    def _end(self, *_: object) -> None:
        if not self.ending:
            self.end_by = time.monotonic() + self.settings.drain_seconds + _LAST_SECONDS
        self.ending = True
        self.due.clear()
        for worker in self.workers:
            worker.process.terminate()  # SIGTERM: drain

    def _reload(self, *_: object) -> None:
        for process in [worker.process for worker in self.workers]:
            if process.pid is not None and process.is_alive():
                os.kill(process.pid, signal.SIGHUP)


def next_attempt(attempt: int, lived: float) -> tuple[int, float]:
    """Number of a worker's replacement, and the seconds until it is started: none after a while of health."""
    if attempt == 0 or lived >= _STEADY:
        return 1, 0.0
    return attempt + 1, min(2.0 ** min(attempt - 1, 10), _LONGEST_PAUSE)


def _held_back() -> set[signal.Signals]:
    """Signals that wait while a worker is started."""
    return {signal.SIGINT, signal.SIGHUP}  # Windows has only one of them


def _serve_worker(settings: Settings, heartbeats: ctypes.c_uint64) -> None:
    for sig in _held_back():  # one comes from a terminal, beside SIGTERM of the parent; one is to load anew
        signal.signal(sig, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _held_back())

    def heartbeat() -> None:
        heartbeats.value += 1

    from app.server import run_worker  # which imports this module

    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    own = bind(settings.host, settings.port, shared=True)
    sys.exit(run_worker(settings, [own], replaced=True, heartbeat=heartbeat))


def _end_with_parent() -> None:
    """Drain if the parent is gone without a word, killed for instance: nobody would ever end this process."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


def _reserve(host: str, port: int) -> socket.socket:
    """Hold a port that nobody else listens on, without listening.

    Raises:
        OSError: it is taken.
    """
    with bind(host, port) as probe:
        port = probe.getsockname()[1]
    return bind(host, port, shared=True)


def bind(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """A socket on a port, which others may share.

    Raises:
        OSError: it is taken.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        bound.bind((host, port))
    except OSError:
        bound.close()
        raise
    return bound
