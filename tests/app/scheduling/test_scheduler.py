"""The decision as a pure function, and the thread around it with a fake computer."""

from __future__ import annotations

import asyncio
import gc
import math
import threading
import time
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import (
    DeadlineExceededError,
    InferenceError,
    QueueFullError,
    TooLargeError,
    UnavailableError,
)
from app.scheduling.scheduler import BackendDiedError, DynamicBatcher, Job, OutOfMemoryError, OwnDeadline, take_batch

PATIENCE = 30
FAR = 1e12  # a deadline nobody meets

Requests = st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=6), min_size=1, max_size=8)


def waiting_of(requests: Sequence[Sequence[int]]) -> deque[Job[tuple[int, int], int]]:
    """One job per list of costs; an item is (request, index)."""
    return deque(Job.of("lane", [(r, i) for i in range(len(costs))], costs, FAR) for r, costs in enumerate(requests))


def batches_of(requests: Sequence[Sequence[int]], budget: int) -> list[list[tuple[int, int]]]:
    waiting = waiting_of(requests)
    batches = []
    while waiting:
        batches.append([pending.item for pending in take_batch(waiting, budget)])
    return batches


@given(Requests, st.integers(1, 100))
def test_every_item_is_taken_exactly_once(requests: list[list[int]], budget: int) -> None:
    taken = [item for batch in batches_of(requests, budget) for item in batch]
    assert sorted(taken) == [(r, i) for r, costs in enumerate(requests) for i in range(len(costs))]


@given(Requests, st.integers(1, 100))
def test_batch_exceeds_the_budget_only_with_a_single_item(requests: list[list[int]], budget: int) -> None:
    for batch in batches_of(requests, budget):
        assert batch
        assert len(batch) == 1 or sum(requests[r][i] for r, i in batch) <= budget


@given(Requests, st.integers(1, 100))
def test_items_of_one_request_keep_their_order(requests: list[list[int]], budget: int) -> None:
    taken = [item for batch in batches_of(requests, budget) for item in batch]
    for r in range(len(requests)):
        own = [i for request, i in taken if request == r]
        assert own == sorted(own)


@given(Requests, st.integers(1, 100))
def test_no_request_gives_a_second_item_before_all_gave_one(requests: list[list[int]], budget: int) -> None:
    taken = [r for batch in batches_of(requests, budget) for r, _ in batch]
    assert taken[: len(requests)] == list(range(len(requests)))


def test_single_request_behind_512_inputs_is_in_the_next_batch() -> None:
    waiting = waiting_of([[10] * 512])
    take_batch(waiting, 100)
    waiting += waiting_of([[10]])
    batch = take_batch(waiting, 100)
    assert waiting[0].cost == 5120  # only the large one is left
    assert len({id(pending.job) for pending in batch}) == 2


def test_large_item_at_the_front_is_not_overtaken() -> None:
    waiting = waiting_of([[90], [90], [5]])
    assert [p.cost for p in take_batch(waiting, 100)] == [90]
    assert [p.cost for p in take_batch(waiting, 100)] == [90, 5]


def test_abandoned_jobs_are_passed_over() -> None:
    waiting = waiting_of([[1], [1]])
    waiting[0].waiting.clear()
    assert [p.item for p in take_batch(waiting, 10)] == [(1, 0)]
    assert not waiting


@dataclass
class Counts:
    """An observer that counts."""

    seen: dict[str, int] = field(default_factory=dict)
    depths: list[tuple[int, int]] = field(default_factory=list)

    def _add(self, name: str) -> None:
        self.seen[name] = self.seen.get(name, 0) + 1

    def batch(self, items: int, tokens: int) -> None:
        self._add("batch")

    def refused(self) -> None:
        self._add("refused")

    def expired(self) -> None:
        self._add("expired")

    def cancelled(self) -> None:
        self._add("cancelled")

    def queue(self, requests: int, tokens: int) -> None:
        self.depths.append((requests, tokens))


