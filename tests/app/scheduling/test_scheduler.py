"""Batching on the event loop, with a fake computer whose gate the test holds."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import islice

import pytest

from app.errors import (
    BackendDiedError,
    DeadlineExceededError,
    InferenceError,
    OutOfMemoryError,
    ProcessDiedError,
    QueueFullError,
    TooLargeError,
    UnavailableError,
)
from app.inference.types import BatchResult, Part
from app.scheduling.deadline import Deadline
from app.scheduling.scheduler import Scheduler
from app.scheduling.throughput import Throughput, ThroughputPolicy
from tests.app.waiting import until

PATIENCE = 30


@dataclass
class Counts:
    """Metrics that count."""

    seen: dict[str, int] = field(default_factory=dict)

    def _add(self, name: str) -> None:
        self.seen[name] = self.seen.get(name, 0) + 1

    def batch(self, items: int, tokens: int) -> None:
        self._add("batch")

    def refused(self) -> None:
        self._add("refused")

    def expired(self) -> None:
        self._add("expired")


@dataclass(eq=False)
class Numbers:
    """The inputs of a request: numbers."""

    items: Sequence[int]
    lengths: Sequence[int]


def numbers_of(parts: Sequence[Part]) -> list[int]:
    """The inputs of a batch."""
    return [item for query, start, stop in parts for item in query.items[start:stop]]  # type: ignore[attr-defined]


def result_of(parts: Sequence[Part], answers: Sequence[object], seconds: float = 0.0) -> BatchResult:
    """Answers to the inputs of a batch."""
    rest = iter(answers)
    return BatchResult([list(islice(rest, part.inputs)) for part in parts], seconds)  # type: ignore[misc]


@dataclass
class Computer:
    """Doubles numbers; a test may close its gate or make items fail."""

    batches: list[tuple[str, list[int]]] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    entered: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    fault: Callable[[list[int]], BaseException | None] = lambda _: None

    async def run(self, encoder: str, parts: Sequence[Part]) -> BatchResult:
        began, items = time.monotonic(), numbers_of(parts)
        self.batches.append((encoder, list(items)))
        self.entered.release()
        await self.gate.wait()
        if (error := self.fault(items)) is not None:
            try:
                raise error
            finally:
                del error  # its traceback holds this frame: a cycle
        return result_of(parts, [2 * item for item in items], time.monotonic() - began)

    async def has_entered(self) -> None:
        async with asyncio.timeout(PATIENCE):
            await self.entered.acquire()


@pytest.fixture
def computer() -> Computer:
    made = Computer()
    made.gate.set()
    return made


@asynccontextmanager
async def running(
    computer: Computer,
    *,
    batch: int = 100,
    queue: int = 1000,
    processes: int = 1,
    is_current: Callable[[str], bool] = lambda _: True,
    on_failure: Callable[[BaseException], None] = lambda _: None,
) -> AsyncIterator[Scheduler]:
    scheduler = Scheduler(
        computer.run,
        throughput=Throughput(ThroughputPolicy(max_queue_fraction=1.0), fixed_batch_tokens=batch),
        metrics=Counts(),
        on_failure=on_failure,
        is_current=is_current,
    )
    scheduler.open(processes, queue)
    try:
        yield scheduler
    finally:
        computer.gate.set()
        await scheduler.aclose(PATIENCE)


async def ask(
    scheduler: Scheduler,
    *items: int,
    encoder: str = "a",
    tokens: int = 10,
    seconds: float = PATIENCE,
    own: bool = False,
) -> list[int]:
    sizes = [tokens] * len(items)
    with scheduler.reserve(sizes, Deadline.after(seconds, from_client=own)) as request:
        return await scheduler.answer(request, encoder, Numbers(items, sizes))  # type: ignore[arg-type, return-value]


async def start(
    scheduler: Scheduler, *items: int, encoder: str = "a", tokens: int = 10, seconds: float = PATIENCE
) -> asyncio.Task[list[int]]:
    """Let a request enter the queue."""
    task = asyncio.create_task(ask(scheduler, *items, encoder=encoder, tokens=tokens, seconds=seconds))
    await asyncio.sleep(0)
    return task


def counts(scheduler: Scheduler) -> dict[str, int]:
    metrics = scheduler._metrics
    assert isinstance(metrics, Counts)
    return metrics.seen


async def test_scheduler_answers_in_the_order_of_the_items(computer: Computer) -> None:
    async with running(computer, batch=20) as scheduler:
        assert await ask(scheduler, 5, 1, 4, 2, 3) == [10, 2, 8, 4, 6]


async def test_scheduler_requests_that_arrive_together_share_the_first_batch(computer: Computer) -> None:
    async with running(computer) as scheduler:
        assert await asyncio.gather(*(ask(scheduler, i) for i in (1, 2, 3))) == [[2], [4], [6]]
    assert computer.batches == [("a", [1, 2, 3])]


async def test_scheduler_what_arrives_during_a_batch_shares_the_next(computer: Computer) -> None:
    computer.gate.clear()
    async with running(computer) as scheduler:
        tasks = [await start(scheduler, 0)]
        await computer.has_entered()
        tasks += [await start(scheduler, i) for i in (1, 2, 3)]
        computer.gate.set()
        assert await asyncio.gather(*tasks) == [[0], [2], [4], [6]]
    assert computer.batches == [("a", [0]), ("a", [1, 2, 3])]


async def test_scheduler_encoders_do_not_mix_and_take_turns(computer: Computer) -> None:
    computer.gate.clear()
    async with running(computer, batch=10) as scheduler:
        tasks = [await start(scheduler, 0, encoder="a")]
        await computer.has_entered()
        tasks += [await start(scheduler, 1, 2, 3, encoder="a"), await start(scheduler, 7, encoder="b")]
        computer.gate.set()
        await asyncio.gather(*tasks)
    assert [encoder for encoder, _ in computer.batches] == ["a", "a", "b", "a", "a"]


async def test_scheduler_only_the_failing_item_of_a_batch_gets_the_error(computer: Computer) -> None:
    computer.fault = lambda items: ValueError("13") if 13 in items else None
    computer.gate.clear()
    async with running(computer) as scheduler:
        tasks = [await start(scheduler, 0)]
        await computer.has_entered()
        tasks += [await start(scheduler, i) for i in (11, 12, 13, 14, 15)]
        computer.gate.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [r for r in results if isinstance(r, list)] == [[0], [22], [24], [28], [30]]
    assert isinstance(results[3], InferenceError)


async def test_scheduler_request_whose_item_fails_leaves_the_queue(computer: Computer) -> None:
    computer.fault = lambda items: ValueError() if 1 in items else None
    async with running(computer, batch=10) as scheduler:
        with pytest.raises(InferenceError):
            await ask(scheduler, 1, *range(2, 50))
        assert await ask(scheduler, 60) == [120]
        assert scheduler.queued_tokens == 0
    assert [items for _, items in computer.batches] == [[1], [60]]


async def test_scheduler_exception_in_place_of_an_answer_reaches_only_its_caller() -> None:
    class Picky(Computer):
        async def run(self, encoder: str, parts: Sequence[Part]) -> BatchResult:
            items = numbers_of(parts)
            return result_of(parts, [InferenceError("odd") if item % 2 else item for item in items])

    async with running(Picky()) as scheduler:
        good, bad = await asyncio.gather(ask(scheduler, 2), ask(scheduler, 3), return_exceptions=True)
    assert good == [2]
    assert isinstance(bad, InferenceError)


async def test_scheduler_wrong_number_of_answers_is_an_error() -> None:
    class Forgetful(Computer):
        async def run(self, encoder: str, parts: Sequence[Part]) -> BatchResult:
            return BatchResult([], 0.0)

    async with running(Forgetful()) as scheduler:
        with pytest.raises(InferenceError):
            await ask(scheduler, 1)


async def test_scheduler_out_of_memory_splits_the_batch_and_lowers_the_limit(computer: Computer) -> None:
    computer.fault = lambda items: OutOfMemoryError() if len(items) > 2 else None
    async with running(computer) as scheduler:
        assert await ask(scheduler, 1, 2, 3, 4, 5, 6, 7, 8) == [2, 4, 6, 8, 10, 12, 14, 16]
        assert scheduler.throughput.batch_tokens <= 40
        tries = len(computer.batches)
        for _ in range(4):
            await ask(scheduler, 1, 2)
        assert len(computer.batches) == tries + 4
        assert scheduler.throughput.batch_tokens <= 40  # at any speed


async def test_scheduler_moment_without_memory_does_not_make_batches_tiny(computer: Computer) -> None:
    failures = iter([OutOfMemoryError() for _ in range(4)])  # 8, 4, 2 and 1 items; then memory is free again
    computer.fault = lambda _: next(failures, None)
    async with running(computer) as scheduler:
        with pytest.raises(InferenceError):
            await ask(scheduler, 1, 2, 3, 4, 5, 6, 7, 8)
        assert scheduler.throughput.batch_tokens == 40, "the second half had room as a whole"


async def test_scheduler_batch_of_the_backend_before_is_not_measured(computer: Computer) -> None:
    async with running(computer) as scheduler:
        scheduler.throughput.set(1e-6, processes=1, max_useful_tokens=100)
        computer.gate.clear()
        old = await start(scheduler, 1, tokens=100)
        await computer.has_entered()
        scheduler.open(1, 1000)
        computer.gate.set()
        assert await old == [2]
        assert scheduler.throughput.tokens_per_second == 1e-6
        await ask(scheduler, 1, tokens=100)
        assert scheduler.throughput.tokens_per_second > 1


async def test_scheduler_item_that_never_fits_fails_alone(computer: Computer) -> None:
    computer.fault = lambda items: OutOfMemoryError() if 1 in items else None
    async with running(computer) as scheduler:
        with pytest.raises(InferenceError):
            await ask(scheduler, 1)
        assert await ask(scheduler, 2) == [4]
        assert scheduler.throughput.batch_tokens == 100  # smaller batches would not help it


async def test_scheduler_cancelled_request_is_never_computed(computer: Computer) -> None:
    computer.gate.clear()
    async with running(computer) as scheduler:
        first = await start(scheduler, 0)
        await computer.has_entered()
        second, third = await start(scheduler, 1), await start(scheduler, 2)
        second.cancel()
        await asyncio.wait([second])
        assert scheduler.queued_tokens == 10
        computer.gate.set()
        assert await first == [0]
        assert await third == [4]
    assert computer.batches == [("a", [0]), ("a", [2])]


async def test_scheduler_halves_no_batch_whose_requests_have_ended(computer: Computer) -> None:
    computer.fault = lambda _: OutOfMemoryError()
    computer.gate.clear()
    async with running(computer) as scheduler:
        asked = await start(scheduler, *range(8))
        await computer.has_entered()
        asked.cancel()
        await asyncio.wait([asked])
        computer.gate.set()
        await until(lambda: not scheduler._running)
    assert len(computer.batches) == 1


async def test_scheduler_batches_of_a_replaced_backend_take_no_process_of_the_new_one(computer: Computer) -> None:
    async with running(computer, is_current=lambda encoder: encoder == "new") as scheduler:
        computer.gate.clear()
        first = await start(scheduler, 1, encoder="old")
        await computer.has_entered()
        left, last = await start(scheduler, 2, encoder="old"), await start(scheduler, 3, encoder="old", tokens=100)
        new = await start(scheduler, 4, encoder="new")
        await computer.has_entered()
        assert computer.batches == [("old", [1]), ("new", [4])]
        left.cancel()
        computer.gate.set()
        assert await asyncio.gather(first, last, new) == [[2], [6], [8]]
    assert [items for _, items in computer.batches] == [[1], [4], [3]]


async def test_scheduler_deadline_that_has_passed_is_refused_at_once(computer: Computer) -> None:
    async with running(computer) as scheduler:
        with pytest.raises(DeadlineExceededError):
            await ask(scheduler, 1, seconds=-1)
        assert counts(scheduler) == {"expired": 1}
    assert computer.batches == []


async def test_scheduler_expired_item_is_never_computed(computer: Computer) -> None:
    """Also in the moment before the request's own timeout withdraws it."""
    computer.gate.clear()
    async with running(computer) as scheduler:
        first = await start(scheduler, 0)
        await computer.has_entered()
        second = await start(scheduler, 1, seconds=0.05)
        await asyncio.sleep(0.06)
        computer.gate.set()
        await first
        assert await ask(scheduler, 2) == [4]
        second.cancel()
    assert [items for _, items in computer.batches] == [[0], [2]]


