"""File descriptors of this process: the limit, and the three standard streams. POSIX only."""

from __future__ import annotations

import os
import resource
from contextlib import suppress

_ENOUGH_FILES = 65_536


def hold_standard_streams() -> None:
    """Open /dev/null in place of a closed stdin, stdout or stderr, for children too.

    Otherwise uvloop gets one of their numbers for a file of its own, and aborts when it closes it.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # open takes the lowest free number


def raise_limit() -> None:
    """Raise the soft limit of open files, and so of connections, to the hard one; 65,536 at most."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH_FILES if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(ValueError, OSError):  # macOS has a lower limit besides
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def limit() -> int | None:
    """The number of files that this process may open; None if there is no limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft
