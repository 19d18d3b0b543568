"""File descriptors of this process: how many it may have, and the three that it should have been given."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

if sys.platform != "win32":
    import resource

_ENOUGH = 65_536


def hold_standard_streams() -> None:
    """Open nothing in place of a closed stdin, stdout or stderr, also for children: an event loop that gets one
    of their numbers aborts when it closes it."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number that is free


def raise_limit() -> None:
    """Let this process and its children have as many files, and so connections, as they may."""
    if sys.platform != "win32":
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = _ENOUGH if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            with suppress(ValueError, OSError):  # some systems have a lower limit besides
                resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def limit() -> int | None:
    """How many files this process may have open; None if nobody counts."""
    if sys.platform == "win32":
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft
