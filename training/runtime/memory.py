"""The C allocator, told to keep what it has."""

from __future__ import annotations

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_KEEP = 2**31 - 1


def keep_freed_memory() -> None:
    """Let glibc reuse large buffers instead of returning each to the kernel.

    A training step frees and takes the same hundreds of megabytes; mapping them anew makes the kernel clear
    every page, which costs a CPU run a tenth of its time. Elsewhere than on glibc this does nothing.
    """
    if sys.platform != "linux":
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # musl
        return
    mallopt(_M_MMAP_THRESHOLD, _KEEP)
    mallopt(_M_TRIM_THRESHOLD, _KEEP)
