"""Gives memory back to the system after a burst of requests."""

from __future__ import annotations

import ctypes
import os
import time
from contextlib import suppress
from pathlib import Path

_GROWTH_BYTES = 128 * 1024 * 1024
"""Growth above which memory is given back, which takes about 10 ms on the event loop."""
_PAUSE_SECONDS = 5.0
"""Pause between two checks of the memory."""


class FreedMemory:
    """Gives freed memory back to the system. Glibc keeps it if objects that are in use lie behind it. A process that
    keeps a gigabyte may be killed by its memory limit at the next burst or reload."""

    def __init__(self) -> None:
        self._baseline = resident_bytes()
        """Memory in bytes from which growth is measured."""
        self._next_look = 0.0

    def give_back_after_growth(self) -> None:
        """Give memory back if it has grown. Called often, but checks only every few seconds."""
        if (now := time.monotonic()) < self._next_look:
            return
        self._next_look = now + _PAUSE_SECONDS
        if resident_bytes() > self._baseline + _GROWTH_BYTES:
            self.give_back()

    def give_back(self) -> None:
        """Give all freed memory back. Other C libraries have no `malloc_trim`."""
        with suppress(AttributeError):
            ctypes.CDLL(None).malloc_trim(0)


def resident_bytes() -> int:
    """Memory of this process; 0 on systems without `/proc`."""
    with suppress(OSError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0
