"""`python -m training` in its own process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from model.inference.cpu_features import available_cpus

ROOT = Path(__file__).parents[2]
PATIENCE = 240
"""Seconds to wait for a process on a busy machine."""

ENVIRONMENT = os.environ | {"PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}


def start(
    *arguments: str,
    launcher: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    console: int = subprocess.PIPE,
) -> subprocess.Popen[str]:
    """`python -m training ...` in its own process.

    Args:
        launcher: arguments before `-m training`, such as those of `torch.distributed.run`.
        environment: variables beside those of this process.
        console: descriptor of standard output and errors, two pipes by default.
    """
    return subprocess.Popen(
        [sys.executable, *launcher, "-m", "training", *arguments],
        cwd=ROOT,
        env=ENVIRONMENT | dict(environment or {}),
        stdout=console,
        stderr=console,
        text=True,
        start_new_session=True,  # a process group, which some tests signal as a whole
    )


def environment_of(rank: int, world_size: int, per_node: int | None = None, port: int = 1) -> dict[str, str]:
    """The variables that a launcher sets for a rank: `torchrun`, or without `per_node`, Kubeflow."""
    place = {"LOCAL_RANK": rank % per_node, "LOCAL_WORLD_SIZE": per_node} if per_node else {}
    numbers = {"RANK": rank, "WORLD_SIZE": world_size, "MASTER_PORT": port, **place}
    return {"MASTER_ADDR": "127.0.0.1"} | {name: str(number) for name, number in numbers.items()}


def set_ranks(patch: pytest.MonkeyPatch, environment: Mapping[str, str]) -> None:
    """Give this process the variables of a launcher."""
    for name in environment_of(0, 2, per_node=1):
        patch.delenv(name, raising=False)
    for name, value in environment.items():
        patch.setenv(name, value)


def memory_layout(number: int) -> dict[str, str]:
    """Variables of a process with its own hashes, memory addresses and contents of new memory, by its number. It uses
    the threads that it chooses."""
    return {
        "OMP_NUM_THREADS": str(available_cpus()),
        "PYTHONHASHSEED": str(number),
        "PADDING": "x" * 10_007 * number,
        "PYTHONMALLOC": "malloc" if number % 2 else "pymalloc",
        "MALLOC_PERTURB_": str(85 * number),
    }


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Exit status, standard output, standard error."""
    out, err = process.communicate(timeout=PATIENCE)
    return process.returncode, out, err


def until(process: subprocess.Popen[str], text: str) -> None:
    """Read a process's output up to a line that contains `text`."""
    assert process.stdout is not None
    for line in process.stdout:
        if text in line:
            return
    raise AssertionError(f"it ended without {text!r}: {finish(process)[2]}")


HOLD = """
import os, sys
from pathlib import Path
from training.runtime.lock import run_lock
with run_lock(Path(sys.argv[1])):
    worker = os.fork()
    if worker == 0:
        os.read(0, 1)
        os._exit(0)
    print("locked", flush=True)
    os.read(0, 1)
"""


@contextmanager
def occupied(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process holds the lock of a run's folder. It has forked a worker, which survives it."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], cwd=ROOT, **pipes) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"locked\n"
        try:
            yield other
        finally:
            other.kill()
