"""The service and its peers as processes: start, wait, freeze while another is measured, stop."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

ROOT = Path(__file__).parents[1]
INFINITY = ROOT / "benchmarks" / "peers" / ".venv" / "bin" / "infinity_emb"
_START_TIMEOUT = 180  # seconds until a server must answer

Body = Callable[[Sequence[str]], dict[str, object]]


def _inputs(texts: Sequence[str]) -> dict[str, object]:
    return {"inputs": texts[0] if len(texts) == 1 else list(texts)}


@dataclass(slots=True)
class Server:
    """One contestant. `lists`: whether a request may carry several sentences."""

    name: str
    command: list[str]
    path: str = "/sentiment"
    body: Body = _inputs
    lists: bool = True
    environ: dict[str, str] = field(default_factory=dict)
    folder: Path = ROOT
    """Working directory of the process."""
    port: int = 0
    process: subprocess.Popen[bytes] | None = None
    output: IO[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}{self.path}"

    def bodies(self, sentences: Sequence[str], inputs: int) -> list[bytes]:
        """Request bodies of N sentences each, in this server's shape."""
        starts = range(0, len(sentences) - inputs + 1, inputs)
        return [json.dumps(self.body(sentences[i : i + inputs])).encode() for i in starts]

    def start(self) -> None:
        """Start it in a new process group and wait for its first response.

        Raises:
            RuntimeError: it ended or did not respond; the message holds the end of its output.
        """
        self.port = _free_port()
        self.output = TemporaryFile()  # noqa: SIM115 (closed with the process)
        self.process = subprocess.Popen(
            [part.format(port=self.port) for part in self.command],
            cwd=self.folder,
            env=os.environ | self.environ,
            stdout=self.output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        until = time.monotonic() + _START_TIMEOUT
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > until:
                output = self._output_end()
                self.stop()
                raise RuntimeError(f"{self.name} does not answer: {output}")
            time.sleep(0.5)

    def freeze(self) -> None:
        """Stop all processes of the group with SIGSTOP, so that they take no processor time."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def stop(self) -> None:
        """End the whole group."""
        self.thaw()
        self._signal(signal.SIGTERM)
        if self.process is not None:
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(15)
            self._signal(signal.SIGKILL)
            self.process.wait()
        if self.output is not None:
            self.output.close()

    def _signal(self, sig: signal.Signals) -> None:
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, sig)

    def _answers(self) -> bool:
        request = urllib.request.Request(
            self.url,
            data=json.dumps(self.body(["Is anybody there?"])).encode(),
            headers={"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                return response.status == 200
        except (urllib.error.URLError, OSError):
            return False

    def _output_end(self) -> str:
        assert self.output is not None
        self.output.seek(0)
        return self.output.read()[-2000:].decode(errors="replace")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def service(pretrained: Path, sentiment: Path, dtype: str, flags: Sequence[str] = ()) -> Server:
    """This service, with `flags` in addition to those that name the checkpoints."""
    command = [sys.executable, "-m", "app", "--host", "127.0.0.1", "--port", "{port}", "--dtype", dtype]
    command += ["--pretrained", str(pretrained), "--sentiment", str(sentiment), *flags]
    return Server(f"bert-serve, {dtype}", command)


def contestants(pretrained: Path, sentiment: Path, dtype: str, flags: Sequence[str] = ()) -> list[Server]:
    """This service, then its peers. `flags` are this service's."""
    cores = str(os.cpu_count() or 1)
    peer = [sys.executable, "-m", "benchmarks.peers.{}", str(sentiment), "{port}", dtype]
    litserve = _named(peer, "with_litserve")
    offline = {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1", "INFINITY_ANONYMOUS_USAGE_STATS": "0"}
    infinity = [str(INFINITY), "v2", "--model-id", str(sentiment), "--served-model-name", "bert"]
    infinity += ["--device", "cpu", "--engine", "torch", "--dtype", dtype, "--port", "{port}"]
    infinity += ["--host", "127.0.0.1", "--no-bettertransformer", "--no-model-warmup", "--log-level", "error"]
    return [
        *(service(pretrained, sentiment, precision, flags) for precision in (dtype, "int8")),
        Server(f"LitServe, {cores} workers", [*litserve, cores], "/predict", lists=False, environ=offline),
        Server("LitServe", litserve, "/predict", lists=False, environ=offline),
        Server(
            "infinity",
            infinity,
            "/classify",
            lambda texts: {"model": "bert", "input": list(texts)},
            environ=offline,
        ),
        Server("naive", _named(peer, "naive"), environ=offline),
    ]


def _named(command: Sequence[str], module: str) -> list[str]:
    return [part.replace("{}", module) for part in command]
