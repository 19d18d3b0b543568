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
from multiprocessing.context import SpawnProcess
from pathlib import Path

from app.logs import log_config
from app.settings import Settings

logger = logging.getLogger(__name__)

SHARED_METRICS = "PROMETHEUS_MULTIPROC_DIR"
"""Environment variable, read by prometheus_client when it is imported."""

FAILED = 3  # exit code of a process that cannot start; uvicorn's own


class Workers:
    """Processes that serve the same port, each with its own models; one that crashes is replaced.

    They are spawned, never forked: CUDA does not survive a fork. Each listens with its own socket
    (SO_REUSEPORT), so the kernel spreads connections evenly.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.context = multiprocessing.get_context("spawn")
        self.processes: list[SpawnProcess] = []
        self.ending = False

    def run(self) -> int:
        """Serve until a signal comes or a worker cannot start. Returns the exit code."""
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
        for sig in (signal.SIGTERM, signal.SIGINT):
            signal.signal(sig, self._end)
        signal.signal(signal.SIGHUP, self._reload)
        self.processes = [self._spawn() for _ in range(self.settings.workers)]
        codes: list[int] = []
        while self.processes:
            multiprocessing.connection.wait([process.sentinel for process in self.processes])
            codes += self._reap()
        reserved.close()
        return max(codes, default=0)

    def _spawn(self) -> SpawnProcess:
        process = self.context.Process(target=_serve_worker, args=(self.settings,))
        handler = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # inherited: it has no handler at first
        process.start()
        signal.signal(signal.SIGHUP, handler)
        return process

    def _reap(self) -> list[int]:
        """Exit codes of workers that ended for good; crashed ones are replaced."""
        codes = []
        for process in [process for process in self.processes if process.exitcode is not None]:
            self.processes.remove(process)
            for gauge in Path(os.environ[SHARED_METRICS]).glob(f"gauge_live*_{process.pid}.db"):
                gauge.unlink(missing_ok=True)  # its requests are gone with it; what it counted stays
            if not self.ending and process.exitcode != FAILED:
                logger.error("worker %s ended with %s; starting another", process.pid, process.exitcode)
                self.processes.append(self._spawn())
                continue
            # A worker that is told to end before it can listen to that has lost nothing.
            codes.append(0 if process.exitcode == -signal.SIGTERM else abs(process.exitcode or 0))
            self._end()
        return codes

    def _end(self, *_: object) -> None:
        self.ending = True
        for process in self.processes:
            process.terminate()  # SIGTERM: drain

    def _reload(self, *_: object) -> None:
        for process in self.processes:
            if process.pid is not None and process.is_alive():
                os.kill(process.pid, signal.SIGHUP)


def _serve_worker(settings: Settings) -> None:
    from app.server import run_worker  # torch, which the parent does without

    own = _bind(settings.host, settings.port, shared=True)
    sys.exit(run_worker(settings, [own]))


def _reserve(host: str, port: int) -> socket.socket:
    """Hold a port that nobody else listens on, without listening.

    Raises:
        OSError: it is taken.
    """
    with _bind(host, port, shared=False) as probe:
        port = probe.getsockname()[1]
    return _bind(host, port, shared=True)


def _bind(host: str, port: int, *, shared: bool) -> socket.socket:
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