async def test_scheduler_full_queue_refuses_whole_requests_and_says_when_to_return(computer: Computer) -> None:
    computer.gate.clear()
    async with running(computer, queue=50) as scheduler:
        first = await start(scheduler, 0)
        await computer.has_entered()
        second = await start(scheduler, 1, 2, 3)
        with pytest.raises(QueueFullError) as refused:
            await ask(scheduler, 4, 5, 6)
        assert refused.value.retry_after >= 1
        assert counts(scheduler)["refused"] == 1
        third = await start(scheduler, 7, 8)
        computer.gate.set()
        assert await asyncio.gather(first, second, third) == [[0], [2, 4, 6], [14, 16]]


async def test_scheduler_reservation_counts_as_queued_until_it_is_released(computer: Computer) -> None:
    deadline = Deadline.after(PATIENCE)
    async with running(computer, queue=50) as scheduler:
        with scheduler.reserve([10, 10, 10], deadline):
            assert scheduler.reserved_tokens == 30
            with pytest.raises(QueueFullError):
                scheduler.check_capacity(21, 3, deadline)
        assert scheduler.reserved_tokens == 0
        scheduler.check_capacity(50, 1, deadline)
        with scheduler.reserve([10], deadline) as request:  # an estimate that was too low
            with pytest.raises(TooLargeError):
                await scheduler.answer(request, "a", Numbers([1], [51]))  # type: ignore[arg-type]
            assert scheduler.reserved_tokens == 0
        assert await ask(scheduler, 1, tokens=50) == [2]


