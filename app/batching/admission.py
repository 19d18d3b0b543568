"""Decides whether a request may wait: by its bytes while it is received, then by room in the queue and its deadline.

All refusals that depend on other requests are here (429, and 504 `deadline_unreachable`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

from app import errors
from app.batching.deadline import Deadline
from app.batching.fair_queue import QueuedRequest
from app.batching.throughput import Throughput


@dataclass(frozen=True, slots=True)
class AdmissionPolicy:
    """Estimates from the head of a request, before its body is read."""

    bytes_per_token: int = 6
    """Estimates a body's tokens. It is above the usual number, so that they are not overestimated."""
    bytes_per_input: int = 64
    """Estimates a body's inputs, and is above the usual number for the same reason."""
    max_assumed_tokens: int = 512
    """Upper bound of this estimate, because a body may be one long text that will be truncated."""
    max_assumed_inputs: int = 32
    headroom: float = 0.1
    """Fraction of the queue that is kept for admitted requests whose bodies are being read. The estimates are low, and
    a request should be refused before it is read."""


class Admission:
    """The load of one engine, and whether one more request fits into its queue and can be computed in time."""

    def __init__(self, throughput: Throughput, policy: AdmissionPolicy = AdmissionPolicy()) -> None:
        self.max_queue_tokens = 0
        """Tokens that may wait ahead of a request, its own included."""
        self.reserved_tokens = 0
        """Estimated tokens of requests that are being tokenized; they count as queued."""
        self._throughput = throughput
        self._policy = policy
        self._groups: defaultdict[int, list[int]] = defaultdict(lambda: [0, 0])
        """Unanswered requests by the bit length of their number of inputs: the tokens of all, and the sum of each
        request's largest input."""

    def check_head(self, body_bytes: int, queued_tokens: int, deadline: Deadline) -> None:
        """Check by the size of a request's body that it has a chance. Raises the errors of `check`."""
        policy = self._policy
        tokens = min(body_bytes // policy.bytes_per_token, policy.max_assumed_tokens, self.max_queue_tokens)
        inputs = min(max(body_bytes // policy.bytes_per_input, 1), policy.max_assumed_inputs)
        self.check(tokens, inputs, queued_tokens, deadline, headroom=policy.headroom)

    def check(self, tokens: int, inputs: int, queued_tokens: int, deadline: Deadline, *, headroom: float = 0.0) -> None:
        """Check that a request can be queued now.

        A request with nothing ahead is not refused as late, even if its deadline seems hopeless. The speed is a mean
        over both models and the last batches, and a service that refuses everything cannot correct a speed that is too
        low.

        Args:
            tokens: Tokens of all its inputs.
            queued_tokens: tokens that wait for a batch.
            headroom: fraction of the room, in tokens and in time, that must be left where others wait.

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
        waiting = min(queued_tokens + self.reserved_tokens, ahead)  # a large request leaves room for small ones
        if waiting and waiting + tokens > self.max_queue_tokens * (1 - headroom):
            raise errors.QueueFullError(self._throughput.seconds_for(waiting))
        if ahead and ahead + tokens > self._throughput.max_backlog(remaining) * (1 - headroom):
            retry_after = self._throughput.seconds_for(ahead)
            if deadline.from_client:
                raise errors.DeadlineUnreachableError(retry_after)
            raise errors.QueueFullError(retry_after, late=True)

    def add(self, request: QueuedRequest) -> None:
        """Count a request."""
        self._count(request, 1)

    def remove(self, request: QueuedRequest) -> None:
        """Stop counting a request; without effect the second time."""
        self._count(request, -1)
        request.tokens = request.largest_item_tokens = 0

    def _count(self, request: QueuedRequest, by: int) -> None:
        group = self._groups[request.items.bit_length()]
        group[0] += by * request.tokens
        group[1] += by * request.largest_item_tokens
        if not request.submitted:
            self.reserved_tokens += by * request.tokens

    def _tokens_ahead(self, inputs: int) -> int:
        """Upper bound on the tokens that are computed before a new request with N inputs is done.

        Round robin: all requests of its size class are ahead, and of each other request at most as many inputs as that
        class may have.
        """
        own = inputs.bit_length()
        return sum(
            tokens if size == own else min(tokens, ((1 << own) - 1) * round_tokens)
            for size, (tokens, round_tokens) in self._groups.items()
        )


class ByteBudget:
    """Limit on the bytes that all requests hold together. A single request may exceed it, but only while no other holds
    bytes."""

    def __init__(self, limit: int, *, free: int) -> None:
        """Make a budget. A request of at most `free` bytes is not counted."""
        self.reserved = 0
        self._limit = limit
        self._free = free

    def check(self, size: int) -> None:
        """Check that a request can hold `size` bytes now.

        Raises:
            TooManyBytesError: others leave no room for them.
        """
        if size > self._free and self.reserved and self.reserved + size > self._limit:
            raise errors.TooManyBytesError

    def reserve(self, size: int) -> AbstractContextManager[None]:
        """Hold `size` bytes for a block. Raises the errors of `check`."""
        self.check(size)
        return self._held(size) if size > self._free else nullcontext()

    @contextmanager
    def _held(self, size: int) -> Iterator[None]:
        self.reserved += size
        try:
            yield
        finally:
            self.reserved -= size
