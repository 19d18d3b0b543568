"""Admission, tokenization and shaping, with a fake backend."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from pydantic_core import to_json

from app.errors import (
    BackendDiedError,
    DeadlineExceededError,
    InferenceError,
    InvalidInputError,
    ProcessDiedError,
    QueueFullError,
    TaskNotServedError,
    TooLargeError,
    UnavailableError,
)
from app.inference.types import Kind, Task
from app.observability.metrics import Metrics
from app.scheduling.deadline import Deadline
from app.scheduling.engine import Engine, EnginePolicy
from app.scheduling.lifecycle import Lifecycle, State
from app.scheduling.tokenization import TextPair
from app.settings import Settings
from model.errors import EmptyTextError, NoMaskError, TextTooLongError, UnknownTargetError
from model.tokenizer import Encoding
from tests.app.waiting import until

PATIENCE = 30


def engine_of(make_backend: Callable[[], Any], policy: EnginePolicy | None = None, **given: object) -> Engine:
    settings, metrics = Settings.model_validate(given), Metrics()
    return Engine(Lifecycle(make_backend, settings, metrics), metrics, policy or EnginePolicy())


@asynccontextmanager
async def running(backend: Any, policy: EnginePolicy | None = None, **settings: object) -> AsyncIterator[Engine]:
    engine = engine_of(lambda: backend, policy, **settings)
    engine.lifecycle.start()
    try:
        async with asyncio.timeout(PATIENCE):
            await engine.lifecycle.startup_finished.wait()
        yield engine
    finally:
        backend.gate.set()
        await engine.close()


async def queued(engine: Engine, requests: int) -> None:
    """Wait until so many requests are accepted and unanswered."""
    async with asyncio.timeout(PATIENCE):
        while engine.scheduler.unanswered_requests < requests:  # noqa: ASYNC110 (an event only for tests)
            await asyncio.sleep(0.002)


def soon() -> Deadline:
    return Deadline.after(PATIENCE)


async def test_tasks_of_one_encoder_share_a_forward_pass(backend: Any) -> None:
    async with running(backend) as engine:
        backend.gate.clear()
        first = asyncio.create_task(engine.fill_mask(["a [MASK]"], deadline=soon()))
        await backend.has_entered()
        others = [
            asyncio.create_task(engine.fill_mask(["the [MASK]", "[MASK] is"], deadline=soon())),
            asyncio.create_task(
                engine.labels(Task.NEXT_SENTENCE, [TextPair(text="a", text_pair="b")], deadline=soon())
            ),
            asyncio.create_task(engine.labels(Task.SENTIMENT, ["good"], deadline=soon())),
        ]
        await queued(engine, 4)
        backend.gate.set()
        await asyncio.gather(first, *others)
    assert len(backend.batches) == 3
    kinds = [[asked.kind for asked in batch] for batch in backend.batches]
    assert sorted(kinds[1:], key=len) == [[Kind.PROBABILITIES], [Kind.WORDS, Kind.PROBABILITIES, Kind.WORDS]]


async def test_results_keep_the_order_of_the_inputs(backend: Any) -> None:
    texts = ["[MASK] a", "b [MASK] c", "d e [MASK] f"]
    async with running(backend, max_batch_tokens=1) as engine:
        reply = await engine.fill_mask(texts, deadline=soon(), top_k=1)
    assert [result["masks"][0]["position"] for result in reply.results] == [1, 2, 3]
    assert reply.model == "fake-pretrained"


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        ("", {}, EmptyTextError),
        ("a film", {}, NoMaskError),
        ("[MASK] " * 100, {}, TextTooLongError),
        ("a " * 100 + "[MASK]", {"truncate": True}, NoMaskError),
    ],
)
async def test_text_without_an_answer_is_named(
    backend: Any, text: str, options: dict[str, bool], expected: type[Exception]
) -> None:
    async with running(backend) as engine:
        with pytest.raises(InvalidInputError) as raised:
            await engine.fill_mask(["[MASK]", text], deadline=soon(), **options)
    ((error, loc),) = raised.value.faults
    assert loc == ("inputs", 1)
    assert isinstance(error, expected)
    assert backend.batches == []


async def test_unknown_target_is_named(backend: Any) -> None:
    async with running(backend) as engine:
        with pytest.raises(InvalidInputError, match="xyzzy") as raised:
            await engine.fill_mask(["[MASK]"], deadline=soon(), targets=["good", "xyzzy"])
    ((error, loc),) = raised.value.faults
    assert loc == ("parameters", "targets", 1)
    assert isinstance(error, UnknownTargetError)


@pytest.mark.parametrize("characters", [1, 10_000], ids=["on the event loop", "in a thread"])
async def test_texts_without_an_answer_are_all_named(backend: Any, characters: int) -> None:
    texts = ["", "[MASK] " + " " * characters, "a film", "a " * 100 + "[MASK]"]
    async with running(backend) as engine:
        with pytest.raises(InvalidInputError) as raised:
            await engine.fill_mask(texts, deadline=soon())
    found = [(type(error), loc) for error, loc in raised.value.faults]
    assert found == [(EmptyTextError, ("inputs", 0)), (NoMaskError, ("inputs", 2)), (TextTooLongError, ("inputs", 3))]
    assert str(raised.value) == "the text is empty"
    assert backend.batches == []


async def test_tokenization_ends_after_a_hundred_texts_without_an_answer(backend: Any) -> None:
    tokenizer, encoded = backend.models["sentiment"].tokenizer, []

    class Counting:
        def encode(self, text: str, *others: Any, **options: Any) -> Encoding:
            encoded.append(text)
            return tokenizer.encode(text, *others, **options)

    backend.models["sentiment"] = replace(backend.models["sentiment"], tokenizer=Counting())
    async with running(backend) as engine:
        with pytest.raises(InvalidInputError) as raised:
            await engine.labels(Task.SENTIMENT, [""] * 300, deadline=soon())
    assert [loc for _, loc in raised.value.faults] == [("inputs", i) for i in range(100)]
    assert len(encoded) == 100


@pytest.mark.parametrize(("top_k", "expected"), [(None, 6), (2, 2), (50, 6)])
async def test_targets_are_all_answered_unless_top_k_says_less(backend: Any, top_k: int | None, expected: int) -> None:
    words = ["good", "bad", "great", "boring", "film", "movie"]
    async with running(backend) as engine:
        reply = await engine.fill_mask(["[MASK]"], deadline=soon(), targets=words, top_k=top_k)
    assert len(reply.results[0]["masks"][0]["predictions"]) == expected


async def test_answer_is_no_larger_than_its_targets(backend: Any) -> None:
    texts = ["[MASK]" + " " * 600] * 512  # with 100 predictions each, too much
    async with running(backend) as engine:
        reply = await engine.fill_mask(texts, deadline=soon(), targets=["good", "bad"], top_k=100)
        with pytest.raises(TooLargeError):
            await engine.fill_mask(texts, deadline=soon(), top_k=100)
    assert [len(result["masks"][0]["predictions"]) for result in reply.results] == [2] * 512


async def test_targets_that_are_one_token_count_once(backend: Any) -> None:
    async with running(backend) as engine:
        reply = await engine.fill_mask(["[MASK]"], deadline=soon(), targets=["good", "Good", "GOOD", "bad"])
    assert [p["token_str"] for p in reply.results[0]["masks"][0]["predictions"]] == ["good", "bad"]


async def test_long_texts_are_tokenized_like_short_ones(backend: Any) -> None:
    text = "a " * 5000 + "."
    async with running(backend) as engine:
        reply = await engine.labels(Task.SENTIMENT, [text, "a"], deadline=soon(), truncate=True)
        assert engine.scheduler.reserved_tokens == 0
    assert [(result["tokens"], result["truncated"]) for result in reply.results] == [(64, True), (3, False)]


async def test_room_is_held_while_a_text_is_tokenized(backend: Any) -> None:
    async with running(backend, max_queue_tokens=100) as engine:
        with engine.scheduler.reserve([99], soon()), pytest.raises(QueueFullError):
            await engine.labels(Task.SENTIMENT, ["a " * 5000], deadline=soon(), truncate=True)
        await engine.labels(Task.SENTIMENT, ["a " * 5000], deadline=soon(), truncate=True)


async def test_deadline_bounds_the_wait_for_the_tokenizer_too(backend: Any) -> None:
    held = threading.Event()
    async with running(backend) as engine:
        busy = [engine._threads.submit(held.wait, PATIENCE) for _ in range(2)]
        with pytest.raises(DeadlineExceededError):
            await engine.labels(Task.SENTIMENT, ["a " * 5000], deadline=Deadline.after(0.05), truncate=True)
        assert engine.scheduler.reserved_tokens == 0
        held.set()
        assert all(work.result() for work in busy)
    assert backend.batches == []
    assert "bert_requests_expired_total 1.0" in engine._metrics.render().decode()


async def test_long_text_is_not_taken_for_many_when_bulk_waits(backend: Any) -> None:
    """Its turn comes after one input of the bulk request; what its bytes may be at worst is not its fault."""
    async with running(backend) as engine:
        backend.gate.clear()
        bulk = asyncio.create_task(engine.labels(Task.SENTIMENT, ["a " * 50] * 300, deadline=soon()))
        await queued(engine, 1)
        engine.scheduler.throughput.set(1000.0, 1, 16_384)
        engine.check_backlog(40_000, Deadline.after(5))
        with pytest.raises(QueueFullError):
            engine.scheduler.check_capacity(512, 300, Deadline.after(5))
        backend.gate.set()
        await bulk


async def test_texts_are_not_tokenized_after_the_deadline(backend: Any) -> None:
    """The check is between the texts of a request."""
    tokenizer, held, tokenized = backend.models["sentiment"].tokenizer, threading.Event(), []

    class Held:
        def encode(self, *texts: str, **options: Any) -> Encoding:
            held.wait(PATIENCE)
            tokenized.append(texts)
            return tokenizer.encode(*texts, **options)

    backend.models["sentiment"] = replace(backend.models["sentiment"], tokenizer=Held())
    async with running(backend) as engine:
        with pytest.raises(DeadlineExceededError):
            await engine.labels(Task.SENTIMENT, ["a " * 5000] * 3, deadline=Deadline.after(0.1), truncate=True)
        held.set()
        engine._threads.shutdown(wait=True)
    assert len(tokenized) == 1


async def test_deadline_bounds_the_making_of_a_large_answer(backend: Any) -> None:
    held = threading.Event()
    async with running(backend) as engine:
        busy = [engine._threads.submit(held.wait, PATIENCE) for _ in range(2)]
        with pytest.raises(DeadlineExceededError):
            await engine.fill_mask(["[MASK]"] * 40, deadline=Deadline.after(0.5), top_k=50)
        held.set()
        assert all(work.result() for work in busy)
    assert len(backend.batches) == 1


async def test_many_predictions_are_put_together_in_the_order_of_the_inputs(backend: Any) -> None:
    texts = [f"{'a ' * i}[MASK]" for i in range(40)]
    async with running(backend) as engine:
        reply = await engine.fill_mask(texts, deadline=soon(), top_k=50)
    assert [result["masks"][0]["position"] for result in reply.results] == list(range(1, 41))
    assert all(len(result["masks"][0]["predictions"]) == 50 for result in reply.results)


async def test_answer_beyond_all_measure_is_refused_before_compute(backend: Any) -> None:
    async with running(backend, EnginePolicy(max_answer_bytes=1000)) as engine:
        with pytest.raises(TooLargeError, match="top_k"):
            await engine.fill_mask(["[MASK] " * 20], deadline=soon(), top_k=10)
    assert backend.batches == []


async def test_answer_of_very_many_labels_is_refused_or_made_in_a_thread(backend: Any) -> None:
    async with running(backend, EnginePolicy(max_answer_bytes=1000, inline_answer_bytes=500)) as engine:
        ask = partial(engine.labels, Task.SENTIMENT, deadline=soon())
        with pytest.raises(TooLargeError, match="top_k"):
            await ask(["a"] * 6)
        assert backend.batches == []
        assert (await ask(["a"] * 6, top_k=1)).is_large
        assert not (await ask(["a"])).is_large


@pytest.mark.parametrize("character", ["\u0001", "\U0001f600", "é"])
async def test_answer_is_measured_as_it_will_be_written(backend: Any, character: str) -> None:
    """JSON writes six bytes for a control character, which the model does not even read."""
    async with running(backend, EnginePolicy(max_answer_bytes=10_000)) as engine:
        with pytest.raises(TooLargeError, match="shorter texts"):
            await engine.fill_mask(["[MASK] " + character * 1000], deadline=soon(), top_k=10)
        reply = await engine.fill_mask(["[MASK] " + "a" * 800], deadline=soon(), top_k=10)
    assert len(to_json(reply.results)) < 10_000


async def test_task_without_a_head_is_not_served(backend: Any) -> None:
    del backend.models["sentiment"]
    async with running(backend) as engine:
        with pytest.raises(TaskNotServedError, match="sentiment"):
            await engine.labels(Task.SENTIMENT, ["a"], deadline=soon())


async def test_passed_deadline_is_an_error(backend: Any) -> None:
    async with running(backend) as engine:
        with pytest.raises(DeadlineExceededError):
            await engine.labels(Task.SENTIMENT, ["a"], deadline=Deadline.after(-1))


async def test_one_bad_input_does_not_fail_the_neighbours(backend: Any) -> None:
    async with running(backend) as engine:
        backend.gate.clear()
        first = asyncio.create_task(engine.labels(Task.SENTIMENT, ["a"], deadline=soon()))
        await backend.has_entered()
        tasks = [
            asyncio.create_task(engine.labels(Task.SENTIMENT, [text], deadline=soon()))
            for text in ("good", "a a a", "bad")
        ]
        await queued(engine, 4)
        backend.fault = lambda asked: ValueError() if len(asked.encoding) == 5 else None
        backend.gate.set()
        await first
        good, guilty, bad = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(guilty, InferenceError)
    assert not isinstance(good, BaseException)
    assert not isinstance(bad, BaseException)


async def test_status_follows_the_life_of_the_service(backend: Any) -> None:
    backend.may_load.clear()
    engine = engine_of(lambda: backend)
    engine.lifecycle.start()
    assert engine.lifecycle.status == "loading"
    with pytest.raises(UnavailableError, match="loading"):
        await engine.labels(Task.SENTIMENT, ["a"], deadline=soon())
    backend.may_load.set()
    async with asyncio.timeout(PATIENCE):
        await engine.lifecycle.startup_finished.wait()
    assert engine.lifecycle.status == "ready"
    engine.lifecycle.advance(State.DRAINING)
    assert engine.lifecycle.status == "draining"
    engine.lifecycle.check_open()  # its bytes may have been here before the signal
    engine.lifecycle.advance(State.REFUSING)
    with pytest.raises(UnavailableError, match="draining"):
        engine.lifecycle.check_open()
    await engine.labels(Task.SENTIMENT, ["a"], deadline=soon())  # it came in before, and its body only now
    await engine.close()


async def test_what_waits_during_a_reload_is_computed_by_the_model_it_was_tokenized_for(backend: Any) -> None:
    fresh = replace(backend, models=dict(backend.models), batches=[], gate=threading.Event())
    fresh.models["sentiment"] = replace(backend.models["sentiment"], name="fresh-sentiment")
    engine = await started([backend, fresh])
    backend.gate.clear()
    first = asyncio.create_task(engine.labels(Task.SENTIMENT, ["a"], deadline=soon()))
    await backend.has_entered()
    second = asyncio.create_task(engine.labels(Task.SENTIMENT, ["a film"], deadline=soon()))
    await queued(engine, 2)
    assert await engine.lifecycle.reload()
    third = asyncio.create_task(engine.labels(Task.SENTIMENT, ["a good film"], deadline=soon()))
    await queued(engine, 3)
    backend.gate.set()
    fresh.gate.set()
    replies = [(await task).model for task in (first, second, third)]
    await engine.close()
    assert replies == ["fake-sentiment", "fake-sentiment", "fresh-sentiment"]
    assert [len(batch[0].encoding) for batch in backend.batches] == [3, 4]
    assert [len(batch[0].encoding) for batch in fresh.batches] == [5]


async def started(backends: Iterable[Any], **settings: object) -> Engine:
    """An engine that loads one backend after the other."""
    made = iter(backends)
    engine = engine_of(lambda: next(made), **settings)
    engine.lifecycle.start()
    async with asyncio.timeout(PATIENCE):
        await engine.lifecycle.startup_finished.wait()
    return engine


async def test_reload_while_draining_is_refused(backend: Any) -> None:
    engine = await started([backend, fresh := replace(backend, batches=[])])
    engine.lifecycle.advance(State.REFUSING)
    assert not await engine.lifecycle.reload()
    assert fresh.closed
    await engine.close()


async def test_replaced_backend_is_closed_when_its_last_request_is_answered(backend: Any) -> None:
    engine = await started([backend, replace(backend, batches=[], gate=threading.Event())])
    backend.gate.clear()
    asked = asyncio.create_task(engine.labels(Task.SENTIMENT, ["a"], deadline=soon()))
    await backend.has_entered()
    assert await engine.lifecycle.reload()
    await asyncio.sleep(0.02)
    assert not backend.closed
    backend.gate.set()
    assert (await asked).results
    await until(lambda: backend.closed)
    await engine.close()


async def test_replaced_backend_without_requests_is_closed_at_once(backend: Any) -> None:
    engine = await started([backend, replace(backend, batches=[])])
    assert await engine.lifecycle.reload()
    await until(lambda: backend.closed)
    await engine.close()


async def test_replaced_backend_that_dies_fails_only_its_own_requests_repeatably(backend: Any) -> None:
    engine = await started([backend, replace(backend, batches=[])])
    backend.fault = lambda _: BackendDiedError("killed")
    backend.gate.clear()
    stranded = asyncio.create_task(engine.labels(Task.SENTIMENT, ["a"], deadline=soon()))
    await backend.has_entered()
    assert await engine.lifecycle.reload()
    backend.on_death(BackendDiedError("killed"))
    backend.gate.set()
    with pytest.raises(UnavailableError, match="reloading") as raised:
        await stranded
    assert raised.value.retry_after
    assert engine.lifecycle.status == "ready"
    assert (await engine.labels(Task.SENTIMENT, ["a"], deadline=soon())).results
    await engine.close()


async def test_replaced_backend_that_hangs_is_killed_when_its_requests_have_expired(
    backend: Any, caplog: pytest.LogCaptureFixture
) -> None:
    fresh = replace(backend, batches=[], gate=threading.Event())
    fresh.gate.set()
    engine = await started([backend, fresh])
    backend.gate.clear()
    asked = asyncio.create_task(engine.labels(Task.SENTIMENT, ["a"], deadline=Deadline.after(0.2)))
    await backend.has_entered()
    assert await engine.lifecycle.reload()
    assert (await asyncio.gather(asked, return_exceptions=True))[0].__class__ is DeadlineExceededError
    await until(lambda: backend.closed)
    assert (await engine.labels(Task.SENTIMENT, ["a"], deadline=soon())).results  # the hung batch's place is free again
    assert engine.lifecycle.status == "ready"
    await until(lambda: not engine.scheduler._tasks)
    assert "before it had answered" not in caplog.text  # its end was expected
    await engine.close()


async def test_reload_that_does_not_end_is_given_up(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.scheduling.lifecycle.MAX_RELOAD_SECONDS", 0.1)
    engine = await started([backend, hanging := replace(backend, batches=[], may_load=threading.Event())])
    assert not await engine.lifecycle.reload()
    assert hanging.closed
    assert (await engine.labels(Task.SENTIMENT, ["a"], deadline=soon())).results
    await engine.close()


async def test_process_of_a_batch_that_hangs_is_killed_and_the_service_goes_on(
    backend: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("app.scheduling.lifecycle.MIN_STALL_SECONDS", 0.1)
    caplog.set_level(logging.INFO)
    engine = await started([backend], request_timeout_ms=100)
    backend.gate.clear()
    asked = asyncio.create_task(engine.labels(Task.SENTIMENT, ["a"], deadline=Deadline.after(0.1)))
    await backend.has_entered()
    waiting = asyncio.create_task(engine.labels(Task.SENTIMENT, ["b"], deadline=soon()))
    await until(lambda: "batch timed out; killing its inference process" in caplog.messages)
    assert isinstance((await asyncio.gather(asked, return_exceptions=True))[0], DeadlineExceededError)
    await backend.has_entered()
    backend.gate.set()
    assert (await waiting).results
    await until(lambda: engine.lifecycle.status == "ready")
    await until(lambda: "no longer stalled" in caplog.messages)
    assert not backend.closed
    await engine.close()


async def test_service_whose_hung_process_cannot_be_killed_is_broken(
    backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.scheduling.lifecycle.MIN_STALL_SECONDS", 0.1)
    monkeypatch.setattr("app.scheduling.lifecycle.KILL_GRACE_SECONDS", 0.2)
    monkeypatch.setattr(type(backend), "kill_hung", lambda *_: None)
    engine = await started([backend], request_timeout_ms=100)
    backend.gate.clear()
    asked = asyncio.create_task(engine.labels(Task.SENTIMENT, ["a"], deadline=Deadline.after(0.1)))
    await until(lambda: engine.lifecycle.status == "broken")
    assert "cannot be killed" in str(engine.lifecycle.failure)
    await asyncio.gather(asked, return_exceptions=True)
    await engine.close()


async def test_stalled_time_in_which_this_process_was_stopped_does_not_count(
    backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.scheduling.lifecycle.WATCH_SECONDS", 3600)
    engine = await started([backend])
    backend.gate.clear()
    asked = asyncio.create_task(engine.labels(Task.SENTIMENT, ["a"], deadline=soon()))
    await backend.has_entered()
    lifecycle = engine.lifecycle
    lifecycle._stall_seconds = 0.05
    await until(lambda: lifecycle.status == "stalled")
    lifecycle._last_look -= 3600
    lifecycle.track_stall()
    assert lifecycle._stalled_for == 1
    backend.gate.set()
    await asked
    await engine.close()


async def test_backend_that_dies_while_no_request_is_there_breaks_the_service(backend: Any) -> None:
    async with running(backend) as engine:
        backend.on_death(BackendDiedError("killed"))
        assert engine.lifecycle.status == "broken"
        assert engine.lifecycle.status == "broken"
        with pytest.raises(UnavailableError, match="broken"):
            await engine.labels(Task.SENTIMENT, ["a"], deadline=soon())


async def test_backend_that_dies_during_a_batch_breaks_the_service(backend: Any) -> None:
    async with running(backend) as engine:
        backend.fault = lambda _: BackendDiedError("killed")
        with pytest.raises(UnavailableError, match="broken"):
            await engine.labels(Task.SENTIMENT, ["a"], deadline=soon())
        assert engine.lifecycle.status == "broken"


async def test_process_that_dies_fails_its_batch_only(backend: Any) -> None:
    async with running(backend) as engine:
        backend.fault = lambda asked: ProcessDiedError() if len(asked.encoding) > 3 else None
        with pytest.raises(ProcessDiedError, match="one by one"):
            await engine.labels(Task.SENTIMENT, ["a", "a film"], deadline=soon())
        assert (await engine.labels(Task.SENTIMENT, ["a"], deadline=soon())).results
        assert engine.lifecycle.status == "ready"
        assert len(backend.batches) == 2  # halves of the batch that failed would end further processes


async def test_status_is_loading_while_no_process_runs(backend: Any) -> None:
    async with running(backend) as engine:
        backend.is_ready = False
        assert engine.lifecycle.status == "loading"
        assert (await engine.labels(Task.SENTIMENT, ["a"], deadline=soon())).results  # it waits for a process


async def test_failed_load_breaks_the_service(backend: Any) -> None:
    backend.load_error = ValueError("no weights")
    engine = await started([backend])
    assert engine.lifecycle.status == "broken"
    assert engine.lifecycle.failure is backend.load_error
    assert not engine.lifecycle.has_loaded
    await engine.close()


async def test_closed_service_that_is_broken_says_so(backend: Any) -> None:
    backend.load_error = ValueError("no weights")
    engine = await started([backend])
    await engine.close()
    assert engine.lifecycle.status == "broken"


async def test_closing_while_loading_ends_the_load(backend: Any) -> None:
    backend.may_load.clear()
    engine = engine_of(lambda: backend)
    engine.lifecycle.start()
    await asyncio.sleep(0.01)
    await engine.close()
    assert backend.closed
    assert engine.lifecycle.failure is None


async def test_reload_frees_a_service_whose_backend_hangs(
    backend: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr("app.scheduling.lifecycle.MIN_STALL_SECONDS", 0.1)
    monkeypatch.setattr("app.scheduling.lifecycle.WATCH_SECONDS", 3600)  # nothing else kills it before the reload
    fresh = replace(backend, batches=[], gate=threading.Event())
    fresh.gate.set()
    engine = await started([backend, fresh], request_timeout_ms=100)
    backend.gate.clear()
    hanging = asyncio.create_task(engine.labels(Task.SENTIMENT, ["a"], deadline=soon()))
    await backend.has_entered()
    await until(lambda: engine.lifecycle.status == "stalled")
    engine.lifecycle.track_stall()
    assert engine.lifecycle.is_hung
    assert await engine.lifecycle.reload()
    assert engine.lifecycle.status == "ready"
    assert backend.closed
    assert (await engine.labels(Task.SENTIMENT, ["a"], deadline=soon())).results
    with pytest.raises(UnavailableError, match="reloading"):
        await hanging
    engine.lifecycle.track_stall()
    assert not engine.lifecycle.is_hung
    assert caplog.messages[-1] == "no longer stalled"
    await engine.close()


async def test_reload_uses_the_new_processes_while_the_old_ones_compute(backend: Any) -> None:
    fresh = replace(backend, batches=[], gate=threading.Event())
    fresh.gate.set()
    engine = await started([backend, fresh])
    backend.gate.clear()
    slow = asyncio.create_task(engine.labels(Task.SENTIMENT, ["a"], deadline=soon()))
    await backend.has_entered()
    assert await engine.lifecycle.reload()
    assert (await engine.labels(Task.SENTIMENT, ["a"], deadline=soon())).results
    assert not slow.done()
    backend.gate.set()
    assert (await slow).results
    await engine.close()


async def test_reload_whose_load_raises_anything_leaves_the_service_as_it_is(backend: Any) -> None:
    broken = replace(backend, batches=[], load_error=TimeoutError("of the file system"))
    engine = await started([backend, broken])
    assert not await engine.lifecycle.reload()
    assert (await engine.labels(Task.SENTIMENT, ["a"], deadline=soon())).results
    await engine.close()


async def test_request_that_ends_in_the_queue_is_counted_once(backend: Any) -> None:
    """As cancelled if its caller left, as expired if its deadline passed."""
    async with running(backend) as engine:
        backend.gate.clear()
        first = asyncio.create_task(engine.labels(Task.SENTIMENT, ["a"], deadline=soon()))
        await backend.has_entered()
        gone = asyncio.create_task(engine.labels(Task.SENTIMENT, ["a"], deadline=soon()))
        late = asyncio.create_task(engine.labels(Task.SENTIMENT, ["a"], deadline=Deadline.after(0.05)))
        await queued(engine, 3)
        gone.cancel()
        await asyncio.gather(gone, late, return_exceptions=True)
        text = engine._metrics.render().decode()
        assert "bert_requests_cancelled_total 1.0" in text
        assert "bert_requests_expired_total 1.0" in text
        backend.gate.set()
        await first
