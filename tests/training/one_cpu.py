"""Processes on one CPU, whose results can be compared bit for bit with those of the test process."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def one_cpu(number: int | None = None) -> Iterator[None]:
    """Processes that are started here use one thread, as tests do: the order of sums depends on the threads.

    Args:
        number: which of the CPUs, modulo their count; a random one by default.
    """
    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("needs CPU affinity")
    allowed = os.sched_getaffinity(0)
    cpus = sorted(allowed)
    os.sched_setaffinity(0, {random.choice(cpus) if number is None else cpus[number % len(cpus)]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)
