"""The C allocator, told to keep what it has."""

from __future__ import annotations

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h


def keep_freed_memory() -> None:
    """Let glibc reuse large buffers instead of returning each to the kernel.

    Every step of a training, and every batch of a service, frees and takes the same buffers again; mapping them
    anew makes the kernel clear every page, which costs a CPU a tenth to a fifth of its time. Elsewhere than on
    glibc this does nothing.
    """
    if sys.platform != "linux":
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # musl
        return
    mallopt(_M_MMAP_THRESHOLD, 2**31 - 1)
    mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