@dataclass
class Computer:
    """Doubles numbers; a test may close its gate or make items fail."""

    batches: list[tuple[str, list[int]]] = field(default_factory=list)
    gate: threading.Event = field(default_factory=threading.Event)
    entered: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    fault: Callable[[list[int]], BaseException | None] = lambda _: None

    def run(self, lane: str, items: list[int]) -> list[int | Exception]:
        self.batches.append((lane, list(items)))
        self.entered.release()
        assert self.gate.wait(PATIENCE)
        if (error := self.fault(items)) is not None:
            raise error
        return [2 * item for item in items]

    async def has_entered(self) -> None:
        assert await asyncio.to_thread(self.entered.acquire, timeout=PATIENCE)


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
    budget: Callable[[float], int] | None = None,
    queue: int = 1000,
    wait_share: float = 1.0,
    threads: int = 1,
    at_once: Callable[[], int] | None = None,
) -> AsyncIterator[DynamicBatcher[int, int]]:
    batcher = DynamicBatcher[int, int](
        computer.run,
        budget=budget or (lambda _: batch),
        max_queue_tokens=queue,
        observer=Counts(),
        at_once=at_once or (lambda: threads),
        wait_share=wait_share,
    )
    started = asyncio.Event()
    batcher.start(lambda: threads, started.set, lambda: None)
    try:
        async with asyncio.timeout(PATIENCE):
            await started.wait()
        yield batcher
    finally:
        computer.gate.set()
        await batcher.close(PATIENCE)


def job(*items: int, lane: str = "a", cost: int = 10, seconds: float = PATIENCE) -> Job[int, int]:
    return Job.of(lane, items, [cost] * len(items), time.monotonic() + seconds)


async def start(batcher: DynamicBatcher[int, int], waiting: Job[int, int]) -> asyncio.Task[list[int]]:
    """Let a job enter the queue."""
    task = asyncio.create_task(batcher.answer(waiting))
    await asyncio.sleep(0)
    return task


def counts(batcher: DynamicBatcher[int, int]) -> dict[str, int]:
    observer = batcher._observer
    assert isinstance(observer, Counts)
    return observer.seen


async def test_answers_come_in_the_order_of_the_items(computer: Computer) -> None:
    async with running(computer, batch=20) as batcher:
        assert await batcher.answer(job(5, 1, 4, 2, 3)) == [10, 2, 8, 4, 6]


async def test_what_arrives_during_a_batch_shares_the_next(computer: Computer) -> None:
    computer.gate.clear()
    async with running(computer) as batcher:
        tasks = [await start(batcher, job(0))]
        await computer.has_entered()
        tasks += [await start(batcher, job(i)) for i in (1, 2, 3)]
        computer.gate.set()
        assert await asyncio.gather(*tasks) == [[0], [2], [4], [6]]
    assert computer.batches == [("a", [0]), ("a", [1, 2, 3])]


async def test_lanes_do_not_mix_and_take_turns(computer: Computer) -> None:
    computer.gate.clear()
    async with running(computer, batch=10) as batcher:
        tasks = [await start(batcher, job(0, lane="a"))]
        await computer.has_entered()
        tasks += [await start(batcher, job(1, 2, 3, lane="a")), await start(batcher, job(7, lane="b"))]
        computer.gate.set()
        await asyncio.gather(*tasks)
    assert [lane for lane, _ in computer.batches] == ["a", "a", "b", "a", "a"]


async def test_only_the_guilty_item_of_a_failing_batch_gets_the_error(computer: Computer) -> None:
    computer.fault = lambda items: ValueError("13") if 13 in items else None
    computer.gate.clear()
    async with running(computer) as batcher:
        tasks = [await start(batcher, job(0))]
        await computer.has_entered()
        tasks += [await start(batcher, job(i)) for i in (11, 12, 13, 14, 15)]
        computer.gate.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [r for r in results if isinstance(r, list)] == [[0], [22], [24], [28], [30]]
    assert isinstance(results[3], InferenceError)


async def test_request_whose_item_fails_leaves_the_queue(computer: Computer) -> None:
    computer.fault = lambda items: ValueError() if 1 in items else None
    async with running(computer, batch=10) as batcher:
        with pytest.raises(InferenceError):
            await batcher.answer(job(1, *range(2, 50)))
        assert await batcher.answer(job(60)) == [120]
        assert batcher.queued_tokens == 0
    assert [items for _, items in computer.batches] == [[1], [60]]


async def test_exception_in_place_of_an_answer_reaches_only_its_caller() -> None:
    class Picky(Computer):
        def run(self, lane: str, items: list[int]) -> list[int | Exception]:
            return [InferenceError("odd") if item % 2 else item for item in items]

    async with running(Picky()) as batcher:
        good, bad = await asyncio.gather(batcher.answer(job(2)), batcher.answer(job(3)), return_exceptions=True)
    assert good == [2]
    assert isinstance(bad, InferenceError)


async def test_wrong_number_of_answers_is_an_error() -> None:
    class Forgetful(Computer):
        def run(self, lane: str, items: list[int]) -> list[int | Exception]:
            return []

    async with running(Forgetful()) as batcher:
        with pytest.raises(InferenceError):
            await batcher.answer(job(1))


async def test_out_of_memory_splits_the_batch_and_lowers_the_budget(computer: Computer) -> None:
    computer.fault = lambda items: OutOfMemoryError() if len(items) > 2 else None
    async with running(computer) as batcher:
        assert await batcher.answer(job(1, 2, 3, 4, 5, 6, 7, 8)) == [2, 4, 6, 8, 10, 12, 14, 16]
        assert batcher.batch_tokens <= 40
        tries = len(computer.batches)
        await batcher.answer(job(1, 2))
        assert len(computer.batches) == tries + 1
        for _ in range(3):
            await batcher.answer(job(1, 2))
        assert batcher.batch_tokens <= 40  # whatever the speed


async def test_shortage_of_memory_that_ends_is_overcome(computer: Computer) -> None:
    computer.fault = lambda items: OutOfMemoryError() if len(items) > 2 else None
    async with running(computer) as batcher:
        await batcher.answer(job(*range(8)))
        assert batcher.batch_tokens == 20
        computer.fault = lambda _: None
        for _ in range(100 * 3):
            await batcher.answer(job(*range(8)))
        assert batcher.batch_tokens == 100


async def test_item_that_never_fits_fails_alone(computer: Computer) -> None:
    computer.fault = lambda items: OutOfMemoryError() if 1 in items else None
    async with running(computer) as batcher:
        with pytest.raises(InferenceError):
            await batcher.answer(job(1))
        assert await batcher.answer(job(2)) == [4]
        assert batcher.batch_tokens == 100  # smaller batches would not help it


async def test_refused_request_is_forgotten(computer: Computer) -> None:
    async with running(computer, queue=50) as batcher:
        for refused in (job(*range(6)), job(1, seconds=-1)):
            with pytest.raises((TooLargeError, DeadlineExceededError)):
                await batcher.answer(refused)
            assert not refused.waiting


async def test_encoder_is_forgotten_once_its_last_batch_is_computed(computer: Computer) -> None:
    class Encoder:
        pass

    async with running(computer) as batcher:
        replaced: Any = Encoder()
        forgotten = weakref.ref(replaced)
        await batcher.answer(job(1, lane=replaced))
        del replaced
        computer.batches.clear()
        async with asyncio.timeout(PATIENCE):
            while forgotten() is not None:  # noqa: ASYNC110 (the thread tells nobody)
                await asyncio.sleep(0.002)


async def test_cancelled_request_never_reaches_the_computer(computer: Computer) -> None:
    computer.gate.clear()
    async with running(computer) as batcher:
        first = await start(batcher, job(0))
        await computer.has_entered()
        second, third = await start(batcher, job(1)), await start(batcher, job(2))
        second.cancel()
        await asyncio.wait([second])
        assert batcher.queued_tokens == 10
        computer.gate.set()
        assert await first == [0]
        assert await third == [4]
        assert counts(batcher)["cancelled"] == 1
    assert computer.batches == [("a", [0]), ("a", [2])]


