"""Dynamic batches: callers on the event loop, inference threads, and nothing that waits for a clock.

A thread takes the next batch the moment it is free. What has arrived by then shares a forward pass; an
idle service answers at once. There are no tensors here: an item is anything with a cost in tokens.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from app.errors import (
    BackendDiedError,
    DeadlineExceededError,
    DeadlineUnreachableError,
    InferenceError,
    OutOfMemoryError,
    QueueFullError,
    ServiceError,
    TooLargeError,
    UnavailableError,
)

Item = TypeVar("Item")
Answer = TypeVar("Answer")

logger = logging.getLogger(__name__)

_SURE = 10
"""Full batches, after which their speed is known."""
_HOPE = 4
"""How many times faster it may be than it is known to be before that."""
_RELIEF = 100
"""Full batches after a shortage of memory, after which twice as much is tried."""
_SMALL = 256
"""Tokens that idle threads do not share among them: a forward pass costs something by itself."""


@dataclass(slots=True)
class Pending(Generic[Item, Answer]):
    """One item that waits for a forward pass."""

    job: Job[Item, Answer]
    index: int
    item: Item
    cost: int
    """Tokens."""


class OwnDeadline(float):
    """A deadline that the caller asked for, sooner than the server's. If it cannot be met, the caller asked for
    too much (504); if the server's cannot, too much is waiting (429)."""


@dataclass(slots=True, eq=False)
class Job(Generic[Item, Answer]):
    """One caller's request: all items are answered, or it fails as a whole. Times are `time.monotonic()`."""

    lane: Hashable
    """Which encoder computes it; only items of one lane share a batch."""
    cost: int
    turn: int
    """Cost of its largest item: what it takes of a round, at most."""
    deadline: float
    waiting: deque[Pending[Item, Answer]] = field(default_factory=deque)
    answers: list[Answer | None] = field(default_factory=list)
    unanswered: int = 0
    submitted: float = 0.0
    started: float = math.inf
    """When its first item was taken."""
    future: asyncio.Future[None] | None = None

    @classmethod
    def of(cls, lane: Hashable, items: Sequence[Item], costs: Sequence[int], deadline: float) -> Job[Item, Answer]:
        job = cls(
            lane,
            sum(costs),
            max(costs, default=0),
            deadline,
            answers=[None] * len(items),
            unanswered=len(items),
        )
        job.waiting.extend(Pending(job, i, item, cost) for i, (item, cost) in enumerate(zip(items, costs, strict=True)))
        return job

    @property
    def results(self) -> list[Answer]:
        """The answers, once the job is done."""
        return [answer for answer in self.answers if answer is not None]


def take_batch(waiting: deque[Job[Item, Answer]], budget: int) -> list[Pending[Item, Answer]]:
    """Take items off `waiting` up to `budget` tokens, one from each job in turn.

    A job that gave an item goes to the back if it has more, so a request of 512 inputs delays a single one
    by at most a batch. The item at the front is always taken, even alone above the budget, and nothing
    overtakes it: so nobody starves.
    """
    batch: list[Pending[Item, Answer]] = []
    room = budget
    while waiting:
        job = waiting[0]
        if not job.waiting:  # expired or abandoned
            waiting.popleft()
            continue
        if batch and job.waiting[0].cost > room:
            break
        pending = job.waiting.popleft()
        room -= pending.cost
        batch.append(pending)
        waiting.popleft()
        if job.waiting:
            waiting.append(job)
    return batch


@dataclass(slots=True)
class Crowd:
    """Unanswered jobs of about the same number of items."""

    cost: int = 0
    turn: int = 0
    """Of one round: sum over the jobs"""

    def ahead(self, rounds: int) -> int:
        """What of it is computed before a new job of so many items is done, at most."""
        return min(self.cost, rounds * self.turn)


class Observer(Protocol):
    """Who counts what the batcher does."""

    def batch(self, items: int, tokens: int) -> None: ...
    def refused(self) -> None: ...
    def expired(self) -> None: ...
    def cancelled(self) -> None: ...
    def queue(self, requests: int, tokens: int) -> None: ...


