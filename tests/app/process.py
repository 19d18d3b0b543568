"""A `bert-serve` process on a free port, for tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.ports import free_port

PATIENCE = 120  # seconds; other jobs may hold the processor
WITHOUT_TORCH = {"PYTHONPATH": f"{Path(__file__).parent / 'without_torch'}:{os.environ.get('PYTHONPATH', '')}"}
"""The environment of a service whose models need not compute: it starts with a third of the processor time."""


def wait_until(condition: Callable[[], object]) -> None:
    """Ask every 0.02 s until it is true."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


class Process:
    """A running `bert-serve`."""

    def __init__(self, arguments: list[str], environ: dict[str, str], script: str | None = None) -> None:
        """`script`: Python to run instead of `-m app`; it finds host and port in the environment."""
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        place = {"BERT_HOST": "127.0.0.1", "BERT_PORT": str(self.port)}
        command = ["-m", "app", *arguments] if script is None else ["-c", script]
        self.process = subprocess.Popen(
            [sys.executable, *command],
            env=os.environ | place | environ,
            cwd=Path(__file__).parents[2],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def until_ready(self) -> None:
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and self.process.poll() is None:
            try:
                if self.get("/health/ready").status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.05)
        self.process.kill()
        raise AssertionError(self.process.communicate()[0])

    def get(self, path: str) -> httpx.Response:
        """The answer of a path."""
        return httpx.get(self.url + path, timeout=PATIENCE)

    def ask(self, inputs: object = "good") -> httpx.Response:
        """An answer of /sentiment."""
        return httpx.post(self.url + "/sentiment", json={"inputs": inputs}, timeout=PATIENCE)

    def metric(self, name: str) -> float:
        """The value of one line of /metrics; `name` includes the labels."""
        lines = self.get("/metrics").text.splitlines()
        return float(next(line.rsplit(" ", 1)[1] for line in lines if line.startswith(name + " ")))

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def line(self) -> str:
        """The next line of its output; empty at the end."""
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def inference_process(self, other_than: int = 0) -> int:
        """The id of the process that loads the weights, as soon as there is one."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            for number in children(self.process.pid):
                spawned = b"spawn_main" in Path(f"/proc/{number}/cmdline").read_bytes()
                if spawned and number != other_than:
                    return number
            time.sleep(0.05)
        raise AssertionError("no inference process was found")

    def forks(self) -> list[int]:
        """Those that it has forked, which compute; in the order in which they were started."""
        return sorted(children(self.inference_process()))

    def inference_processes(self) -> list[int]:
        """All of them."""
        return [self.inference_process(), *self.forks()]

    def end(self) -> tuple[int, str]:
        """Exit code and output."""
        output, _ = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, output


def children(pid: int) -> list[int]:
    """The processes that a process has started and that still run; Linux alone tells."""
    found = " ".join(path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children"))
    return [int(child) for child in found.split()]


@contextmanager
def running(environ: dict[str, str], *arguments: str, script: str | None = None) -> Iterator[Process]:
    started = Process(list(arguments), environ, script)
    try:
        yield started
    finally:
        if started.process.poll() is None:
            started.process.kill()
            started.process.wait()
        if started.process.stdout is not None:
            started.process.stdout.close()
