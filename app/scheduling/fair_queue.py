"""A fair queue of requests, and an upper bound of the tokens ahead of a new request. No clock, no tasks."""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict, defaultdict, deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from app.inference.types import Answer, Query
from app.scheduling.deadline import Deadline


@dataclass(slots=True)
class Pending:
    """One item that waits for a forward pass."""

    request: QueuedRequest
    index: int
    item: Query
    tokens: int


@dataclass(slots=True, eq=False)
class QueuedRequest:
    """One request: a reservation at first, then items in the queue, then answers. Times are `time.monotonic()`."""

    items: int
    tokens: int
    """Estimated while the request is being tokenized."""
    largest_item_tokens: int
    """Tokens of the largest item, the most that one round of the queue takes from this request."""
    deadline: Deadline
    encoder: Hashable = None
    """Items of one encoder share batches."""
    waiting: deque[Pending] = field(default_factory=deque)
    answers: list[Answer | None] = field(default_factory=list)
    unanswered: int = 0
    submitted: float = 0.0
    started: float = math.inf
    """When its first item was taken."""
    future: asyncio.Future[None] | None = None

    def fill(self, encoder: Hashable, items: Sequence[Query], tokens: Sequence[int]) -> None:
        """Give the request its items, which wait from now on."""
        self.encoder = encoder
        self.answers = [None] * len(items)
        self.unanswered = len(items)
        self.waiting.extend(Pending(self, i, *pair) for i, pair in enumerate(zip(items, tokens, strict=True)))


Waiting = OrderedDict[QueuedRequest, None]
"""Requests with items that wait, in order; any of them can be removed at once."""


def take_batch(waiting: Waiting, max_tokens: int) -> list[Pending]:
    """Take items off `waiting` up to `max_tokens`, one from each request in turn.

    A request that gave an item goes to the back if it has more, so a request of 512 inputs delays a single input by
    at most one batch. The item at the front is always taken, even alone above `max_tokens`, and no other item
    overtakes it, so every item is served.
    """
    batch: list[Pending] = []
    room = max_tokens
    while waiting:
        request = next(iter(waiting))
        if batch and request.waiting[0].tokens > room:
            break
        pending = request.waiting.popleft()
        room -= pending.tokens
        batch.append(pending)
        if request.waiting:
            waiting.move_to_end(request)
        else:
            del waiting[request]
    return batch


class FairQueue:
    """Requests by encoder; encoders take turns."""

    def __init__(self) -> None:
        self.tokens = 0
        """Tokens of all waiting items."""
        self._by_encoder: dict[Hashable, Waiting] = {}

    def push(self, request: QueuedRequest) -> None:
        """Add a request at the back."""
        self._by_encoder.setdefault(request.encoder, OrderedDict())[request] = None
        self.tokens += sum(pending.tokens for pending in request.waiting)

    def take(self, max_tokens: int) -> list[Pending]:
        """The next batch of the encoder whose turn it is; empty if nothing waits."""
        for encoder, waiting in list(self._by_encoder.items()):
            batch = take_batch(waiting, max_tokens)
            del self._by_encoder[encoder]
            if waiting:
                self._by_encoder[encoder] = waiting  # last in turn from now on
            if batch:
                self.tokens -= sum(pending.tokens for pending in batch)
                return batch
        return []

    def withdraw(self, request: QueuedRequest) -> None:
        """Remove a request and its waiting items."""
        self.tokens -= sum(pending.tokens for pending in request.waiting)
        request.waiting.clear()
        if waiting := self._by_encoder.get(request.encoder):
            waiting.pop(request, None)


class LoadBySize:
    """Unanswered requests, grouped by size, because how much is ahead of a newcomer depends on both sizes.

    Requests take turns: a large request delays a small one by a few items, and one of its own size by all its items.
    """

    def __init__(self) -> None:
        self._groups: defaultdict[int, list[int]] = defaultdict(lambda: [0, 0])
        """By the bit length of the number of items: tokens of all requests, and of one round of them."""

    def add(self, request: QueuedRequest) -> None:
        """Count a request."""
        self._count(request, 1)

    def remove(self, request: QueuedRequest) -> None:
        """Count a request no longer. Its tokens must be those with which it was added."""
        self._count(request, -1)

    def tokens_ahead(self, items: int) -> int:
        """Tokens that are computed before a new request of so many items is done, at most."""
        return sum(min(tokens, items * round_tokens) for tokens, round_tokens in self._groups.values())

    def _count(self, request: QueuedRequest, by: int) -> None:
        group = self._groups[request.items.bit_length()]
        group[0] += by * request.tokens
        group[1] += by * request.largest_item_tokens
