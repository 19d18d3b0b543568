"""Request ids, which are the same in answers, logs and traces."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterable

from bert_client.wire import is_valid_request_id

_PREFIX = secrets.token_hex(8)  # once per process, because random bytes take 30 us per request
_numbers = itertools.count()


def request_id_of(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The caller's own `X-Request-ID` if it is valid, else a new one."""
    for name, value in headers:
        if name == b"x-request-id" and is_valid_request_id(given := str(value, "latin-1").strip(" \t")):
            return given
    return f"{_PREFIX}{next(_numbers):016x}"