async def test_scheduler_keeps_headroom_where_others_wait(computer: Computer) -> None:
    deadline = Deadline.after(PATIENCE)
    computer.gate.clear()
    async with running(computer, queue=100) as scheduler:
        scheduler.check_capacity(100, 10, deadline, headroom=0.1)  # nothing waits
        first = await start(scheduler, 0)
        await computer.has_entered()
        scheduler.check_capacity(100, 10, deadline, headroom=0.1)  # one is computed
        second = await start(scheduler, 1, 2, 3)
        scheduler.check_capacity(70, 7, deadline)
        scheduler.check_capacity(60, 6, deadline, headroom=0.1)
        with pytest.raises(QueueFullError):
            scheduler.check_capacity(61, 6, deadline, headroom=0.1)
        scheduler.throughput.tokens_per_second = 1.0
        scheduler.throughput.tokens_per_second = 100 / scheduler.throughput.max_backlog(deadline.remaining)
        scheduler.check_capacity(55, 5, deadline)  # 40 of 100 are ahead
        scheduler.check_capacity(48, 4, deadline, headroom=0.1)
        with pytest.raises(QueueFullError):
            scheduler.check_capacity(55, 5, deadline, headroom=0.1)
        computer.gate.set()
        await asyncio.gather(first, second)


async def test_scheduler_refuses_what_cannot_be_computed_before_its_deadline(computer: Computer) -> None:
    async with running(computer, batch=10) as scheduler:
        for i in range(10):
            await ask(scheduler, i)
        scheduler.throughput.tokens_per_second = 1.0
        computer.gate.clear()
        first = await start(scheduler, 1, seconds=1)  # nothing is ahead of it: it may try
        with pytest.raises(QueueFullError, match=r"than this request's deadline allows; try again in 10 s"):
            await ask(scheduler, 2, seconds=19)
        with pytest.raises(DeadlineExceededError, match=r"allow more time, or try again in 10 s") as refused:
            await ask(scheduler, 2, seconds=19, own=True)
        assert refused.value.retry_after == 10
        assert (counts(scheduler)["expired"], counts(scheduler)["refused"]) == (1, 1)
        second = await start(scheduler, 2, seconds=21)
        with pytest.raises(QueueFullError, match=r"try again in 20 s"):  # the one that is computed counts too
            await ask(scheduler, 3, seconds=19)
        computer.gate.set()
        assert (await first, await second) == ([2], [4])


async def test_scheduler_large_request_does_not_keep_out_small_ones(computer: Computer) -> None:
    async with running(computer, batch=20, queue=10_000) as scheduler:
        for i in range(10):
            await ask(scheduler, i, i)
        scheduler.throughput.tokens_per_second = 1.0  # and so seconds are tokens
        computer.gate.clear()
        large = await start(scheduler, *range(100), seconds=2000)
        await computer.has_entered()
        small = [await start(scheduler, i, seconds=45 + 10 * i) for i in range(3)]
        with pytest.raises(QueueFullError):
            await ask(scheduler, 7, seconds=45)  # one turn of the large one and three of the small ones
        with pytest.raises(QueueFullError):
            await ask(scheduler, *range(50), seconds=1000)  # some 50 turns of the large one, and its own 50
        middle = await start(scheduler, *range(50), seconds=1200)
        computer.gate.set()
        assert await asyncio.gather(*small) == [[0], [2], [4]]
        assert [len(answers) for answers in await asyncio.gather(large, middle)] == [100, 50]
        assert scheduler._load_by_size.tokens_ahead(1000) == 0


