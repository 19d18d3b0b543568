"""A fair queue of requests. No clock, no tasks."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict, deque
from dataclasses import dataclass, field

from app.inference.contract import Part, Query


@dataclass(slots=True)
class _SizeClass:
    """Requests of similar size, the oldest first. Those that have ended are passed over."""

    queries: deque[Query] = field(default_factory=deque)
    inputs_left: int = 0
    """Number of inputs that it may still give before the next class's turn."""


_SizeClasses = OrderedDict[int, _SizeClass]
"""The requests of an encoder, by the bit length of their number of inputs, in the order of their turns."""


class FairQueue:
    """Waiting requests by encoder. The encoders are served round robin; a batch is of one encoder.

    The requests of an encoder are served round robin too, one input each, so a request of 512 inputs delays a single
    input by at most one batch. Requests of similar size (1 input, 2 or 3, 4 to 7, ...) share a turn, which the oldest
    takes: if each gave its own inputs, all would end at the same time, and the processes would wait for their callers.
    """

    def __init__(self) -> None:
        self.tokens = 0
        """Tokens of all waiting inputs."""
        self._by_encoder: dict[str, _SizeClasses] = {}

    def push(self, query: Query) -> None:
        """Add a request at the end."""
        classes = self._by_encoder.setdefault(query.encoder, OrderedDict())
        classes.setdefault(len(query.lengths).bit_length(), _SizeClass()).queries.append(query)
        self.tokens += query.ends[-1]

    def take(self, max_tokens: int) -> list[Part]:
        """Take the next batch, of up to `max_tokens`; empty if nothing waits. The first input is always taken, even if
        it is larger, and is never overtaken, so every input is served."""
        for encoder, classes in list(self._by_encoder.items()):
            batch, tokens = _take_batch(classes, max_tokens)
            del self._by_encoder[encoder]
            if classes:
                self._by_encoder[encoder] = classes  # last in turn from now on
            if batch:
                self.tokens -= tokens
                return batch
        return []

    def withdraw(self, query: Query) -> None:
        """Mark all inputs of a request as taken, and free their encodings: the queue keeps the request until its turn,
        which may be late if a batch hangs."""
        if query.taken < len(query.lengths):
            self.tokens -= query.waiting_tokens
            query.taken, query.encodings = len(query.lengths), []


def _take_batch(classes: _SizeClasses, max_tokens: int) -> tuple[list[Part], int]:
    """Take inputs of up to `max_tokens`. Returns them and their tokens."""
    batch: list[Part] = []
    tokens = 0
    while classes:
        size, size_class = next(iter(classes.items()))
        size_class.inputs_left = size_class.inputs_left or len(size_class.queries)
        query = size_class.queries[0]
        inputs = len(query.lengths)
        if query.taken < inputs:  # otherwise it has ended
            most = size_class.inputs_left if len(classes) > 1 else inputs
            part = _take_part(query, max_tokens - tokens, most, take_one=not batch)
            if part is None:
                break
            tokens += part.tokens
            size_class.inputs_left = max(size_class.inputs_left - part.inputs, 0)
            if batch and batch[-1].query is query:
                part = batch.pop()._replace(stop=part.stop)
            batch.append(part)
        if query.taken == inputs:
            size_class.queries.popleft()
        if not size_class.queries:
            del classes[size]
        elif not size_class.inputs_left:
            classes.move_to_end(size)
    return batch, tokens


def _take_part(query: Query, room: int, most: int, *, take_one: bool) -> Part | None:
    """Take a request's next inputs: at most `most`, and at most `room` tokens. If none fits: one if `take_one`,
    otherwise None."""
    start = query.taken
    before = query.ends[start - 1] if start else 0
    query.taken = max(min(bisect_right(query.ends, before + room, start), start + most), start + take_one)
    return Part(query, start, query.taken) if query.taken > start else None
