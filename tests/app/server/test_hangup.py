"""SIGHUP: of a terminal that closes, of a shell that exits, and of `kill -HUP`."""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from unittest.mock import Mock

import pytest

from app.server.hangup import Hangup
from tests.app.process import WITHOUT_TORCH, Process, children, running, wait_until

SESSION = """
import os, signal, sys
os.setsid()
"""
ON_A_TERMINAL = f"""{SESSION}
terminal = os.open(os.environ["TERMINAL"], os.O_RDWR)  # the first one that the leader of a session opens controls it
for stream in map(int, os.environ["STREAMS"]):
    os.dup2(terminal, stream)
os.close(terminal)
"""
SERVE = "from app.__main__ import serve; serve()"
SHELL = "os.execvp('bash', ['bash', '--login', '--noprofile', '--norc', '-i', '-O', 'huponexit'])"


class Terminal:
    """A terminal whose window is this process."""

    def __init__(self) -> None:
        self.window, inside = os.openpty()
        self.environ = {"TERMINAL": os.ttyname(inside), "STREAMS": "012", "BERT_THREADS": "1"} | WITHOUT_TORCH
        os.close(inside)

    def type(self, line: str) -> None:
        """Type a line."""
        os.write(self.window, line.encode() + b"\n")

    def close(self) -> None:
        """Close the window."""
        os.close(self.window)
        self.window = -1


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    made = Terminal()
    yield made
    if made.window >= 0:
        made.close()


def reload(process: Process) -> None:
    """Ask for a reload, and wait for it."""
    process.send(signal.SIGHUP)
    wait_until(lambda: process.metric('bert_reloads_total{result="ok"}') == 1)


def test_terminal_that_closes_ends_the_service_after_its_requests(
    checkpoints: dict[str, str], terminal: Terminal
) -> None:
    """As Ctrl-C does, also if the log can no longer be written."""
    patient = terminal.environ | {"BERT_REQUEST_TIMEOUT_MS": "600000", "BERT_DRAIN_SECONDS": "600"}
    with running(checkpoints | patient, script=ON_A_TERMINAL + SERVE) as process, ThreadPoolExecutor() as pool:
        process.until_ready()
        (fork,) = process.forks()
        os.kill(fork, signal.SIGSTOP)
        asked = pool.submit(process.ask)
        wait_until(lambda: process.metric("bert_queue_requests") == 1)
        terminal.close()
        wait_until(lambda: process.get("/health/ready").json().get("code") == "draining")
        os.kill(fork, signal.SIGCONT)
        assert asked.result().status_code == 200
        code, _ = process.end()
    assert code == 0


UNTIL_THE_TERMINAL_HAS_CLOSED = """
import time

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "app.errors":
            print("importing", flush=True)
            while int(open("/proc/self/stat").read().rpartition(") ")[2].split()[4]):
                time.sleep(0.01)

sys.meta_path.insert(0, Finder())
"""


def test_terminal_that_closes_in_the_first_second_ends_the_service(
    checkpoints: dict[str, str], terminal: Terminal
) -> None:
    script = ON_A_TERMINAL + UNTIL_THE_TERMINAL_HAS_CLOSED + SERVE
    with running(checkpoints | terminal.environ | {"STREAMS": "0"}, script=script) as process:
        assert process.line() == "importing\n"
        terminal.close()
        code, output = process.end()
    assert code == 0, output


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize("ends", ["its terminal closes", "it exits"])
def test_shell_that_ends_ends_the_service(checkpoints: dict[str, str], terminal: Terminal, ends: str) -> None:
    """A shell sends SIGHUP to its jobs before it exits, while its terminal still is open."""
    with running(checkpoints | terminal.environ, script=ON_A_TERMINAL + SHELL) as shell:
        terminal.type(f"{sys.executable} -m app" + (" &" if ends == "it exits" else ""))
        shell.until_ready()
        (service,) = children(shell.process.pid)
        if ends == "it exits":
            terminal.type("exit")
        else:
            terminal.close()
        try:
            wait_until(lambda: not Path(f"/proc/{service}").exists())
        finally:
            with suppress(ProcessLookupError):
                os.kill(service, signal.SIGKILL)


@pytest.mark.parametrize("begins", [SESSION, ON_A_TERMINAL], ids=["without a terminal", "on a terminal"])
def test_sighup_of_an_operator_reloads(checkpoints: dict[str, str], terminal: Terminal, begins: str) -> None:
    with running(checkpoints | terminal.environ, script=begins + SERVE) as process:
        process.until_ready()
        reload(process)
        assert process.get("/health/ready").status_code == 200
        process.send(signal.SIGTERM)
        assert process.end()[0] == 0


def test_sighup_that_is_ignored_stays_ignored(checkpoints: dict[str, str], terminal: Terminal) -> None:
    """As under nohup."""
    script = ON_A_TERMINAL + "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n" + SERVE
    with running(checkpoints | terminal.environ, script=script) as process:
        process.until_ready()
        terminal.close()
        process.send(signal.SIGHUP)
        found = re.search(r"SigIgn:\s+([0-9a-f]+)", Path(f"/proc/{process.process.pid}/status").read_text())
        assert found is not None
        assert int(found[1], 16) >> (signal.SIGHUP - 1) & 1
        assert process.get("/health/ready").status_code == 200
        process.send(signal.SIGTERM)
        assert process.end()[0] == 0


@pytest.mark.parametrize(
    ("signalled", "ended", "has_come"),
    [(100, 100, True), (100, 103, True), (103, 100, True), (100, 120, False), (120, 100, False)],
)
def test_hangup_is_a_signal_at_the_time_when_the_terminal_ends(
    monkeypatch: pytest.MonkeyPatch, signalled: float, ended: float, has_come: bool
) -> None:
    """A service may outlive its terminal, and be asked to reload later."""
    now = [0.0]

    def open_terminal(*_: object) -> int:
        if now[0] >= ended:
            raise OSError(errno.ENXIO, "no terminal")
        return os.dup(0)

    monkeypatch.setattr("os.open", open_terminal)
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    hangup = Hangup()
    for now[0] in range(90, 130):
        if now[0] == signalled:
            hangup.note_signal()
        seen = hangup.has_come()
    assert seen == has_come


def test_hangup_does_not_come_without_a_terminal_or_files(monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (errno.ENXIO, errno.EMFILE):
        monkeypatch.setattr("os.open", Mock(side_effect=OSError(error, "cannot be opened")))
        assert not Hangup().note_signal()
