"""The limit of open files of the process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from app.server import file_limits
from tests.app.process import PATIENCE

ROOT = Path(__file__).parents[3]


def run(shell: str, script: str) -> str:
    """Python's output, in a shell that prepares what it inherits."""
    command = ["sh", "-c", f'{shell} exec "$0" -c "$1"', sys.executable, script]
    return subprocess.check_output(command, cwd=ROOT, timeout=PATIENCE, text=True)


def test_limit_is_raised_to_what_the_machine_allows() -> None:
    script = "from app.server import file_limits; file_limits.raise_limit(); print(file_limits.limit())"
    assert 64 < int(run("ulimit -S -n 64;", script)) <= 65_536


def test_open_files_counts_each() -> None:
    before = file_limits.open_files()
    with Path(__file__).open():
        assert file_limits.open_files() == before + 1
    assert file_limits.open_files() == before