async def test_expired_request_is_never_computed(computer: Computer) -> None:
    computer.gate.clear()
    async with running(computer) as batcher:
        first = await start(batcher, job(0))
        await computer.has_entered()
        with pytest.raises(DeadlineExceededError):
            await batcher.answer(job(1, seconds=0.02))
        assert batcher.queued_tokens == 0
        computer.gate.set()
        await first
        assert counts(batcher)["expired"] == 1
    assert computer.batches == [("a", [0])]


async def test_deadline_that_has_passed_is_refused_at_the_door(computer: Computer) -> None:
    async with running(computer) as batcher:
        with pytest.raises(DeadlineExceededError):
            await batcher.answer(job(1, seconds=-1))
    assert computer.batches == []


async def test_deadline_is_checked_by_the_thread_too(computer: Computer) -> None:
    computer.gate.clear()
    async with running(computer) as batcher:
        first = await start(batcher, job(0))
        await computer.has_entered()
        late = job(1)
        second = await start(batcher, late)
        late.deadline = 0.0  # its timer on the loop has not fired
        computer.gate.set()
        await first
        assert await batcher.answer(job(2)) == [4]
        second.cancel()
    assert [items for _, items in computer.batches] == [[0], [2]]


async def test_full_queue_refuses_whole_requests_and_says_when_to_return(computer: Computer) -> None:
    computer.gate.clear()
    async with running(computer, queue=50) as batcher:
        first = await start(batcher, job(0))
        await computer.has_entered()
        second = await start(batcher, job(1, 2, 3))
        with pytest.raises(QueueFullError) as refused:
            await batcher.answer(job(4, 5, 6))
        assert refused.value.retry_after >= 1
        assert counts(batcher)["refused"] == 1
        third = await start(batcher, job(7, 8))
        computer.gate.set()
        assert await asyncio.gather(first, second, third) == [[0], [2, 4, 6], [14, 16]]


async def test_room_can_be_spared_where_others_wait(computer: Computer) -> None:
    deadline = time.monotonic() + PATIENCE
    computer.gate.clear()
    async with running(computer, queue=100, wait_share=0.5) as batcher:
        batcher.check_room(100, 10, deadline, spare=0.1)  # nobody waits
        first = await start(batcher, job(0))
        await computer.has_entered()
        batcher.check_room(100, 10, deadline, spare=0.1)  # one is computed
        second = await start(batcher, job(1, 2, 3))
        batcher.check_room(70, 7, deadline)
        batcher.check_room(60, 6, deadline, spare=0.1)
        with pytest.raises(QueueFullError):
            batcher.check_room(61, 6, deadline, spare=0.1)
        batcher.tokens_per_second = 1.0
        batcher.tokens_per_second = 100 / batcher.timely_tokens(deadline)  # 40 of 100 are ahead
        batcher.check_room(55, 5, deadline)
        batcher.check_room(48, 4, deadline, spare=0.1)
        with pytest.raises(QueueFullError):
            batcher.check_room(55, 5, deadline, spare=0.1)
        computer.gate.set()
        await asyncio.gather(first, second)


@pytest.mark.parametrize(("speed", "expected"), [(0.0, 1), (10.0, 4), (1e6, 1), (1e-3, 60)])
async def test_retry_after_follows_the_measured_speed(computer: Computer, speed: float, expected: int) -> None:
    computer.gate.clear()
    async with running(computer, queue=40) as batcher:
        first = await start(batcher, job(0))
        await computer.has_entered()
        second = await start(batcher, job(1, 2, 3, 4))
        batcher.tokens_per_second = speed
        with pytest.raises(QueueFullError) as refused:
            batcher.check_room(1, 1, time.monotonic() + PATIENCE)
        assert refused.value.retry_after == expected
        computer.gate.set()
        await asyncio.gather(first, second)