async def test_scheduler_request_that_fills_the_queue_leaves_room_for_small_ones(computer: Computer) -> None:
    async with running(computer, batch=20, queue=1000) as scheduler:
        computer.gate.clear()
        first = await start(scheduler, 0)
        await computer.has_entered()
        large = await start(scheduler, *range(100))
        with pytest.raises(QueueFullError):
            await ask(scheduler, *range(100))
        small = [await start(scheduler, i) for i in range(90)]
        assert scheduler.queued_tokens == 1900
        with pytest.raises(QueueFullError):  # small ones fill the queue for each other
            await asyncio.gather(*[await start(scheduler, i) for i in range(10)])
        computer.gate.set()
        assert await asyncio.gather(first, *small) == [[0], *([2 * i] for i in range(90))]
        assert len(await large) == 100


async def test_scheduler_request_that_is_being_tokenized_takes_its_turns(computer: Computer) -> None:
    async with running(computer, batch=20, queue=10_000) as scheduler:
        for i in range(10):
            await ask(scheduler, i, i)
        scheduler.throughput.tokens_per_second = 1.0  # and so seconds are tokens
        deadline = Deadline.after(45)
        with scheduler.reserve([10] * 100, Deadline.after(10**6)):
            scheduler.check_capacity(30, 3, Deadline.after(65))  # three turns of the other
            with pytest.raises(QueueFullError):
                scheduler.check_capacity(30, 3, deadline)
            with pytest.raises(QueueFullError):
                scheduler.check_capacity(10_000 - 999, 100, Deadline.after(10**6))  # its room is taken
            scheduler.check_capacity(10_000 - 10, 1, Deadline.after(10**6))  # but for one turn
        scheduler.check_capacity(30, 3, deadline)


async def test_scheduler_tells_how_long_the_running_batch_takes(computer: Computer) -> None:
    async with running(computer) as scheduler:
        computer.gate.clear()
        asked = await start(scheduler, 1)
        await computer.has_entered()
        await asyncio.sleep(0.05)
        assert scheduler.computing_for >= 0.05
        computer.gate.set()
        await asked
        assert scheduler.computing_for == 0


