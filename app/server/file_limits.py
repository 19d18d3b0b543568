"""The limit of open files of this process. POSIX only."""

from __future__ import annotations

import logging
import resource
from contextlib import suppress

logger = logging.getLogger(__name__)

_ENOUGH_FILES = 65_536
_OWN_FILES = 128
"""Reserve for log, weights, listening sockets, and connections to the inference processes, also during a reload."""


def raise_limit() -> None:
    """Raise the soft limit of open files, and so of connections, to the hard one, but to 65,536 at most."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH_FILES if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(ValueError, OSError):  # macOS has another, lower limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def max_connections(wanted: int, spare: int) -> int:
    """Number of connections for which the soft limit of open files suffices, at least 1. It leaves room for `spare`
    more, and for the service's own files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if soft == resource.RLIM_INFINITY else max(min(wanted, soft - _OWN_FILES - spare), 1)


def warn_if_low(wanted: int, spare: int) -> None:
    """Log a warning if the limit of open files does not suffice for the connections."""
    if (most := max_connections(wanted, spare)) < wanted:
        logger.warning("the limit of open files (ulimit -n) allows %d of %d connections", most, wanted)
