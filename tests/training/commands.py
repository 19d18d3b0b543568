"""The real command line in processes of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
PATIENCE = 240  # seconds, for a machine that is busy

ENVIRONMENT = os.environ | {"PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}


def start(*arguments: str, launcher: Sequence[str] = ()) -> subprocess.Popen[str]:
    """`python -m training ...`, its standard output and errors in pipes."""
    return subprocess.Popen(
        [sys.executable, *launcher, "-m", "training", *arguments],
        cwd=ROOT,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # and a process group, which some tests signal as a whole
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Exit status, standard output, standard error."""
    out, err = process.communicate(timeout=PATIENCE)
    return process.returncode, out, err


def until(process: subprocess.Popen[str], sign: str) -> None:
    """Read its output up to a line with `sign`."""
    assert process.stdout is not None
    for line in process.stdout:
        if sign in line:
            return
    raise AssertionError(f"it ended without {sign!r}: {finish(process)[2]}")
