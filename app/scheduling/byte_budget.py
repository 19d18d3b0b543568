"""A limit on the bytes that all requests hold together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from app.errors import TooManyBytesError
from app.observability.metrics import Metrics


class ByteBudget:
    """Bytes that requests hold at the same time, at most `limit`. A request that needs more may have them if no other
    holds any."""

    def __init__(self, limit: int, metrics: Metrics, *, free: int, what: str) -> None:
        """Make a budget.

        Args:
            free: a request of at most so many bytes is not counted.
            what: what the bytes are, for the error.
        """
        self.reserved = 0
        self._limit = limit
        self._metrics = metrics
        self._free = free
        self._what = what

    def check(self, size: int) -> None:
        """Check that a request can hold `size` bytes now.

        Raises:
            TooManyBytesError: others leave no room for them.
        """
        if size > self._free and self.reserved and self.reserved + size > self._limit:
            self._metrics.refused()
            raise TooManyBytesError(self._what)

    @contextmanager
    def reserve(self, size: int) -> Iterator[None]:
        """Hold `size` bytes for the block. Raises what `check` raises."""
        self.check(size)
        held = size if size > self._free else 0
        self.reserved += held
        try:
            yield
        finally:
            self.reserved -= held