async def test_scheduler_watches_each_part_of_a_batch_that_is_halved() -> None:
    class Failing(Computer):
        async def run(self, encoder: str, parts: Sequence[Part]) -> BatchResult:
            items = numbers_of(parts)
            self.entered.release()
            await self.gate.wait()
            self.gate.clear()
            if len(items) > 1:
                raise ValueError
            return result_of(parts, items)

    computer = Failing()
    async with running(computer) as scheduler:
        asked = await start(scheduler, 1, 2)
        for _ in range(3):
            await computer.has_entered()
            await asyncio.sleep(0.02)
            assert scheduler.computing_for >= 0.02
            computer.gate.set()
            before = time.monotonic()
            await until(lambda: not computer.gate.is_set())
            await asyncio.sleep(0)
            assert scheduler.computing_for <= time.monotonic() - before
        assert await asked == [1, 2]


async def test_scheduler_free_processes_share_what_waits(computer: Computer) -> None:
    async with running(computer, batch=10_000, processes=2) as scheduler:
        computer.gate.clear()
        asked = await start(scheduler, *range(100))
        for _ in range(2):
            await computer.has_entered()
        assert [len(items) for _, items in computer.batches] == [50, 50]
        computer.gate.set()
        assert await asked == [2 * i for i in range(100)]


async def test_scheduler_does_not_split_what_is_small(computer: Computer) -> None:
    async with running(computer, batch=10_000, processes=2) as scheduler:
        await ask(scheduler, *range(25))
        assert [len(items) for _, items in computer.batches] == [25]


async def test_scheduler_records_how_many_batches_ran_together(computer: Computer) -> None:
    recorded: list[int] = []
    async with running(computer, processes=2) as scheduler:
        scheduler.throughput.record_batch = lambda tokens, seconds, concurrent: recorded.append(concurrent)  # type: ignore[method-assign]
        computer.gate.clear()
        asked = [await start(scheduler, 1)]
        await computer.has_entered()
        asked.append(await start(scheduler, 2))
        await computer.has_entered()
        computer.gate.set()
        await asyncio.gather(*asked)
    assert recorded == [2, 2]


async def test_scheduler_batch_that_fails_says_nothing_of_speed(computer: Computer) -> None:
    computer.fault = lambda items: ValueError() if 1 in items else None
    async with running(computer, batch=20) as scheduler:
        scheduler.throughput.set(1.0, 1, 1000)
        with pytest.raises(InferenceError):
            await ask(scheduler, 1, 2)
        assert scheduler.throughput.tokens_per_second == 1.0


async def test_scheduler_tells_how_much_waits(computer: Computer) -> None:
    async with running(computer) as scheduler:
        computer.gate.clear()
        first = await start(scheduler, 1)
        assert (scheduler.unanswered_requests, scheduler.queued_tokens) == (1, 10)
        await computer.has_entered()
        assert (scheduler.unanswered_requests, scheduler.queued_tokens) == (1, 0)
        computer.gate.set()
        await first
        assert (scheduler.unanswered_requests, scheduler.queued_tokens) == (0, 0)


async def test_scheduler_request_beyond_the_whole_queue_is_told_so(computer: Computer) -> None:
    async with running(computer, queue=50) as scheduler:
        with scheduler.reserve([60], Deadline.after(PATIENCE)) as request, pytest.raises(TooLargeError):
            await scheduler.answer(request, "a", Numbers([1], [60]))  # type: ignore[arg-type]


async def test_scheduler_dead_backend_fails_its_requests(computer: Computer) -> None:
    death = BackendDiedError()
    told: list[BaseException] = []
    computer.gate.clear()
    async with running(computer, batch=10, on_failure=told.append) as scheduler:
        tasks = [await start(scheduler, 0)]
        await computer.has_entered()
        tasks += [await start(scheduler, i, i) for i in (1, 2)]
        computer.fault = lambda _: death
        computer.gate.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(result, UnavailableError) for result in results)
        assert told == [death]
        assert scheduler.fatal_error is death
        assert scheduler.queued_tokens == 0
        with pytest.raises(UnavailableError):
            await ask(scheduler, 3)
        computer.fault = lambda _: None


