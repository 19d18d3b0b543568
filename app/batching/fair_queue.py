"""A fair queue of requests. No clock, no tasks."""

from __future__ import annotations

import asyncio
import math
from bisect import bisect_right
from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from app.batching.deadline import Deadline
from app.inference.contract import ModelOutput, Part, Query


@dataclass(slots=True, eq=False)
class QueuedRequest:
    """One request: a reservation at first, then inputs in the queue, then outputs. Times are `time.monotonic()`."""

    items: int
    """Number of inputs."""
    tokens: int
    """Tokens of all inputs; an estimate while the request is being tokenized."""
    largest_item_tokens: int
    """Tokens of the largest input, the most that one round of the queue takes from this request."""
    deadline: Deadline
    encoder: str = ""
    """Name of the encoder; only its inputs share a batch."""
    query: Query | None = None
    """The tokenized inputs; None before that."""
    ends: list[int] = field(default_factory=list)
    """Cumulative tokens, up to each input."""
    taken: int = 0
    """Number of inputs that were taken from the queue."""
    outputs: list[ModelOutput | None] = field(default_factory=list)
    uncomputed: int = 0
    """Number of inputs without an output."""
    submitted: float = 0.0
    started: float = math.inf
    """When its first input was taken."""
    future: asyncio.Future[None] | None = None

    def fill(self, encoder: str, query: Query) -> None:
        """Give the request its tokenized inputs, which wait from now on."""
        self.encoder, self.query = encoder, query
        self.ends = list(accumulate(query.lengths))
        self.tokens, self.largest_item_tokens = self.ends[-1], max(query.lengths)
        self.outputs = [None] * self.items
        self.uncomputed = self.items

    @property
    def waiting_tokens(self) -> int:
        """Tokens of the inputs that wait."""
        return self.ends[-1] - self._tokens_before(self.taken) if self.taken < len(self.ends) else 0

    def take(self, room: int, most: int) -> Run | None:
        """Take the next inputs: at most `most`, and at most `room` tokens. Returns None if none fits."""
        before = self._tokens_before(self.taken)
        stop = min(bisect_right(self.ends, before + room, self.taken), self.taken + most)
        return self.take_until(stop) if stop > self.taken else None

    def take_until(self, stop: int) -> Run:
        """Take the waiting inputs before index `stop`."""
        start, self.taken = self.taken, stop
        return Run(self, start, stop)

    def withdraw(self) -> None:
        """Remove all waiting inputs."""
        self.taken = self.items

    def _tokens_before(self, index: int) -> int:
        return self.ends[index - 1] if index else 0


class Run(NamedTuple):
    """Inputs of a request, one after another."""

    request: QueuedRequest
    start: int
    stop: int

    @property
    def part(self) -> Part:
        """These inputs, for a backend."""
        assert self.request.query is not None
        return Part(self.request.query, self.start, self.stop)

    @property
    def items(self) -> int:
        """Number of inputs."""
        return self.stop - self.start

    @property
    def tokens(self) -> int:
        """Tokens of all inputs."""
        ends = self.request.ends
        return ends[self.stop - 1] - (ends[self.start - 1] if self.start else 0)


@dataclass(slots=True)
class _Class:
    """Waiting requests of similar size, the oldest first. Any of them can be removed at once."""

    requests: OrderedDict[QueuedRequest, None] = field(default_factory=OrderedDict)
    turn: int = 0
    """Number of inputs that it may still give before the next class's turn."""


class Waiting:
    """Waiting requests of one encoder.

    Requests are served round robin, one input each, so a request of 512 inputs delays a single input by at most one
    batch. Requests of similar size (1 input, 2 or 3, 4 to 7, ...) share a turn, which the oldest takes: if each gave
    its own inputs, all would end at the same time, and the processes would wait for their callers.
    """

    def __init__(self) -> None:
        self._classes: OrderedDict[int, _Class] = OrderedDict()
        """Classes by the bit length of the number of inputs, in the order of their turns."""

    def __bool__(self) -> bool:
        return bool(self._classes)

    def push(self, request: QueuedRequest) -> None:
        """Add a request at the end."""
        self._classes.setdefault(request.items.bit_length(), _Class()).requests[request] = None

    def withdraw(self, request: QueuedRequest) -> None:
        """Remove a request, if it is here."""
        size = request.items.bit_length()
        if (own := self._classes.get(size)) and request in own.requests:
            del own.requests[request]
            if not own.requests:
                del self._classes[size]

    def take(self, max_tokens: int) -> list[Run]:
        """Take inputs of up to `max_tokens`. The first input is always taken, even if it is larger, and is never
        overtaken, so every input is served."""
        batch: list[Run] = []
        room = max_tokens
        while self._classes:
            size, own = next(iter(self._classes.items()))
            own.turn = own.turn or len(own.requests)
            request = next(iter(own.requests))
            most = own.turn if len(self._classes) > 1 else request.items
            run = request.take(room, most) or (None if batch else request.take_until(request.taken + 1))
            if run is None:
                break
            room -= run.tokens
            own.turn = max(own.turn - run.items, 0)
            if batch and batch[-1].request is request:
                run = batch.pop()._replace(stop=run.stop)
            batch.append(run)
            if request.taken == request.items:
                self.withdraw(request)
            if not own.turn and size in self._classes:
                self._classes.move_to_end(size)
        return batch


class FairQueue:
    """Requests by encoder; the encoders are served round robin."""

    def __init__(self) -> None:
        self.tokens = 0
        """Tokens of all waiting inputs."""
        self._by_encoder: dict[str, Waiting] = {}

    def push(self, request: QueuedRequest) -> None:
        """Add a request at the end."""
        self._by_encoder.setdefault(request.encoder, Waiting()).push(request)
        self.tokens += request.waiting_tokens

    def take(self, max_tokens: int) -> list[Run]:
        """The next batch of the encoder whose turn it is; empty if nothing waits."""
        for encoder, waiting in list(self._by_encoder.items()):
            batch = waiting.take(max_tokens)
            del self._by_encoder[encoder]
            if waiting:
                self._by_encoder[encoder] = waiting  # last in turn from now on
            if batch:
                self.tokens -= sum(run.tokens for run in batch)
                return batch
        return []

    def withdraw(self, request: QueuedRequest) -> None:
        """Remove a request and its waiting inputs."""
        self.tokens -= request.waiting_tokens
        request.withdraw()
        if waiting := self._by_encoder.get(request.encoder):
            waiting.withdraw(request)
