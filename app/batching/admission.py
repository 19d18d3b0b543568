"""Decides whether a request may wait: by its bytes while it is received, then by room in the queue and its deadline.

All refusals that depend on other requests are here (429, and 504 `deadline_unreachable`).
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from app import errors
from app.batching.fair_queue import FairQueue
from app.batching.throughput import Throughput

CHARACTERS_PER_TOKEN = 6
"""Estimates the tokens of a text, and of a body from its bytes. It is above the usual number of 4 to 5, so that they
are not overestimated."""


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
        return cls(time.monotonic() + seconds, from_client)

    @property
    def remaining(self) -> float:
        """Seconds that are left; negative after the deadline."""
        return self.at - time.monotonic()


@dataclass(frozen=True, slots=True)
class AdmissionPolicy:
    """Estimates of a request, before its body is read and its inputs are tokenized."""

    bytes_per_input: int = 64
    """Estimates a body's inputs. It is above the usual number, so that they are not overestimated."""
    max_assumed_tokens: int = 512
    """Upper bound of the estimated tokens, because a body may be one long text that will be truncated."""
    max_assumed_inputs: int = 32
    headroom: float = 0.1
    """Fraction of the queue that is kept for admitted requests whose bodies are being read. The estimates are low, and
    a request should be refused before it is read."""


class Admission:
    """The load of one engine, and whether one more request fits into its queue and can be computed in time."""

    def __init__(self, throughput: Throughput, queue: FairQueue, policy: AdmissionPolicy = AdmissionPolicy()) -> None:
        self.max_queue_tokens = 0
        """Tokens that may wait ahead of a request, its own included."""
        self.reserved_tokens = 0
        """Estimated tokens of requests that are being tokenized in a thread; they count as queued."""
        self._throughput = throughput
        self._queue = queue
        self._policy = policy
        self._groups: defaultdict[int, list[int]] = defaultdict(lambda: [0, 0])
        """Unanswered requests by the bit length of their number of inputs: the tokens of all, and the sum of each
        request's largest input."""

    def check_head(self, body_bytes: int, deadline: Deadline) -> None:
        """Check by the size of a request's body that it has a chance. Raises the errors of `check`."""
        policy = self._policy
        inputs = min(max(body_bytes // policy.bytes_per_input, 1), policy.max_assumed_inputs)
        self.check(self.estimated_tokens(body_bytes), inputs, deadline, headroom=policy.headroom)

    def estimated_tokens(self, characters: int) -> int:
        """The tokens of a text or body; low, and never more than the queue holds."""
        return min(characters // CHARACTERS_PER_TOKEN, self._policy.max_assumed_tokens, self.max_queue_tokens)

    def check(self, tokens: int, inputs: int, deadline: Deadline, *, headroom: float = 0.0) -> None:
        """Check that a request can be queued now.

        A request with nothing ahead is not refused as late, even if its deadline seems hopeless. The speed is a mean
        over both models and the last batches, and a service that refuses everything cannot correct a speed that is too
        low.

        Args:
            tokens: Tokens of all its inputs.
            headroom: Fraction of the room, in tokens and in time, that must be left if others wait.

        Raises:
            DeadlineExceededError: the deadline passed.
            TooLargeError: it does not fit into an empty queue.
            QueueFullError: it does not fit now, or the server's deadline cannot be met.
            DeadlineUnreachableError: the caller's own deadline cannot be met.
        """
        remaining = deadline.remaining
        if remaining <= 0:
            raise errors.DeadlineExceededError
        if tokens > self.max_queue_tokens:
            raise errors.TooLargeError(
                f"the request has {tokens} tokens, the queue holds {self.max_queue_tokens}; send fewer inputs"
            )
        ahead = self._tokens_ahead(inputs)
        waiting = min(self._queue.tokens + self.reserved_tokens, ahead)  # tokens behind a small request do not count
        if waiting and waiting + tokens > self.max_queue_tokens * (1 - headroom):
            raise errors.QueueFullError(self._throughput.seconds_for(waiting))
        if ahead and ahead + tokens > self._throughput.max_backlog(remaining) * (1 - headroom):
            retry_after = self._throughput.seconds_for(ahead)
            if deadline.from_client:
                raise errors.DeadlineUnreachableError(retry_after)
            raise errors.QueueFullError(retry_after, late=True)

    def count(self, lengths: Sequence[int], by: Literal[1, -1]) -> None:
        """Begin (1) or stop (-1) to count a request, given the tokens of each input."""
        group = self._groups[len(lengths).bit_length()]
        group[0] += by * sum(lengths)
        group[1] += by * max(lengths)

    def _tokens_ahead(self, inputs: int) -> int:
        """Upper bound on the tokens that are computed before a new request with N inputs is done.

        Round robin: all requests of its size class are ahead, and of each other request at most as many inputs as that
        class may have.
        """
        own, ahead = inputs.bit_length(), 0
        for size, (tokens, round_tokens) in self._groups.items():
            ahead += tokens if size == own else min(tokens, ((1 << own) - 1) * round_tokens)
        return ahead


class ByteBudget:
    """Limit on the bytes that all requests hold together. A single request may exceed it, but only while no other holds
    bytes."""

    def __init__(self, limit: int) -> None:
        self.reserved = 0
        self._limit = limit

    @contextmanager
    def reserve(self, size: int) -> Iterator[None]:
        """Hold `size` bytes for a block.

        Raises:
            TooManyBytesError: others leave no room for them.
        """
        if self.reserved and self.reserved + size > self._limit:
            raise errors.TooManyBytesError
        self.reserved += size
        try:
            yield
        finally:
            self.reserved -= size
