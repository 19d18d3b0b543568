"""A limit on the bytes that all requests hold together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

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

    def reserve(self, size: int) -> AbstractContextManager[None]:
        """Hold `size` bytes for a block. Raises what `check` raises."""
        self.check(size)
        return self._held(size) if size > self._free else nullcontext()

    @contextmanager
    def _held(self, size: int) -> Iterator[None]:
        self.reserved += size
        try:
            yield
        finally:
            self.reserved -= size
