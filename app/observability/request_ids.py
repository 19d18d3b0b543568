"""Ids of requests, by which callers, logs and traces speak of the same one."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterable

from bert_client.wire import is_valid_request_id

_PREFIX = secrets.token_hex(8)  # of this process; asking the system per request costs 30 us
_numbers = itertools.count()


def request_id_of(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The caller's own id if it is harmless in headers and logs, else a new one."""
    for name, value in headers:
        if name == b"x-request-id" and is_valid_request_id(given := str(value, "latin-1")):
            return given
    return f"{_PREFIX}{next(_numbers):016x}"
