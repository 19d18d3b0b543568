"""The deadline of a request."""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass(slots=True)
class Deadline:
    """A point in time."""

    at: float
    """`time.monotonic()`"""
    from_client: bool = False
    """Whether the caller asked for it. If it cannot be met, the response is 504; for the server's own deadline it is
    429, because the queue is too long."""

    @classmethod
    def after(cls, seconds: float, *, from_client: bool = False) -> Deadline:
        """The deadline `seconds` from now."""
        return cls(time.monotonic() + seconds, from_client)

    @property
    def remaining(self) -> float:
        """Seconds that are left; negative after the deadline."""
        return self.at - time.monotonic()
