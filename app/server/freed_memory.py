"""Gives memory back to the system after a burst of requests."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from pathlib import Path

_GROWTH_BYTES = 128 * 1024 * 1024
"""Growth above which memory is given back, which takes about 10 ms on the event loop."""


def give_back_after_growth(baseline: int) -> None:
    """Give memory back if this process has `_GROWTH_BYTES` more than `baseline` bytes."""
    if resident_bytes() > baseline + _GROWTH_BYTES:
        give_back()


def give_back() -> None:
    """Give all freed memory back to the system.

    Glibc keeps it if objects that are in use lie behind it, and a process that keeps a gigabyte may be killed by its
    memory limit at the next burst or reload. Other C libraries have no `malloc_trim`.
    """
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def resident_bytes() -> int:
    """Memory of this process; 0 on systems without `/proc`."""
    with suppress(OSError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0