@pytest.mark.parametrize(("batches", "fitting"), [(1, 4), (10, 1)], ids=["hardly known", "known"])
async def test_what_cannot_be_computed_before_its_own_deadline_is_refused(
    computer: Computer, batches: int, fitting: int
) -> None:
    async with running(computer, batch=10, wait_share=0.5) as batcher:
        for i in range(batches):
            await batcher.answer(job(i))
        batcher.tokens_per_second = 1.0
        assert batcher.timely_tokens(time.monotonic() + 100) == pytest.approx(50 * fitting, rel=0.01)
        assert batcher.timely_tokens(time.monotonic() - 1) == 0
        computer.gate.clear()
        first = await start(batcher, job(1, seconds=1))  # nobody is before it: it may try
        with pytest.raises(QueueFullError, match=r"beyond this request's deadline; try again in 10 s"):
            await batcher.answer(job(2, seconds=19 * 2 / fitting))
        hurried = job(2)
        hurried.deadline = OwnDeadline(time.monotonic() + 19 * 2 / fitting)
        with pytest.raises(DeadlineExceededError, match=r"allow more time, or try again in 10 s") as refused:
            await batcher.answer(hurried)
        assert refused.value.retry_after == 10
        assert (counts(batcher)["expired"], counts(batcher)["refused"]) == (1, 1)
        second = await start(batcher, job(2, seconds=21 * 2 / fitting))
        computer.gate.set()
        assert (await first, await second) == ([2], [4])


async def test_large_request_does_not_keep_out_small_ones_that_it_delays_by_a_turn(computer: Computer) -> None:
    async with running(computer, batch=20, queue=10_000) as batcher:
        for i in range(10):
            await batcher.answer(job(i, i))
        batcher.tokens_per_second = 1.0  # and so seconds are tokens
        computer.gate.clear()
        large = await start(batcher, job(*range(100), cost=10, seconds=2000))
        await computer.has_entered()
        small = [await start(batcher, job(i, seconds=45 + 10 * i)) for i in range(3)]
        with pytest.raises(QueueFullError):
            await batcher.answer(job(7, seconds=45))  # one turn of the large one and three of the small ones
        with pytest.raises(QueueFullError):
            await batcher.answer(job(*range(50), seconds=1000))  # 50 turns of the large one, and its own 50
        middle = await start(batcher, job(*range(50), seconds=1100))
        computer.gate.set()
        assert await asyncio.gather(*small) == [[0], [2], [4]]
        assert [len(answers) for answers in await asyncio.gather(large, middle)] == [100, 50]
        assert all((crowd.cost, crowd.turn) == (0, 0) for crowd in batcher._crowds.values())


async def test_what_is_still_being_tokenized_takes_its_turns_too(computer: Computer) -> None:
    async with running(computer, batch=20, queue=10_000) as batcher:
        for i in range(10):
            await batcher.answer(job(i, i))
        batcher.tokens_per_second = 1.0  # and so seconds are tokens
        until = time.monotonic() + 45
        with batcher.reserved([10] * 100):
            batcher.check_room(30, 3, until + 20)  # three turns of the other
            with pytest.raises(QueueFullError):
                batcher.check_room(30, 3, until)
            with pytest.raises(QueueFullError):
                batcher.check_room(10_000 - 999, 1, until + 10**6)  # its room is taken
        batcher.check_room(30, 3, until)


async def test_nothing_is_refused_as_long_as_no_speed_is_known(computer: Computer) -> None:
    async with running(computer) as batcher:
        assert batcher.timely_tokens(time.monotonic() + 0.001) == math.inf


async def test_time_of_the_batch_under_way_is_told(computer: Computer) -> None:
    async with running(computer) as batcher:
        computer.gate.clear()
        asked = await start(batcher, job(1))
        await computer.has_entered()
        await asyncio.sleep(0.05)
        assert batcher.computing_for >= 0.05
        computer.gate.set()
        await asked
        await asyncio.sleep(0)
        assert batcher.computing_for == 0


