"""Gives memory back to the system after a burst of requests."""

from __future__ import annotations

import ctypes
import os
import time
from contextlib import suppress
from pathlib import Path

_GROWTH_BYTES = 128 * 1024 * 1024
"""So much more memory than after the last time is worth it: it takes some 10 ms on the event loop."""
_PAUSE_SECONDS = 5.0
"""Between two looks at the memory."""


class FreedMemory:
    """Glibc keeps what a burst has freed, since a few later objects lie behind it. A process that keeps a gigabyte is
    killed by its memory limit at the next burst of another kind, or at the next reload."""

    def __init__(self) -> None:
        self._last = resident_bytes()
        self._next_look = 0.0

    def give_back_after_growth(self) -> None:
        """Called often; looks every few seconds."""
        if (now := time.monotonic()) < self._next_look:
            return
        self._next_look = now + _PAUSE_SECONDS
        if resident_bytes() > self._last + _GROWTH_BYTES:
            self.give_back()

    def give_back(self) -> None:
        """Give all freed memory back. Other C libraries have no `malloc_trim`."""
        with suppress(AttributeError):
            ctypes.CDLL(None).malloc_trim(0)
        self._last = resident_bytes()


def resident_bytes() -> int:
    """Memory of this process; 0 where the system has no `/proc`."""
    with suppress(OSError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0
