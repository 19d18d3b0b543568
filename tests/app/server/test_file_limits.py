"""Open files: standard streams that are closed, and the limit of the process."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from tests.app.process import PATIENCE, running

ROOT = Path(__file__).parents[3]


def run(shell: str, script: str) -> str:
    """Python's output, in a shell that prepares what it inherits."""
    command = ["sh", "-c", f'{shell} exec "$0" -c "$1"', sys.executable, script]
    return subprocess.check_output(command, cwd=ROOT, timeout=PATIENCE, text=True)


def test_limit_is_raised_to_what_the_machine_allows() -> None:
    script = "from app.server import file_limits; file_limits.raise_limit(); print(file_limits.limit())"
    assert 64 < int(run("ulimit -S -n 64;", script)) <= 65_536


def test_standard_streams_that_are_closed_do_not_abort_a_service(checkpoints: dict[str, str]) -> None:
    """uvloop aborts when it closes a descriptor below 3."""
    closed = 'exec "$0" -m app <&- >&- 2>&-'
    script = f"import os, sys; os.execvp('sh', ['sh', '-c', {closed!r}, sys.executable])"
    with running(checkpoints, script=script) as process:
        process.until_ready()
        assert process.ask().status_code == 200
        process.send(signal.SIGTERM)
        code, _ = process.end()
    assert code == 0


def test_standard_streams_that_are_closed_are_held_for_children_too() -> None:
    script = """
import os, subprocess, sys
from app.server import file_limits
os.close(0), os.close(2)
file_limits.hold_standard_streams()
child = "import os; print([os.fstat(number).st_rdev == os.stat(os.devnull).st_rdev for number in (0, 2)])"
sys.exit(subprocess.call([sys.executable, "-c", child]))
"""
    assert run("", script) == "[True, True]\n"
