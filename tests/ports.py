"""Ports for processes that tests start."""

from __future__ import annotations

import itertools
import os
import socket

_FIRST = 10_000 + os.getpid() % 200 * 100
_PORTS = itertools.cycle(range(_FIRST, _FIRST + 100))
"""Another range in each process of pytest, and below 32768, where Linux takes the ports of those that ask for any."""


def free_port() -> int:
    """A port that no test takes before the process that gets it listens."""
    for port in _PORTS:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port
    raise AssertionError("the range has no end")
