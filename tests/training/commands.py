"""The real command line in processes of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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


HOLD = """
import os, sys
from pathlib import Path
from training.runtime.distributed import Processes
from training.loop.checkpoint import alone
with alone(Path(sys.argv[1]), Processes()):
    worker = os.fork()
    if worker == 0:
        os.read(0, 1)
        os._exit(0)
    print("alone", flush=True)
    os.read(0, 1)
"""


@contextmanager
def occupied(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process, with a worker, is at work in this folder of a run. The worker survives it."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], cwd=ROOT, **pipes) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"alone\n"
        try:
            yield other
        finally:
            other.kill()