async def test_idle_threads_share_what_waits(computer: Computer) -> None:
    async with running(computer, batch=10_000, threads=3, at_once=lambda: 2) as batcher:
        computer.gate.clear()
        asked = await start(batcher, job(*range(100)))
        for _ in range(2):
            await computer.has_entered()
        assert [len(items) for _, items in computer.batches] == [50, 50]
        computer.gate.set()
        assert await asked == [2 * i for i in range(100)]


async def test_what_is_too_small_to_be_shared_is_one_batch(computer: Computer) -> None:
    async with running(computer, batch=10_000, threads=2) as batcher:
        await batcher.answer(job(*range(25)))
        assert [len(items) for _, items in computer.batches] == [25]


async def test_no_more_batches_are_under_way_than_there_should_be(computer: Computer) -> None:
    most = 1
    async with running(computer, threads=2, at_once=lambda: most) as batcher:
        computer.gate.clear()
        asked = [await start(batcher, job(1))]
        await computer.has_entered()
        asked.append(await start(batcher, job(2)))
        await asyncio.sleep(0.1)
        assert len(computer.batches) == 1
        most = 2
        asked.append(await start(batcher, job(3)))
        await computer.has_entered()
        assert computer.batches[1] == ("a", [2, 3])
        computer.gate.set()
        assert await asyncio.gather(*asked) == [[2], [4], [6]]


async def test_thread_that_dies_strands_nobody_of_another(computer: Computer) -> None:
    death = BackendDiedError()
    hold = threading.Event()

    def fault(items: list[int]) -> BaseException | None:
        if items == [1]:
            assert hold.wait(PATIENCE)
            return None
        return death

    computer.fault = fault
    async with running(computer, threads=2) as batcher:
        asked = []
        for number in (1, 2):
            asked.append(await start(batcher, job(number)))
            await computer.has_entered()
        results = await asyncio.gather(*asked, return_exceptions=True)  # while one is still under way
        assert all(isinstance(result, UnavailableError) for result in results)
        assert batcher.error is death
        hold.set()


async def test_speed_is_that_of_all_threads_and_a_batch_follows_from_one(computer: Computer) -> None:
    speeds: list[float] = []

    def budget(speed: float) -> int:
        speeds.append(speed)
        return 10

    async with running(computer, threads=2, budget=budget) as batcher:
        batcher.calibrated(100.0)
        assert (batcher.tokens_per_second, speeds[-1]) == (100, 50)
        batcher.tokens_per_second = batcher._tokens_per_second_each = 0.0
        computer.gate.clear()
        asked = [await start(batcher, job(number)) for number in (1, 2)]
        for _ in asked:
            await computer.has_entered()
        await asyncio.sleep(0.1)  # so that both take about as long
        computer.gate.set()
        await asyncio.gather(*asked)
        assert batcher.tokens_per_second > 1.5 * batcher._tokens_per_second_each


async def test_observer_is_told_how_much_waits(computer: Computer) -> None:
    async with running(computer) as batcher:
        await batcher.answer(job(1))
        observer = batcher._observer
    assert isinstance(observer, Counts)
    assert observer.depths == [(1, 10), (1, 0), (0, 0)]


async def test_speed_is_that_of_full_batches(computer: Computer) -> None:
    async with running(computer, batch=1000) as batcher:
        for i in range(10):
            await batcher.answer(job(i))
        assert batcher.tokens_per_second == 0
        await batcher.answer(job(*range(50)))
        assert batcher.tokens_per_second > 0


async def test_fast_small_batch_tells_that_a_slow_time_is_over(computer: Computer) -> None:
    """In which only small ones may have been let in."""
    async with running(computer, batch=1000) as batcher:
        batcher.calibrated(0.01)
        await batcher.answer(job(1))
        assert batcher.tokens_per_second > 1
        batcher.calibrated(1e9)
        await batcher.answer(job(1))
        assert batcher.tokens_per_second == 1e9


