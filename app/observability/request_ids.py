"""Request ids, which are the same in responses, logs and traces."""

from __future__ import annotations

import itertools
import re
import secrets
from collections.abc import Iterable

_VALID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")
"""Pattern of ids that are harmless in headers and logs."""
_PREFIX = secrets.token_hex(8)  # once per process, because random bytes take 30 us per request
_numbers = itertools.count()


def request_id_of(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The caller's own `X-Request-ID` if it is valid, otherwise a new id."""
    for name, value in headers:
        if name == b"x-request-id" and _VALID.fullmatch(given := str(value, "latin-1").strip(" \t")):
            return given
    return f"{_PREFIX}{next(_numbers):016x}"
