"""One uvicorn per process: signals, draining, and N processes on one port."""

from __future__ import annotations

import logging
import logging.config
import multiprocessing
import multiprocessing.connection
import signal
import socket
import sys
import time
from collections.abc import Callable
from multiprocessing.context import SpawnProcess
from types import FrameType

import uvicorn
from fastapi import FastAPI

from app.engine import Engine
from app.logs import log_config
from app.settings import Settings

logger = logging.getLogger(__name__)

CreateApp = Callable[[Settings], FastAPI]

FAILED = 3  # uvicorn's own code for an application that cannot start


class DrainingServer(uvicorn.Server):
    """Uvicorn that, on SIGTERM, keeps listening until the accepted requests are answered.

    The port stays open meanwhile, so that a load balancer sees readiness turn 503 and a late request gets
    503 instead of a refused connection. Uvicorn would also raise the signal anew at the end, and so exit
    with a code that says "killed".
    """

    def __init__(self, config: uvicorn.Config, engine: Engine, drain_seconds: float) -> None:
        super().__init__(config)
        self.engine = engine
        self.drain_seconds = drain_seconds
        self.drain_until: float | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """A first signal drains; Ctrl-C after that ends at once."""
        if self.drain_until is not None:
            self.force_exit = self.should_exit = sig == signal.SIGINT
            return
        self.drain_until = time.monotonic() + self.drain_seconds
        self.engine.drain()

    async def on_tick(self, counter: int) -> bool:
        """Every 0.1 s: whether to end."""
        if self.engine.failure is not None and not self.engine.loaded:
            return True
        if self.drain_until is None or self.should_exit:
            return await super().on_tick(counter)
        if not self.engine.refusing:
            # What had reached the socket when the signal came was read in the tick since then, and counts as
            # accepted. What comes now is refused.
            self.engine.refuse()
            return False
        return not self.server_state.tasks or time.monotonic() >= self.drain_until


def run(create_app: CreateApp, settings: Settings) -> int:
    """Serve until a signal comes. Returns the exit code."""
    if settings.workers == 1:
        return _run_worker(create_app, settings)
    return Workers(create_app, settings).run()


def _run_worker(create_app: CreateApp, settings: Settings, sockets: list[socket.socket] | None = None) -> int:
    sys.setswitchinterval(
        0.001
    )  # the inference thread's Python parts shall not hold up the event loop for 5 ms
    app = create_app(settings)
    engine: Engine = app.state.engine
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        loop="auto",
        http="httptools",
        ws="none",
        lifespan="on",
        access_log=settings.log_level == "debug",
        log_config=log_config(settings.log_format, settings.log_level),
        server_header=False,
        backlog=4096,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=1,  # by then the drain is over
    )
    server = DrainingServer(config, engine, settings.drain_seconds)
    try:
        server.run(sockets)
    except SystemExit as error:  # the port is taken
        return error.code if isinstance(error.code, int) else FAILED
    if engine.failure is not None:
        print(f"bert-serve: {engine.failure}", file=sys.stderr)  # noqa: T201 (the one line that explains the exit)
        return FAILED
    return 0


class Workers:
    """Processes that serve the same port, each with its own models; one that crashes is replaced.

    They are spawned, never forked: CUDA does not survive a fork. Each listens with its own socket
    (SO_REUSEPORT), so the kernel spreads connections evenly.
    """

    def __init__(self, create_app: CreateApp, settings: Settings) -> None:
        self.create_app = create_app
        self.settings = settings
        self.context = multiprocessing.get_context("spawn")
        self.processes: list[SpawnProcess] = []
        self.ending = False

    def run(self) -> int:
        """Serve until a signal comes or a worker cannot start. Returns the exit code."""
        logging.config.dictConfig(log_config(self.settings.log_format, self.settings.log_level))
        try:
            reserved = _reserve(self.settings.host, self.settings.port)
        except OSError as error:
            print(f"bert-serve: {error}", file=sys.stderr)  # noqa: T201 (the one line that explains the exit)
            return FAILED
        self.settings = self.settings.model_copy(update={"port": reserved.getsockname()[1]})
        for sig in (signal.SIGTERM, signal.SIGINT):
            signal.signal(sig, self._end)
        self.processes = [self._spawn() for _ in range(self.settings.workers)]
        codes: list[int] = []
        while self.processes:
            multiprocessing.connection.wait([process.sentinel for process in self.processes])
            codes += self._reap()
        reserved.close()
        return max(codes, default=0)

    def _spawn(self) -> SpawnProcess:
        process = self.context.Process(target=_serve_worker, args=(self.create_app, self.settings))
        process.start()
        return process

    def _reap(self) -> list[int]:
        """Exit codes of workers that ended for good; crashed ones are replaced."""
        codes = []
        for process in [process for process in self.processes if process.exitcode is not None]:
            self.processes.remove(process)
            if not self.ending and process.exitcode != FAILED:
                logger.error("worker %s ended with %s; starting another", process.pid, process.exitcode)
                self.processes.append(self._spawn())
                continue
            codes.append(abs(process.exitcode or 0))
            self._end()
        return codes

    def _end(self, *_: object) -> None:
        self.ending = True
        for process in self.processes:
            process.terminate()  # SIGTERM: drain


def _serve_worker(create_app: CreateApp, settings: Settings) -> None:
    own = _bind(settings.host, settings.port, shared=True)
    sys.exit(_run_worker(create_app, settings, [own]))


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
