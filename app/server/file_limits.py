"""The limit of open files of this process. POSIX only."""

from __future__ import annotations

import resource
from contextlib import suppress
from pathlib import Path

_ENOUGH_FILES = 65_536


def raise_limit() -> None:
    """Raise the soft limit of open files, and so of connections, to the hard one; 65,536 at most."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH_FILES if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(ValueError, OSError):  # macOS has a lower limit besides
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def open_files() -> int:
    """Open files of this process, connections and pipes included; 0 if the system does not list them."""
    with suppress(OSError):
        return len(list(Path("/dev/fd").iterdir()))
    return 0


def limit() -> int | None:
    """The soft limit of open files; None if unlimited."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft
