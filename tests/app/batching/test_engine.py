"""An engine with a fake backend whose gate the test holds."""

from __future__ import annotations

import asyncio
import gc
import weakref
from array import array
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import pytest

from app.batching.admission import Deadline
from app.batching.engine import Engine
from app.batching.throughput import Throughput, ThroughputPolicy
from app.errors import (
    BackendDiedError,
    InferenceError,
    OutOfMemoryError,
    ProcessDiedError,
    QueueFullError,
    TaskNotServedError,
    TooLargeError,
    UnavailableError,
)
from app.inference.contract import BackendInfo, BatchResult, Head, Part, Query, ServedModel
from app.observability.metrics import Metrics
from app.settings import Settings
from model import Encoding
from tests.app.waiting import until

PATIENCE = 30


def numbers_of(parts: Sequence[Part]) -> list[int]:
    """The inputs of a batch, which are numbers: each token of an input has it as its id."""
    return [encoding.ids[0] for query, start, stop in parts for encoding in query.encodings[start:stop]]


def result_of(parts: Sequence[Part], outputs: Sequence[object], seconds: float = 0.001) -> BatchResult:
    """Outputs for the inputs of a batch."""
    rest = iter(outputs)
    return BatchResult([list(islice(rest, part.inputs)) for part in parts], seconds)  # type: ignore[misc]


def opened() -> asyncio.Event:
    """An open gate."""
    gate = asyncio.Event()
    gate.set()
    return gate


@dataclass(eq=False)
class DoublingBackend:
    """Doubles numbers; a test may close its gate or make inputs fail."""

    info: BackendInfo = field(default_factory=lambda: BackendInfo("cpu", "float32", 1))
    batches: list[tuple[str, list[int]]] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=opened)
    entered: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    """Released each time a batch has arrived, before it waits at the gate."""
    fault: Callable[[list[int]], BaseException | None] = lambda _: None
    ended_processes: int = 0
    is_closed: bool = False
    computing_since: float | None = None

    @property
    def slots(self) -> int:
        return (self.info.processes - self.ended_processes) * self.info.in_flight

    async def load(self, on_death: Callable[[BackendDiedError], None], on_start: Callable[[], None]) -> None:
        self.on_death, self.on_start = on_death, on_start

    async def run(self, encoder: str, parts: Sequence[Part]) -> BatchResult:
        numbers = numbers_of(parts)
        self.batches.append((encoder, numbers))
        self.entered.release()
        await self.gate.wait()
        if self.is_closed:
            raise BackendDiedError("closed")
        if (error := self.fault(numbers)) is not None:
            try:
                raise error
            finally:
                del error  # its traceback holds this frame: a cycle
        return result_of(parts, [2 * number for number in numbers])

    def kill_hung(self, seconds: float) -> None:
        pass

    def process_seconds(self) -> dict[int, tuple[float, float]]:
        return {}

    async def aclose(self) -> None:
        self.is_closed = True
        self.gate.set()

    async def has_entered(self) -> None:
        """Wait until one more batch is at the gate."""
        async with asyncio.timeout(PATIENCE):
            await self.entered.acquire()


@pytest.fixture
def backend() -> DoublingBackend:
    return DoublingBackend()


@asynccontextmanager
async def running(
    backend: DoublingBackend,
    *,
    batch: int = 100,
    queue: int = 1000,
    on_failure: Callable[[Engine, BaseException], None] = lambda *_: None,
) -> AsyncIterator[Engine]:
    """An engine that has loaded. Of the time until a deadline, all may be spent in the queue."""
    policy = ThroughputPolicy(max_queue_fraction=1.0, uncalibrated_speed_factor=1.0)
    throughput = Throughput(policy, fixed_batch_tokens=batch)
    settings = Settings.model_validate({"max_queue_tokens": queue})
    engine = Engine(backend, settings, Metrics(), on_failure, throughput)
    await engine.load()
    try:
        yield engine
    finally:
        backend.gate.set()
        await engine.aclose(PATIENCE)


def numbers(*items: int, tokens: int = 10) -> Query:
    encodings = [Encoding(array("i", [item] * tokens), tokens, [], truncated=False) for item in items]
    return Query(encodings)


async def ask(engine: Engine, *items: int, tokens: int = 10, seconds: float = PATIENCE) -> list[Any]:
    async with asyncio.timeout(PATIENCE):  # a test that fails ends
        return await engine.compute(numbers(*items, tokens=tokens), "a", Deadline.after(seconds))


async def start(engine: Engine, *items: int, seconds: float = PATIENCE) -> asyncio.Task[list[Any]]:
    """Let a request enter the queue."""
    task = asyncio.create_task(ask(engine, *items, seconds=seconds))
    await asyncio.sleep(0)
    return task


async def held(engine: Engine, *items: int) -> asyncio.Task[list[Any]]:
    """Let a request enter a batch that ends when its backend's gate opens."""
    backend: Any = engine.backend
    backend.gate.clear()
    task = await start(engine, *items)
    await backend.has_entered()
    return task


def status_of(error: object) -> str:
    assert isinstance(error, UnavailableError)
    return error.status


async def test_engine_computes_in_the_order_of_the_inputs(backend: DoublingBackend) -> None:
    async with running(backend, batch=20) as engine:
        assert await ask(engine, 5, 1, 4, 2, 3) == [10, 2, 8, 4, 6]


async def test_engine_requests_that_arrive_together_share_the_first_batch(backend: DoublingBackend) -> None:
    async with running(backend) as engine:
        assert await asyncio.gather(*(ask(engine, i) for i in (1, 2, 3))) == [[2], [4], [6]]
    assert backend.batches == [("a", [1, 2, 3])]


async def test_engine_requests_that_arrive_during_a_batch_share_the_next(backend: DoublingBackend) -> None:
    async with running(backend) as engine:
        tasks = [await held(engine, 0)]
        tasks += [await start(engine, i) for i in (1, 2, 3)]
        backend.gate.set()
        assert await asyncio.gather(*tasks) == [[0], [2], [4], [6]]
    assert backend.batches == [("a", [0]), ("a", [1, 2, 3])]


# Loading --------------------------------------------------------------------------------------------------------


async def test_engine_that_has_not_loaded_refuses_requests(backend: DoublingBackend) -> None:
    engine = Engine(backend, Settings(), Metrics())
    with pytest.raises(UnavailableError):
        await ask(engine, 1)


@pytest.mark.parametrize(("given", "expected"), [(0, 1_560_000), (1000, 1000)], ids=["derived", "set"])
async def test_engine_load_derives_the_queue_from_the_speed_unless_it_is_set(
    backend: DoublingBackend, given: int, expected: int
) -> None:
    backend.info.tokens_per_second = 52_000
    settings = Settings.model_validate({"max_queue_tokens": given, "request_timeout_ms": 30_000})
    engine = Engine(backend, settings, Metrics())
    await engine.load()
    assert engine.admission.max_queue_tokens == expected
    assert engine.throughput.tokens_per_second == 52_000


async def test_engine_has_a_slot_for_each_batch_that_the_backend_takes(backend: DoublingBackend) -> None:
    backend.info.processes, backend.info.in_flight = 2, 2
    backend.gate.clear()
    async with running(backend) as engine:
        tasks = []
        for i in range(4):
            tasks.append(await start(engine, i))
            await backend.has_entered()
        tasks += [await start(engine, i) for i in (4, 5)]
        assert engine.queued_tokens == 20
        assert len(backend.batches) == 4
        backend.gate.set()
        assert await asyncio.gather(*tasks) == [[2 * i] for i in range(6)]
    assert backend.batches[4:] == [("a", [4, 5])]


async def test_engine_model_with_a_head_is_that_of_the_first_encoder_that_has_it(backend: DoublingBackend) -> None:
    config: Any = None
    models = {
        name: ServedModel(name, heads, config, config, 1, "00")
        for name, heads in (("b", (Head.WORDS,)), ("a", (Head.LABELS, Head.WORDS)))
    }
    backend.info.models = models
    async with running(backend) as engine:
        assert engine.model_with(Head.WORDS, "fill-mask") == ("b", models["b"])
        assert engine.model_with(Head.LABELS, "sentiment") == ("a", models["a"])
        with pytest.raises(TaskNotServedError, match="no head for next-sentence; GET /info"):
            engine.model_with(Head.NEXT_SENTENCE, "next-sentence")


# Failing inputs -------------------------------------------------------------------------------------------------


async def test_engine_only_the_failing_input_of_a_batch_gets_the_error(backend: DoublingBackend) -> None:
    backend.fault = lambda items: ValueError("13") if 13 in items else None
    async with running(backend) as engine:
        tasks = [await held(engine, 0)]
        tasks += [await start(engine, i) for i in (11, 12, 13, 14, 15)]
        backend.gate.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [r for r in results if isinstance(r, list)] == [[0], [22], [24], [28], [30]]
    assert isinstance(results[3], InferenceError)


async def test_engine_error_names_the_failing_input_of_its_request(backend: DoublingBackend) -> None:
    backend.fault = lambda items: ValueError() if 13 in items else None
    async with running(backend) as engine:
        with pytest.raises(InferenceError) as raised:
            await ask(engine, 11, 12, 13, 14)
    assert [loc for _, loc in raised.value.faults] == [("inputs", 2)]


async def test_engine_request_whose_input_fails_leaves_the_queue(backend: DoublingBackend) -> None:
    backend.fault = lambda items: ValueError() if 1 in items else None
    async with running(backend, batch=10) as engine:
        with pytest.raises(InferenceError):
            await ask(engine, 1, *range(2, 50))
        assert await ask(engine, 60) == [120]
        assert engine.queued_tokens == 0
    assert [items for _, items in backend.batches] == [[1], [60]]


async def test_engine_error_in_place_of_outputs_reaches_only_its_caller() -> None:
    class Picky(DoublingBackend):
        async def run(self, encoder: str, parts: Sequence[Part]) -> BatchResult:
            found = [
                InferenceError("odd", part.start) if item % 2 else [[item]]
                for part, item in zip(parts, numbers_of(parts), strict=True)
            ]
            return BatchResult(found, 0.001)

    async with running(Picky()) as engine:
        good, bad = await asyncio.gather(ask(engine, 2), ask(engine, 3), return_exceptions=True)
    assert good == [[2]]
    assert isinstance(bad, InferenceError)


async def test_engine_out_of_memory_splits_the_batch_and_lowers_the_limit(backend: DoublingBackend) -> None:
    backend.fault = lambda items: OutOfMemoryError() if len(items) > 2 else None
    async with running(backend) as engine:
        assert await ask(engine, 1, 2, 3, 4, 5, 6, 7, 8) == [2, 4, 6, 8, 10, 12, 14, 16]
        assert engine.throughput.batch_tokens <= 40
        tries = len(backend.batches)
        for _ in range(4):
            await ask(engine, 1, 2)
        assert len(backend.batches) == tries + 4
        assert engine.throughput.batch_tokens <= 40  # at any speed


async def test_engine_moment_without_memory_does_not_make_batches_tiny(backend: DoublingBackend) -> None:
    failures = iter([OutOfMemoryError() for _ in range(4)])  # 8, 4, 2 and 1 items; then memory is free again
    backend.fault = lambda _: next(failures, None)
    async with running(backend) as engine:
        first, second = await asyncio.gather(ask(engine, 1, 2, 3, 4), ask(engine, 5, 6, 7, 8), return_exceptions=True)
        assert isinstance(first, InferenceError)
        assert second == [10, 12, 14, 16]
        assert engine.throughput.batch_tokens == 40, "the second half had room as a whole"


async def test_engine_input_that_never_fits_fails_alone(backend: DoublingBackend) -> None:
    backend.fault = lambda items: OutOfMemoryError() if 1 in items else None
    async with running(backend) as engine:
        with pytest.raises(InferenceError):
            await ask(engine, 1)
        assert await ask(engine, 2) == [4]
        assert engine.throughput.batch_tokens == 100  # smaller batches would not help it


