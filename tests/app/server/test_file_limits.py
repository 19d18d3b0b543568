"""The limit of open files of the process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.app.process import PATIENCE

ROOT = Path(__file__).parents[3]


def run(shell: str, script: str) -> str:
    """Python's output, in a shell that prepares what it inherits."""
    command = ["sh", "-c", f'{shell} exec "$0" -c "$1"', sys.executable, script]
    return subprocess.check_output(command, cwd=ROOT, timeout=PATIENCE, text=True)


def test_limit_is_raised_to_what_the_machine_allows() -> None:
    script = (
        "from app.server import file_limits; file_limits.raise_limit(); print(file_limits.max_connections(65536, 0))"
    )
    assert 64 < int(run("ulimit -S -n 64;", script)) <= 65_536


@pytest.mark.parametrize(("wanted", "allowed"), [(100, 100), (4096, 1024 - 128 - 64)])
def test_connections_leave_room_for_other_files(wanted: int, allowed: int) -> None:
    script = f"from app.server import file_limits; print(file_limits.max_connections({wanted}, 64))"
    assert int(run("ulimit -n 1024;", script)) == allowed


@pytest.mark.parametrize(("wanted", "logged"), [(832, ""), (4096, "(ulimit -n) allows 832 of 4096 connections")])
def test_low_limit_is_logged(wanted: int, logged: str) -> None:
    script = (
        "import logging, sys; logging.basicConfig(stream=sys.stdout); "
        f"from app.server import file_limits; file_limits.warn_if_low({wanted}, 64)"
    )
    printed = run("ulimit -n 1024;", script)
    assert logged in printed
    assert bool(printed) == bool(logged)