async def test_scheduler_dead_process_fails_its_batch_and_what_waits_goes_on(computer: Computer) -> None:
    computer.gate.clear()
    async with running(computer, batch=20) as scheduler:
        tasks = [await start(scheduler, 0, 1)]
        await computer.has_entered()
        tasks.append(await start(scheduler, 2))
        computer.fault = lambda items: ProcessDiedError() if 0 in items else None
        computer.gate.set()
        failed, answered = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(failed, ProcessDiedError)
        assert not isinstance(answered, BaseException)
        assert scheduler.fatal_error is None


async def test_scheduler_failure_is_told_before_its_requests_fail(computer: Computer) -> None:
    order: list[str] = []
    computer.gate.clear()
    computer.fault = lambda _: BackendDiedError()
    async with running(computer, on_failure=lambda _: order.append("health")) as scheduler:
        asked = await start(scheduler, 1)
        asked.add_done_callback(lambda _: order.append("request"))
        await computer.has_entered()
        computer.gate.set()
        await asyncio.wait([asked])
    assert order == ["health", "request"]


async def test_scheduler_dead_process_fails_requests_of_another_that_still_computes(computer: Computer) -> None:
    hold = asyncio.Event()

    class Two(Computer):
        async def run(self, encoder: str, parts: Sequence[Part]) -> BatchResult:
            items = numbers_of(parts)
            self.entered.release()
            if items == [1]:
                await hold.wait()
                return result_of(parts, [2])
            await self.gate.wait()
            raise BackendDiedError

    two = Two()
    async with running(two, processes=2) as scheduler:
        asked = []
        for number in (1, 2):
            asked.append(await start(scheduler, number))
            await two.has_entered()
        two.gate.set()
        results = await asyncio.gather(*asked, return_exceptions=True)  # while one is still computed
        assert all(isinstance(result, UnavailableError) for result in results)
        hold.set()


async def test_scheduler_closing_answers_what_runs_and_fails_what_waits(computer: Computer) -> None:
    computer.gate.clear()
    async with running(computer, batch=10) as scheduler:
        tasks = [await start(scheduler, 0)]
        await computer.has_entered()
        tasks.append(await start(scheduler, 1))
        closing = asyncio.create_task(scheduler.aclose(PATIENCE))
        await asyncio.sleep(0)
        computer.gate.set()
        await closing
        first, second = await asyncio.gather(*tasks, return_exceptions=True)
    assert first == [0]
    assert isinstance(second, UnavailableError)


async def test_scheduler_error_of_its_own_fails_the_requests_instead_of_leaving_them(computer: Computer) -> None:
    async with running(computer) as scheduler:
        scheduler.throughput.record_batch = lambda *_: 1 / 0  # type: ignore[method-assign, assignment]
        with pytest.raises(UnavailableError):
            await ask(scheduler, 1)
        assert isinstance(scheduler.fatal_error, ZeroDivisionError)


async def test_scheduler_failed_request_is_in_no_reference_cycle(
    computer: Computer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After gc.freeze() a cycle is never collected, and it would hold the encoder that a reload replaced."""
    monkeypatch.setattr("app.scheduling.scheduler.logger.exception", lambda *_: None)  # pytest would keep its frames

    class Encoder:
        pass

    async def fail() -> weakref.ref[Encoder]:
        encoder = Encoder()
        with scheduler.reserve([10], Deadline.after(PATIENCE)) as request:
            try:
                await scheduler.answer(request, encoder, Numbers([1], [10]))  # type: ignore[arg-type]
            except InferenceError:
                return weakref.ref(encoder)
        raise AssertionError

    computer.fault = lambda _: ValueError()
    async with running(computer) as scheduler:
        gc.disable()
        try:
            encoder = await fail()
            computer.batches.clear()
            await asyncio.sleep(0.01)
            assert encoder() is None
        finally:
            gc.enable()