async def test_batch_that_fails_tells_nothing_of_speed(computer: Computer) -> None:
    computer.fault = lambda items: ValueError() if 1 in items else None
    async with running(computer, batch=20) as batcher:
        batcher.calibrated(1.0)
        with pytest.raises(InferenceError):
            await batcher.answer(job(1, 2))
        assert batcher.tokens_per_second == 1.0


@pytest.mark.parametrize("fails", [False, True])
async def test_request_without_an_answer_holds_nothing_though_its_objects_were_frozen(
    computer: Computer, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """As after a reload: what it holds is the old encoder."""
    monkeypatch.setattr("app.scheduling.scheduler.logger.exception", lambda *_: None)  # pytest would keep its frames

    class Encoder:
        pass

    def begin() -> tuple[asyncio.Task[list[int]], weakref.ref[Encoder]]:
        encoder = Encoder()
        held: Job[int, int] = Job.of(encoder, [1], [10], time.monotonic() + (PATIENCE if fails else 0.2))
        return asyncio.create_task(batcher.answer(held)), weakref.ref(encoder)

    computer.gate.clear()
    if fails:
        computer.fault = lambda _: ValueError()
    async with running(computer) as batcher:
        task, encoder = begin()
        await computer.has_entered()
        computer.batches.clear()
        gc.collect()
        gc.freeze()
        try:
            if fails:
                computer.gate.set()
            with suppress(InferenceError, DeadlineExceededError):
                await task
            del task
            computer.gate.set()
            computer.fault = lambda _: None
            await batcher.answer(job(2))  # the thread keeps nothing of the batch before
            computer.batches.clear()
            gc.collect()
            assert encoder() is None
        finally:
            gc.unfreeze()


async def test_token_budget_recovers_from_a_calibration_on_a_busy_machine(computer: Computer) -> None:
    async with running(computer, budget=lambda speed: 1000 if speed > 1 else 10) as batcher:
        batcher.calibrated(0.001)
        assert batcher.batch_tokens == 10
        await batcher.answer(job(1))  # a full batch, and much faster
        assert batcher.batch_tokens == 1000


async def test_request_beyond_the_whole_queue_is_told_so(computer: Computer) -> None:
    async with running(computer, queue=50) as batcher:
        with pytest.raises(TooLargeError):
            await batcher.answer(job(1, 2, 3, 4, 5, 6))


@pytest.mark.parametrize("death", [BackendDiedError(), SystemExit()])
async def test_dead_thread_strands_nobody(computer: Computer, death: BaseException) -> None:
    computer.gate.clear()
    async with running(computer, batch=10) as batcher:
        tasks = [await start(batcher, job(0))]
        await computer.has_entered()
        tasks += [await start(batcher, job(i, i)) for i in (1, 2)]
        computer.fault = lambda _: death
        computer.gate.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(result, UnavailableError) for result in results)
        assert batcher.error is death
        assert batcher.queued_tokens == 0
        with pytest.raises(UnavailableError):
            await batcher.answer(job(3))


async def test_failed_setup_counts_as_death(computer: Computer) -> None:
    died = asyncio.Event()

    def fail() -> int:
        raise ValueError("no weights")

    batcher = DynamicBatcher[int, int](computer.run, budget=lambda _: 1, max_queue_tokens=1, observer=Counts())
    batcher.start(fail, lambda: None, died.set)
    async with asyncio.timeout(PATIENCE):
        await died.wait()
    assert isinstance(batcher.error, ValueError)
    await batcher.close(PATIENCE)


async def test_closing_settles_who_still_waits(computer: Computer) -> None:
    computer.gate.clear()
    async with running(computer, batch=10) as batcher:
        tasks = [await start(batcher, job(0))]
        await computer.has_entered()
        tasks.append(await start(batcher, job(1)))
        closing = asyncio.create_task(batcher.close(PATIENCE))
        await asyncio.sleep(0)
        computer.gate.set()
        await closing
        first, second = await asyncio.gather(*tasks, return_exceptions=True)
    assert first == [0]
    assert isinstance(second, UnavailableError)