class DynamicBatcher(Generic[Item, Answer]):
    """Queue and inference threads.

    `run(lane, items)` computes a batch in one of the threads: one answer per item, or in its place the
    exception that only this item gets. If it raises, the batch is halved until the guilty item stands alone.
    """

    def __init__(
        self,
        run: Callable[[Any, list[Item]], Sequence[Answer | Exception]],
        *,
        budget: Callable[[float], int],
        max_queue_tokens: int,
        observer: Observer,
        at_once: Callable[[], int] = lambda: 1,
        wait_share: float = 1.0,
    ) -> None:
        """Costs are in tokens.

        Args:
            budget: tokens of a batch, from the tokens per second that one thread computes (0: not known).
            at_once: how many batches are to be under way now, at most, unless half a full one waits.
            wait_share: of the time until its deadline, what a request may spend in the queue; if it would be
                more, it is refused.
        """
        self.batch_tokens = budget(0.0)
        self._budget = budget
        self._fitting = math.inf
        """Tokens of a batch that the memory had room for, once it had none for another."""
        self._since_shortage = 0
        """Full batches"""
        self.max_queue_tokens = max_queue_tokens
        self.queued_tokens = 0
        self.reserved_tokens = 0
        """Estimated tokens of requests that are still being tokenized; they count as queued."""
        self.wait_share = wait_share
        self.tokens_per_second = 0.0
        """Of full batches in all threads, measured; 0 before any was."""
        self._tokens_per_second_each = 0.0
        self._full_batches = 0
        """How many of them this speed was measured with; `calibrated` does not count, it may have met a busy
        machine."""
        self.error: BaseException | None = None
        """Why a thread died, and with it all."""
        self._fault: BackendDiedError | None = None
        self._began: dict[int, tuple[float, int, Hashable]] = {}
        """By thread, when its batch began, how many were under way then, and its lane."""
        self._idle = 0
        """Threads that wait for work."""
        self._run = run
        self._at_once = at_once
        self._observer = observer
        self._lanes: dict[Hashable, deque[Job[Item, Answer]]] = {}
        self._work = threading.Condition()
        self._closing = False
        self._unsettled: set[Job[Item, Answer]] = set()
        self._crowds: defaultdict[int, Crowd] = defaultdict(Crowd)
        """The unsettled, and who has reserved, by the bit length of their number of items."""
        self._threads: list[threading.Thread] = []

    @property
    def queued_requests(self) -> int:
        """Requests that are accepted and not answered yet, those in compute included."""
        return len(self._unsettled)

    @property
    def computing_for(self) -> float:
        """Seconds since the longest batch under way began; 0 if there is none."""
        return max((seconds for _, seconds in self.computing()), default=0.0)

    def computing(self) -> list[tuple[Hashable, float]]:
        """The lane of each batch under way, and the seconds since it began."""
        now = time.monotonic()
        return [(lane, now - began) for began, _, lane in list(self._began.values())]

    def timely_tokens(self, deadline: float) -> float:
        """Tokens of unanswered requests, at most, for one with this deadline to be answered in time."""
        if not self.tokens_per_second:
            return math.inf
        speed = self.tokens_per_second * (1 if self._full_batches >= _SURE else _HOPE)
        return speed * self.wait_share * max(deadline - time.monotonic(), 0.0)

    def calibrated(self, tokens_per_second: float) -> None:
        """How fast a new computer said it was, in all threads together. From now on, batches tell."""
        with self._work:
            self.tokens_per_second = tokens_per_second
            self._tokens_per_second_each = tokens_per_second / max(len(self._threads), 1)
            self._full_batches = 0
            self._fitting = math.inf
            self.batch_tokens = self._budget(self._tokens_per_second_each)

    def start(self, setup: Callable[[], int], started: Callable[[], None], died: Callable[[], None]) -> None:
        """Start a thread. It calls `setup`, which says how many threads there are to be; then the event loop
        calls `started`, or `died` at any time."""
        self._loop = asyncio.get_running_loop()
        self._start(self._main, setup, started, died)

    def _start(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, name="inference", daemon=True)
        self._threads.append(thread)
        thread.start()

    def abort(self, error: BackendDiedError) -> None:
        """From any thread: nothing can be computed any more."""
        with self._work:
            self._fault = error
            self._work.notify_all()

    async def close(self, patience: float) -> None:
        """Stop each thread after its batch; whoever still waits gets `UnavailableError`."""
        with self._work:
            self._closing = True
            self._work.notify_all()
        await asyncio.to_thread(self._join, patience)
        self._fail_everyone()

    def _join(self, patience: float) -> None:
        until = time.monotonic() + patience
        for thread in self._threads:
            thread.join(max(until - time.monotonic(), 0))

    async def answer(self, job: Job[Item, Answer]) -> list[Answer]:
        """Queue a job and wait for its answers, in the order of its items. Cancelling this leaves the queue.

        Raises:
            TooLargeError: it would not fit into an empty queue.
            QueueFullError: it does not fit now, or the server's deadline cannot be met.
            DeadlineExceededError: its deadline passed, or its caller's own cannot be met; items that still
                waited are not computed.
            InferenceError: an item of it failed.
            UnavailableError: there are no inference threads.
        """
        future = self._admit(job)
        timer = self._loop.call_later(job.deadline - job.submitted, self._expire, job)
        try:
            await future
        except asyncio.CancelledError:
            self._abandon(job)
            raise
        finally:
            job.future = None  # its error holds this frame: a circle, which a frozen object may be in for ever
            del future
            timer.cancel()
            self._unsettled.discard(job)
            self._count(-1, len(job.answers), job.cost, job.turn)
            self._observer.queue(self.queued_requests, self.queued_tokens)
        return job.results

    def check_room(self, tokens: int, items: int, deadline: float, *, spare: float = 0.0) -> None:
        """Raise what `answer` would raise for a job of so many tokens in so many items, as far as that can be
        known now; where others wait, also if it does not leave this share of the room."""
        if self.error is not None or self._closing or not self._threads:
            raise UnavailableError("broken" if self.error is not None else "stopped")
        if tokens > self.max_queue_tokens:
            raise TooLargeError(
                f"the request has {tokens} tokens, the queue holds {self.max_queue_tokens}; send fewer inputs"
            )
        waiting = self.queued_tokens + self.reserved_tokens
        full = waiting and waiting + tokens > self.max_queue_tokens * (1 - spare)
        # Requests take turns: a large one holds up a small one by some items, and one as large by all of them,
        # also if it is half done.
        ahead = sum(crowd.ahead(items) for crowd in self._crowds.values())
        late = ahead and ahead + tokens > self.timely_tokens(deadline) * (1 - spare)
        if late and not full and isinstance(deadline, OwnDeadline):
            self._observer.expired()
            raise DeadlineUnreachableError(self._retry_after())
        if full or late:
            self._observer.refused()
            raise QueueFullError(self._retry_after(), late=not full)

    def _admit(self, job: Job[Item, Answer]) -> asyncio.Future[None]:
        job.submitted = time.monotonic()
        try:
            if job.deadline <= job.submitted:
                self._observer.expired()
                raise DeadlineExceededError
            self.check_room(job.cost, len(job.answers), job.deadline)
        except ServiceError:
            job.waiting.clear()  # or else it would keep itself, and the encoder that was to compute it
            raise
        job.future = self._loop.create_future()
        self._unsettled.add(job)
        self._count(1, len(job.answers), job.cost, job.turn)
        with self._work:
            self._lanes.setdefault(job.lane, deque()).append(job)
            self.queued_tokens += job.cost
            self._work.notify()
        self._observer.queue(self.queued_requests, self.queued_tokens)
        return job.future

    @contextmanager
    def reserved(self, costs: Sequence[int]) -> Iterator[None]:
        """Hold the room of a request that is still being tokenized, of estimated costs: it counts as queued."""
        cost = min(sum(costs), self.max_queue_tokens)
        self.reserved_tokens += cost
        self._count(1, len(costs), cost, max(costs))
        try:
            yield
        finally:
            self.reserved_tokens -= cost
            self._count(-1, len(costs), cost, max(costs))

    def _count(self, by: int, items: int, cost: int, turn: int) -> None:
        crowd = self._crowds[items.bit_length()]
        crowd.cost += by * cost
        crowd.turn += by * turn

    def _retry_after(self) -> int:
        """Seconds until what waits now is computed, at the measured speed."""
        if not self.tokens_per_second:
            return 1
        return min(max(math.ceil(self.queued_tokens / self.tokens_per_second), 1), 60)

    # On the event loop ----------------------------------------------------------------------------------------

    def _abandon(self, job: Job[Item, Answer]) -> None:
        if self._withdraw(job):
            self._observer.cancelled()

    def _expire(self, job: Job[Item, Answer]) -> None:
        if job.future is not None and job.future.done():  # answered in this very moment
            return
        self._withdraw(job)
        self._observer.expired()
        self._fail(job, DeadlineExceededError())

    def _withdraw(self, job: Job[Item, Answer]) -> bool:
        """Take a job's waiting items off the queue; whether there were any."""
        with self._work:
            self.queued_tokens -= sum(pending.cost for pending in job.waiting)
            waited = bool(job.waiting)
            job.waiting.clear()
        return waited

    def _deliver(self, batch: list[Pending[Item, Answer]], answers: Sequence[Answer | Exception]) -> None:
        self._observer.batch(len(batch), sum(pending.cost for pending in batch))
        for pending, answer in zip(batch, answers, strict=True):
            job = pending.job
            if isinstance(answer, Exception):
                self._fail(job, answer)
                continue
            job.answers[pending.index] = answer
            job.unanswered -= 1
            if not job.unanswered and job.future is not None and not job.future.done():
                job.future.set_result(None)
        self._observer.queue(self.queued_requests, self.queued_tokens)

    def _fail(self, job: Job[Item, Answer], error: Exception) -> None:
        if job.future is not None and not job.future.done():
            job.future.set_exception(error)

    def _fail_everyone(self) -> None:
        for job in list(self._unsettled):
            self._withdraw(job)
            self._fail(job, UnavailableError("broken" if self.error is not None else "stopped"))

    # In the inference threads ---------------------------------------------------------------------------------

    def _main(self, setup: Callable[[], int], started: Callable[[], None], died: Callable[[], None]) -> None:
        try:
            for _ in range(setup() - 1):
                self._start(self._compute, died)
        except BaseException as error:
            self._break(error, died)
            return
        self._hand_over(started)
        self._compute(died)

    def _compute(self, died: Callable[[], None]) -> None:
        try:
            while self._compute_next():
                pass
        except BaseException as error:
            self._break(error, died)

    def _break(self, error: BaseException, died: Callable[[], None]) -> None:
        with self._work:
            if self.error is not None:  # another thread was first
                return
            self.error = error
            self._work.notify_all()
        self._hand_over(died)  # first: who is told that it broke shall find health red
        self._hand_over(self._fail_everyone)

    def _next_batch(self) -> list[Pending[Item, Answer]]:
        """Wait for work, however long; empty when the batcher closes or is broken."""
        with self._work:
            self._idle += 1
            try:
                while not self._closing and self.error is None:
                    if self._fault is not None:
                        raise self._fault
                    room = self._room()
                    if batch := self._take(room):
                        began = time.monotonic(), len(self._began) + 1, batch[0].job.lane
                        self._began[threading.get_ident()] = began
                        if self._lanes and room > 1:
                            self._work.notify()
                        return batch
                    if not self._lanes or room < 1:
                        self._work.wait()
            finally:
                self._idle -= 1
        return []

    def _room(self) -> int:
        """How many of the idle threads may take a batch: all, if what waits is worth it."""
        if 2 * self.queued_tokens >= self.batch_tokens:
            return self._idle
        return min(self._at_once() - len(self._began), self._idle)

    def _take(self, threads: int) -> list[Pending[Item, Answer]]:
        """The next batch of the lane whose turn it is, without what has expired meanwhile; no more than a
        share of what waits, if there are several threads for it; nothing if there is none."""
        if threads < 1:
            return []
        budget = min(self.batch_tokens, max(self.queued_tokens // threads, _SMALL))
        for lane, waiting in list(self._lanes.items()):
            batch = take_batch(waiting, budget)
            del self._lanes[lane]
            if waiting:
                self._lanes[lane] = waiting  # its turn comes last now
            if batch:
                self.queued_tokens -= sum(pending.cost for pending in batch)
                now = time.monotonic()
                batch = [pending for pending in batch if pending.job.deadline > now]
                for pending in batch:
                    pending.job.started = min(pending.job.started, now)
                return batch
        return []

    def _compute_next(self) -> bool:
        """Keeps nothing of the batch: what computed it may have been replaced before there is another."""
        batch = self._next_batch()
        if not batch:
            return False
        answers = self._run_isolated(batch)
        tokens = sum(pending.cost for pending in batch)
        with self._work:
            now = len(self._began)
            began, then, _ = self._began.pop(threading.get_ident())
            speed, batches = tokens / max(time.monotonic() - began, 1e-6), max(then, now)
            # Small ones are slower, and do not queue. But one that is faster than what is believed tells that a
            # slow time is over, in which only small ones may have been let in.
            telling = 2 * tokens >= self.batch_tokens or 0 < self.tokens_per_second < speed * batches
            if telling and not any(isinstance(answer, Exception) for answer in answers):
                self._measured(speed, batches)
        for pending, answer in zip(batch, answers, strict=True):
            if isinstance(answer, Exception):
                self._withdraw(pending.job)  # before the next batch: the request has failed as a whole
        self._hand_over(self._deliver, batch, answers)
        return True

    def _measured(self, speed: float, batches: int) -> None:
        """How fast a batch was, one of so many at the same time."""
        share = 1 / _SURE if self.tokens_per_second else 1.0
        self.tokens_per_second += share * (speed * batches - self.tokens_per_second)
        self._tokens_per_second_each += share * (speed - self._tokens_per_second_each)
        self._full_batches += 1
        self._since_shortage += 1
        if self._since_shortage % _RELIEF == 0:
            self._fitting *= 2
        self.batch_tokens = int(min(self._budget(self._tokens_per_second_each), self._fitting))

    def _run_isolated(self, batch: list[Pending[Item, Answer]]) -> list[Answer | Exception]:
        """Answers of a batch; where it fails, of its halves, so that only the guilty item gets the error."""
        try:
            answers = list(self._run(batch[0].job.lane, [pending.item for pending in batch]))
            if len(answers) != len(batch):
                raise RuntimeError(f"{len(answers)} answers to {len(batch)} items")
            return answers
        except BackendDiedError:
            raise
        except OutOfMemoryError:
            tokens = sum(pending.cost for pending in batch)
            if len(batch) > 1:
                with self._work:
                    self._fitting = self.batch_tokens = max(min(self.batch_tokens, tokens // 2), 1)
                    self._since_shortage = 0
            logger.warning("out of memory at %d tokens; batches are now %d", tokens, self.batch_tokens)
        except Exception:
            if len(batch) == 1:
                logger.exception("inference failed on one input of %d tokens", batch[0].cost)
        if len(batch) == 1:
            return [InferenceError()]
        middle = len(batch) // 2
        return self._run_isolated(batch[:middle]) + self._run_isolated(batch[middle:])

    def _hand_over(self, callback: Callable[..., None], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:  # the loop is closed, and with it every future
            logger.debug("the event loop is gone")
