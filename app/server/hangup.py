"""Tells a SIGHUP of a terminal that closes from one that asks for a reload."""

from __future__ import annotations

import errno
import math
import os
import time

_SECONDS = 10.0
"""Maximum time between the end of a terminal and its SIGHUP. A shell sends it to its jobs before it exits, or after its
window was closed."""


class Hangup:
    """The end of the terminal in which this process was started. A later SIGHUP asks for a reload, as the SIGHUP of a
    process that never had a terminal does."""

    def __init__(self) -> None:
        self._has_terminal = _has_terminal()
        self._ended_at, self._signalled_at = math.inf, -math.inf

    def note_signal(self, *_: object) -> bool:
        """Note a SIGHUP. Returns `has_come()`."""
        self._signalled_at = time.monotonic()
        return self.has_come()

    def has_come(self) -> bool:
        """Whether the terminal has ended, and SIGHUP has come with it. Called often, to see when the terminal ends."""
        if self._has_terminal and not _has_terminal():
            self._has_terminal, self._ended_at = False, time.monotonic()
        return abs(self._ended_at - self._signalled_at) < _SECONDS


def _has_terminal() -> bool:
    """Whether this process has a controlling terminal."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK))
    except OSError as error:
        return error.errno in (errno.EMFILE, errno.ENFILE)  # no file can be opened, so the terminal has not ended
    return True