async def test_engine_failed_request_is_in_no_reference_cycle(
    backend: DoublingBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After gc.freeze() a cycle is never collected, and it would hold all texts of the request."""
    monkeypatch.setattr("app.batching.engine.logger.error", lambda *_, **__: None)  # pytest would keep its frames

    class Referable(Query):
        __slots__ = ("__weakref__",)

    async def fail() -> weakref.ref[Query]:
        query = Referable(numbers(1).encodings)
        try:
            await engine.compute(query, "a", Deadline.after(PATIENCE))
        except InferenceError:
            return weakref.ref(query)
        raise AssertionError

    backend.fault = lambda _: ValueError()
    async with running(backend) as engine:
        gc.disable()
        try:
            query = await fail()
            await until(lambda: not engine._tasks)
            assert query() is None
        finally:
            gc.enable()


# Requests that end early ----------------------------------------------------------------------------------------


async def test_engine_cancelled_request_is_never_computed(backend: DoublingBackend) -> None:
    async with running(backend) as engine:
        first = await held(engine, 0)
        second, third = await start(engine, 1), await start(engine, 2)
        second.cancel()
        await asyncio.wait([second])
        assert engine.queued_tokens == 10
        backend.gate.set()
        assert await first == [0]
        assert await third == [4]
    assert backend.batches == [("a", [0]), ("a", [2])]


async def test_engine_halves_no_batch_whose_requests_have_ended(backend: DoublingBackend) -> None:
    backend.fault = lambda _: OutOfMemoryError()
    async with running(backend) as engine:
        asked = await held(engine, *range(8))
        asked.cancel()
        await asyncio.wait([asked])
        backend.gate.set()
        await until(lambda: not engine._tasks)
    assert len(backend.batches) == 1


async def test_engine_expired_input_is_never_computed(backend: DoublingBackend, clock: Any) -> None:
    """Also in the moment before the request's own timeout withdraws it."""
    async with running(backend) as engine:
        first = await held(engine, 0)
        second = await start(engine, 1, seconds=5)
        clock.now += 6
        backend.gate.set()
        await first
        assert await ask(engine, 2) == [4]
        second.cancel()
    assert [items for _, items in backend.batches] == [[0], [2]]


async def test_engine_computes_nothing_of_requests_that_ended_while_no_process_ran(
    backend: DoublingBackend, clock: Any
) -> None:
    """Other requests share one batch as soon as a process has started."""
    async with running(backend) as engine:
        backend.ended_processes = 1
        left, late = await start(engine, 1), await start(engine, 2, seconds=5)
        others = [await start(engine, 3), await start(engine, 4)]
        assert engine.queued_tokens == 40
        left.cancel()
        await asyncio.wait([left])
        clock.now += 6
        backend.ended_processes = 0
        backend.on_start()
        assert await asyncio.gather(*others) == [[6], [8]]
        late.cancel()
    assert backend.batches == [("a", [3, 4])]


async def test_engine_starts_no_batch_in_place_of_a_process_that_has_ended(backend: DoublingBackend) -> None:
    backend.info.processes = 2
    async with running(backend) as engine:
        tasks = [await held(engine, 1)]
        backend.ended_processes = 1
        tasks.append(await start(engine, 2))
        await asyncio.sleep(0)
        assert len(backend.batches) == 1
        backend.ended_processes = 0
        backend.on_start()
        await backend.has_entered()
        backend.gate.set()
        assert await asyncio.gather(*tasks) == [[2], [4]]


# Admission ------------------------------------------------------------------------------------------------------


async def test_engine_refused_request_is_not_ahead_of_others(backend: DoublingBackend, clock: Any) -> None:
    async with running(backend, queue=50) as engine:
        first = await held(engine, 0)
        for _ in range(3):
            with pytest.raises(TooLargeError):
                await ask(engine, 1, tokens=51)
        engine.throughput.tokens_per_second = 1.0
        with pytest.raises(QueueFullError):
            await ask(engine, 1, seconds=19)
        second = await start(engine, 1, seconds=20)  # only the first is ahead
        backend.gate.set()
        assert await asyncio.gather(first, second) == [[0], [2]]


# Batches --------------------------------------------------------------------------------------------------------


async def test_engine_free_processes_share_what_waits(backend: DoublingBackend) -> None:
    backend.info.processes = 2
    async with running(backend, batch=10_000) as engine:
        backend.gate.clear()
        asked = await start(engine, *range(100))
        for _ in range(2):
            await backend.has_entered()
        assert [len(items) for _, items in backend.batches] == [50, 50]
        backend.gate.set()
        assert await asked == [2 * i for i in range(100)]


async def test_engine_does_not_split_what_is_small(backend: DoublingBackend) -> None:
    backend.info.processes = 2
    async with running(backend, batch=10_000) as engine:
        await ask(engine, *range(25))
        assert [len(items) for _, items in backend.batches] == [25]


async def test_engine_records_how_many_batches_ran_together(
    backend: DoublingBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded: list[int] = []
    backend.info.processes = 2
    async with running(backend) as engine:
        monkeypatch.setattr(engine.throughput, "record_batch", lambda *given: recorded.append(given[2]))
        asked = [await held(engine, 1)]
        asked.append(await start(engine, 2))
        await backend.has_entered()
        backend.gate.set()
        await asyncio.gather(*asked)
    assert recorded == [2, 2]


async def test_engine_batch_that_fails_says_nothing_of_speed(backend: DoublingBackend) -> None:
    backend.fault = lambda items: ValueError() if 1 in items else None
    async with running(backend, batch=20) as engine:
        engine.throughput.set(1.0, 1, 1000)
        with pytest.raises(InferenceError):
            await ask(engine, 1, 2)
        assert engine.throughput.tokens_per_second == 1.0


async def test_engine_tells_how_much_waits(backend: DoublingBackend) -> None:
    async with running(backend) as engine:
        backend.gate.clear()
        assert (engine.unanswered_requests, engine.queued_tokens) == (0, 0)
        first = await start(engine, 1)
        assert (engine.unanswered_requests, engine.queued_tokens) == (1, 10)
        await backend.has_entered()
        assert (engine.unanswered_requests, engine.queued_tokens) == (1, 0)
        backend.gate.set()
        await first
        assert (engine.unanswered_requests, engine.queued_tokens) == (0, 0)


# The end --------------------------------------------------------------------------------------------------------


async def test_engine_dead_backend_fails_its_requests(backend: DoublingBackend) -> None:
    death = BackendDiedError()
    told: list[tuple[Engine, BaseException]] = []
    async with running(backend, batch=10, on_failure=lambda *given: told.append(given)) as engine:
        tasks = [await held(engine, 0)]
        tasks += [await start(engine, i, i) for i in (1, 2)]
        backend.fault = lambda _: death
        backend.gate.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [status_of(result) for result in results] == ["broken"] * 3
        assert told == [(engine, death)]
        assert engine.error is death
        assert engine.queued_tokens == 0
        with pytest.raises(UnavailableError, match="broken"):
            await ask(engine, 3)


async def test_engine_backend_that_dies_while_it_is_idle_is_told_once(backend: DoublingBackend) -> None:
    told: list[BaseException] = []
    async with running(backend, on_failure=lambda _, error: told.append(error)) as engine:
        deaths = [BackendDiedError("first"), BackendDiedError("second")]
        for death in deaths:
            backend.on_death(death)
        assert told == [engine.error] == deaths[:1]
        with pytest.raises(UnavailableError, match="broken"):
            await ask(engine, 1)
    assert backend.batches == []


async def test_engine_dead_process_fails_its_batch_and_what_waits_goes_on(backend: DoublingBackend) -> None:
    async with running(backend, batch=20) as engine:
        tasks = [await held(engine, 0, 1)]
        tasks.append(await start(engine, 2))
        backend.fault = lambda items: ProcessDiedError() if 0 in items else None
        backend.gate.set()
        failed, computed = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(failed, ProcessDiedError)
        assert failed.faults == []  # any of its inputs may be the reason
        assert computed == [4]
        assert engine.error is None
    assert [items for _, items in backend.batches] == [[0, 1], [2]]  # halves would end further processes


async def test_engine_failure_is_told_before_its_requests_fail(backend: DoublingBackend) -> None:
    order: list[str] = []
    backend.fault = lambda _: BackendDiedError()
    async with running(backend, on_failure=lambda *_: order.append("health")) as engine:
        asked = await held(engine, 1)
        asked.add_done_callback(lambda _: order.append("request"))
        backend.gate.set()
        await asyncio.wait([asked])
    assert order == ["health", "request"]


async def test_engine_dead_backend_fails_requests_of_a_batch_that_still_runs() -> None:
    hold = asyncio.Event()

    class Two(DoublingBackend):
        async def run(self, encoder: str, parts: Sequence[Part]) -> BatchResult:
            items = numbers_of(parts)
            self.entered.release()
            if items == [1]:
                await hold.wait()
                return result_of(parts, [2])
            await self.gate.wait()
            raise BackendDiedError

    two = Two()
    two.gate.clear()
    two.info.processes = 2
    async with running(two) as engine:
        asked = []
        for number in (1, 2):
            asked.append(await start(engine, number))
            await two.has_entered()
        two.gate.set()
        results = await asyncio.gather(*asked, return_exceptions=True)  # while one is still computed
        assert [status_of(result) for result in results] == ["broken"] * 2
        hold.set()


async def test_engine_error_of_its_own_fails_the_requests_instead_of_leaving_them() -> None:
    class Forgetful(DoublingBackend):
        async def run(self, encoder: str, parts: Sequence[Part]) -> BatchResult:
            return BatchResult([], 0.0)

    async with running(Forgetful()) as engine:
        with pytest.raises(UnavailableError):
            await ask(engine, 1)
        assert isinstance(engine.error, ValueError)


async def test_engine_closing_answers_what_runs_and_fails_what_waits(backend: DoublingBackend) -> None:
    async with running(backend, batch=10) as engine:
        tasks = [await held(engine, 0)]
        tasks.append(await start(engine, 1))
        closing = asyncio.create_task(engine.aclose(PATIENCE))
        await asyncio.sleep(0)
        with pytest.raises(UnavailableError, match="stopped"):
            await ask(engine, 2)
        assert not backend.is_closed
        backend.gate.set()
        await closing
        first, second = await asyncio.gather(*tasks, return_exceptions=True)
    assert first == [0]
    assert status_of(second) == "stopped"
    assert backend.is_closed
    assert len(backend.batches) == 1


async def test_engine_closing_without_grace_ends_what_runs(backend: DoublingBackend) -> None:
    told: list[object] = []
    async with running(backend, on_failure=lambda *given: told.append(given)) as engine:
        asked = await held(engine, 0)
        await engine.aclose()
        assert (engine.is_closed, backend.is_closed) == (True, True)
        (error,) = await asyncio.gather(asked, return_exceptions=True)
        assert status_of(error) == "stopped"
        backend.on_death(BackendDiedError())
    assert told == []  # the end of its batch was expected


# Replaced engines -----------------------------------------------------------------------------------------------


async def test_engine_replaced_answers_its_own_requests_in_its_own_slots() -> None:
    old, new = DoublingBackend(), DoublingBackend()
    async with running(old, batch=10) as replaced, running(new) as engine:
        first = await held(replaced, 1)
        left, last = await start(replaced, 2), await start(replaced, 3)
        replaced.replace()
        assert await ask(engine, 4) == [8]  # while all slots of the other are taken
        left.cancel()
        old.gate.set()
        assert await asyncio.gather(first, last) == [[2], [6]]
        assert [items for _, items in old.batches] == [[1], [3]]
        assert [items for _, items in new.batches] == [[4]]
        await until(lambda: old.is_closed)
        assert not new.is_closed


async def test_engine_replaced_without_requests_closes_at_once_and_tells_it(backend: DoublingBackend) -> None:
    async with running(backend) as engine:
        assert await ask(engine, 1) == [2]
        closed: list[Engine] = []
        engine.replace(closed.append)
        assert engine.is_closed
        await until(lambda: closed)
        assert backend.is_closed
        assert closed == [engine]


async def test_engine_replaced_computes_a_request_that_was_being_tokenized(backend: DoublingBackend) -> None:
    async with running(backend) as engine:
        with engine.tokenizing([60]):
            engine.replace()
            await asyncio.sleep(0)
        assert await ask(engine, 1) == [2]
        await until(lambda: engine.is_closed and backend.is_closed)


@pytest.mark.parametrize("told_first", [False, True], ids=["its batch fails", "the backend tells its death"])
async def test_engine_replaced_whose_backend_dies_gives_its_requests_503_reloading(
    backend: DoublingBackend, told_first: bool
) -> None:
    told: list[object] = []
    async with running(backend, batch=10, on_failure=lambda *given: told.append(given)) as engine:
        computed = await held(engine, 1)
        waiting = await start(engine, 2)
        engine.replace()
        death = BackendDiedError("killed")
        backend.fault = lambda _: death
        if told_first:
            backend.on_death(death)
        backend.gate.set()
        failures = await asyncio.gather(computed, waiting, return_exceptions=True)
        assert [status_of(error) for error in failures] == ["reloading"] * 2
        assert [getattr(error, "retry_after", 0) for error in failures] == [1, 1]
        await until(lambda: backend.is_closed)
    assert told == [(engine, death)]
