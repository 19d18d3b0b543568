"""Ids of requests, by which callers, logs and traces speak of the same one."""

from __future__ import annotations

import itertools
import re
import secrets
from collections.abc import Iterable

_SANE = re.compile(rb"[A-Za-z0-9._:/+=-]{1,128}")
_PREFIX = secrets.token_hex(8)  # of this process; asking the system per request costs 30 us
_numbers = itertools.count()


def request_id_of(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The caller's own id if it is harmless in headers and logs, else a new one."""
    for name, value in headers:
        if name == b"x-request-id" and _SANE.fullmatch(value):
            return str(value, "ascii")
    return f"{_PREFIX}{next(_numbers):016x}"


def is_sane(request_id: str) -> bool:
    """Whether it would be kept."""
    return _SANE.fullmatch(request_id.encode(errors="replace")) is not None
