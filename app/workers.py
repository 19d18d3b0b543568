"""N processes on one port. This one only watches them, and loads no torch."""

from __future__ import annotations

import logging
import logging.config
import multiprocessing
import multiprocessing.connection
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from multiprocessing.context import SpawnProcess
from pathlib import Path

from app.access import announce
from app.logs import log_config
from app.settings import Settings

logger = logging.getLogger(__name__)

SHARED_METRICS = "PROMETHEUS_MULTIPROC_DIR"
"""Environment variable, read by prometheus_client when it is imported."""

FAILED = 3  # exit code of a process that cannot start; uvicorn's own
DIED = 4  # exit code of a process whose inference process died while it served
_STEADY = 60.0
"""Seconds after which a worker counts as healthy, and its end as news."""
_LONGEST_PAUSE = 60.0


@dataclass(frozen=True, slots=True)
class Worker:
    """A process, and of how many in a row it is the replacement."""

    process: SpawnProcess
    attempt: int
    began: float
    """`time.monotonic()`, as everywhere here."""


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

    def run(self) -> int:
        """Serve until a signal comes or no worker can start. Returns the exit code."""
        with tempfile.TemporaryDirectory(prefix="bert-serve-") as folder:
            os.environ[SHARED_METRICS] = folder
            return self._run()

    def _run(self) -> int:
        logging.config.dictConfig(log_config(self.settings.log_format, self.settings.log_level))
        try:
            reserved = _reserve(self.settings.host, self.settings.port)
        except OSError as error:
            print(f"bert-serve: {error}", file=sys.stderr)  # noqa: T201 (the one line that explains the exit)
            return FAILED
        self.settings = self.settings.model_copy(update={"port": reserved.getsockname()[1]})
        logger.info("%d workers on port %d", self.settings.workers, self.settings.port)
        announce(self.settings, os.environ)
        for sig in (signal.SIGTERM, signal.SIGINT):
            signal.signal(sig, self._end)
        signal.signal(signal.SIGHUP, self._reload)
        self.due = [(0.0, 0)] * self.settings.workers
        codes: list[int] = []
        while self.workers or self.due:
            self._start_due()
            pause = 1.0 if self.due else None
            multiprocessing.connection.wait([worker.process.sentinel for worker in self.workers], pause)
            codes += self._reap()
        reserved.close()
        return max(codes, default=0)

    def _start_due(self) -> None:
        now = time.monotonic()
        due = [attempt for when, attempt in self.due if when <= now]
        self.due = [(when, attempt) for when, attempt in self.due if when > now]
        for attempt in due:
            if not self.ending:
                self._start(attempt)

    def _start(self, attempt: int) -> None:
        process = self.context.Process(target=_serve_worker, args=(self.settings,))
        handler = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # inherited: it has no handler at first
        process.start()
        signal.signal(signal.SIGHUP, handler)
        self.workers.append(Worker(process, attempt, time.monotonic()))
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
                logger.error(
                    "worker %s ended with %s; starting another in %g s", worker.process.pid, code, pause
                )
                self.due.append((time.monotonic() + pause, attempt))
                continue
            # A worker that is told to end before it can listen to that has lost nothing.
            codes.append(0 if code == -signal.SIGTERM else abs(code or 0))
            self._end()
        return codes

    def _end(self, *_: object) -> None:
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
    return attempt + 1, min(2.0 ** (attempt - 1), _LONGEST_PAUSE)


def _serve_worker(settings: Settings) -> None:
    from app.server import run_worker  # which imports this module

    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    own = bind(settings.host, settings.port, shared=True)
    sys.exit(run_worker(settings, [own], replaced=True))


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
