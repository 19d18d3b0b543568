"""The life of the service, with a fake backend: loading, serving, reloading, draining, breaking."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from app.batching.admission import Deadline
from app.batching.lifecycle import Lifecycle, State
from app.errors import BackendDiedError, ProcessDiedError, UnavailableError
from app.inference.contract import Head, Query
from app.observability.metrics import Metrics
from app.settings import Settings
from tests.app.waiting import until

PATIENCE = 30
HOUR = 3600


def lifecycle_of(*backends: Any, **settings: object) -> Lifecycle:
    """A lifecycle that loads one backend after the other."""
    made = iter(backends)
    return Lifecycle(lambda: next(made), Settings.model_validate(settings), Metrics())


@asynccontextmanager
async def running(*backends: Any, **settings: object) -> AsyncIterator[Lifecycle]:
    """A lifecycle that has loaded its first backend, or failed to."""
    lifecycle = lifecycle_of(*backends, **settings)
    lifecycle.start()
    try:
        async with asyncio.timeout(PATIENCE):
            await lifecycle.startup_finished.wait()
        yield lifecycle
    finally:
        for backend in backends:
            backend.gate.set()
        await lifecycle.aclose()


def another(backend: Any, **changes: object) -> Any:
    """A second backend like this one, with its own gates, which are open."""
    gate, may_load = threading.Event(), threading.Event()
    gate.set()
    may_load.set()
    own: dict[str, Any] = {"models": dict(backend.models), "batches": [], "gate": gate, "may_load": may_load}
    return replace(backend, entered=threading.Semaphore(0), **(own | changes))


async def ask(lifecycle: Lifecycle, text: str = "a", *more: str) -> str:
    """Have texts computed, as a request does. Returns the name of the model that has computed them."""
    engine = lifecycle.engine
    encoder, served = engine.model_with(Head.LABELS, "sentiment")
    query = Query(list(map(served.tokenizer.encode, (text, *more))), 2)
    async with asyncio.timeout(PATIENCE):  # a test that fails ends
        outputs = await engine.compute(query, encoder, Deadline.after(HOUR))
    assert len(outputs) == 1 + len(more)
    return served.name


async def start(lifecycle: Lifecycle, text: str = "a") -> asyncio.Task[str]:
    """Let a request enter the queue."""
    task = asyncio.create_task(ask(lifecycle, text))
    await asyncio.sleep(0)
    return task


async def held(lifecycle: Lifecycle) -> asyncio.Task[str]:
    """Let a request enter a batch that ends when its backend's gate opens."""
    backend: Any = lifecycle.engine.backend
    backend.gate.clear()
    task = await start(lifecycle)
    await backend.has_entered()
    return task


def hang(lifecycle: Lifecycle, clock: Any) -> None:
    """Let the running batch take so long that it counts as hung."""
    for _ in range(100):
        if lifecycle.is_hung:
            return
        pass_time(lifecycle, clock, 1)
    raise AssertionError


def pass_time(lifecycle: Lifecycle, clock: Any, seconds: int) -> None:
    """Let time pass in which the service is awake."""
    for _ in range(seconds):
        clock.now += 1
        lifecycle.track_stall()


# Loading --------------------------------------------------------------------------------------------------------


async def test_lifecycle_status_follows_the_life_of_the_service(backend: Any) -> None:
    backend.may_load.clear()
    lifecycle = lifecycle_of(backend)
    lifecycle.start()
    assert lifecycle.status == "loading"
    with pytest.raises(UnavailableError, match="loading"):
        lifecycle.check_open()
    backend.may_load.set()
    async with asyncio.timeout(PATIENCE):
        await lifecycle.wait_until_ready()
    assert (lifecycle.status, lifecycle.is_draining, lifecycle.refusing) == ("ready", False, False)
    lifecycle.advance(State.DRAINING)
    assert (lifecycle.status, lifecycle.is_draining, lifecycle.refusing) == ("draining", True, False)
    lifecycle.check_open()  # its bytes may have been here before the signal
    lifecycle.advance(State.REFUSING)
    assert (lifecycle.status, lifecycle.is_draining, lifecycle.refusing) == ("draining", True, True)
    with pytest.raises(UnavailableError, match="draining"):
        lifecycle.check_open()
    await ask(lifecycle)  # it came in before, and its body only now
    lifecycle.advance(State.READY)
    assert lifecycle.state is State.REFUSING, "it moves forward only"
    await lifecycle.aclose()


async def test_lifecycle_failed_load_breaks_the_service(backend: Any) -> None:
    backend.load_error = ValueError("no weights")
    async with running(backend) as lifecycle:
        assert lifecycle.status == "broken"
        assert lifecycle.failure is backend.load_error
        assert not lifecycle.has_loaded
        with pytest.raises(ValueError, match="no weights"):
            await lifecycle.wait_until_ready()
        with pytest.raises(UnavailableError, match="broken"):
            lifecycle.check_open()
    assert lifecycle.status == "broken", "also once it is closed"


async def test_lifecycle_closing_while_loading_ends_the_load(backend: Any) -> None:
    backend.may_load.clear()
    lifecycle = lifecycle_of(backend)
    lifecycle.start()
    await until(lambda: hasattr(backend, "on_death"))  # it loads
    await lifecycle.aclose()
    assert backend.closed
    assert lifecycle.failure is None


async def test_lifecycle_status_is_loading_while_no_process_runs(backend: Any) -> None:
    async with running(backend) as lifecycle:
        backend.slots = 0
        assert lifecycle.status == "loading"
        waiting = await start(lifecycle)
        backend.slots = 1
        assert lifecycle.status == "ready"
        backend.on_start()
        await waiting


# Hanging --------------------------------------------------------------------------------------------------------


async def test_lifecycle_kills_the_process_of_a_batch_that_hangs_and_goes_on(
    backend: Any, clock: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("app.batching.lifecycle.WATCH_SECONDS", 0.005)
    caplog.set_level(logging.INFO)
    async with running(backend) as lifecycle:
        hanging = await held(lifecycle)
        waiting = await start(lifecycle, "b")
        hang(lifecycle, clock)
        await until(lambda: "batch timed out; killing its inference process" in caplog.messages)
        with pytest.raises(ProcessDiedError):
            await hanging
        await backend.has_entered()
        backend.gate.set()
        assert await waiting
        assert lifecycle.status == "ready"
        await until(lambda: "no longer stalled" in caplog.messages)
        assert not lifecycle.is_hung
        assert not backend.closed
    assert caplog.messages.count("batch timed out; killing its inference process") == 1


async def test_lifecycle_is_broken_if_a_hung_process_cannot_be_killed(
    backend: Any, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.batching.lifecycle.WATCH_SECONDS", 0.005)
    killed: list[float] = []
    monkeypatch.setattr(type(backend), "kill_hung", lambda _, seconds: killed.append(seconds))
    async with running(backend) as lifecycle:
        asked = await held(lifecycle)
        hang(lifecycle, clock)
        await until(lambda: killed)
        assert lifecycle.status == "stalled"
        clock.now += 6
        with pytest.raises(UnavailableError, match="broken"):
            await asked
        assert lifecycle.status == "broken"
        assert "cannot be killed" in str(lifecycle.failure)
    assert killed == [30], "the request timeout"


@pytest.mark.parametrize(("milliseconds", "seconds"), [(100, 5), (60_000, 60)])
async def test_lifecycle_batch_stalls_after_the_request_timeout_and_five_seconds(
    backend: Any, clock: Any, monkeypatch: pytest.MonkeyPatch, milliseconds: int, seconds: float
) -> None:
    monkeypatch.setattr("app.batching.lifecycle.WATCH_SECONDS", HOUR)
    async with running(backend, request_timeout_ms=milliseconds) as lifecycle:
        asked = await held(lifecycle)
        lifecycle.track_stall()
        pass_time(lifecycle, clock, seconds)
        assert lifecycle.status == "ready"
        pass_time(lifecycle, clock, 1)
        assert lifecycle.status == "stalled"
        backend.gate.set()
        await asked
        assert lifecycle.status == "ready"


async def test_lifecycle_time_in_which_this_process_was_suspended_does_not_count(
    backend: Any, clock: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("app.batching.lifecycle.WATCH_SECONDS", HOUR)
    async with running(backend) as lifecycle:
        asked = await held(lifecycle)
        for _ in range(10):
            clock.now += HOUR
            lifecycle.track_stall()
        assert lifecycle.status == "ready", "10 looks count as 10 seconds, of 30"
        assert "stalled" not in caplog.text, "it would announce a kill that does not come"
        hang(lifecycle, clock)
        assert caplog.messages == ["stalled: a batch has been running for 31 s; its process is killed after 60 s"]
        backend.gate.set()
        await asked


# Reloading ------------------------------------------------------------------------------------------------------


async def test_lifecycle_requests_that_wait_during_a_reload_stay_with_the_model_they_were_tokenized_for(
    backend: Any,
) -> None:
    fresh = another(backend)
    fresh.models["sentiment"] = replace(backend.models["sentiment"], name="fresh-sentiment")
    async with running(backend, fresh) as lifecycle:
        fresh.gate.clear()
        first = await held(lifecycle)
        second = await start(lifecycle, "a film")
        assert await lifecycle.reload()
        third = await start(lifecycle, "a good film")
        assert lifecycle.unanswered_requests == 3, "those of both"
        assert lifecycle.queued_tokens > 0
        backend.gate.set()
        fresh.gate.set()
        assert await asyncio.gather(first, second, third) == ["fake-sentiment", "fake-sentiment", "fresh-sentiment"]
    assert [len(batch[0].encoding) for batch in backend.batches] == [3, 4]
    assert [len(batch[0].encoding) for batch in fresh.batches] == [5]


async def test_lifecycle_batches_of_a_replaced_backend_say_nothing_of_the_new_ones_speed(backend: Any) -> None:
    async with running(backend, another(backend)) as lifecycle:
        old = await held(lifecycle)
        assert await lifecycle.reload()
        throughput = lifecycle.engine.throughput
        throughput.set(1e-6, 1, 100)
        backend.gate.set()
        await old
        assert throughput.tokens_per_second == 1e-6
        await ask(lifecycle)
        assert throughput.tokens_per_second > 1e-6


async def test_lifecycle_replaced_engine_is_freed_without_a_garbage_collection(backend: Any) -> None:
    """A reload freezes all objects, so a later full collection does not see it."""
    async with running(backend, another(backend)) as lifecycle:
        asked, replaced = await held(lifecycle), weakref.ref(lifecycle.engine)
        gc.disable()
        try:
            assert await lifecycle.reload()
            backend.gate.set()
            await asked
            await until(lambda: backend.closed)
            del backend.on_death, backend.on_start, asked  # a process pool drops them too
            await until(lambda: replaced() is None)
        finally:
            gc.enable()


async def test_lifecycle_replaced_backend_that_dies_fails_only_its_own_requests_repeatably(
    backend: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(backend, another(backend)) as lifecycle:
        stranded = await held(lifecycle)
        assert await lifecycle.reload()
        backend.on_death(BackendDiedError("killed"))
        with pytest.raises(UnavailableError, match="reloading") as raised:
            await stranded
        assert raised.value.retry_after == 1
        assert (lifecycle.status, lifecycle.failure) == ("ready", None)
        await ask(lifecycle)
    assert caplog.messages == ["a replaced backend ended before it had answered: killed"]


async def test_lifecycle_replaced_backend_that_hangs_is_killed_when_its_requests_have_ended(
    backend: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(backend, another(backend)) as lifecycle:
        hanging, replaced = await held(lifecycle), lifecycle.engine
        assert await lifecycle.reload()
        hanging.cancel()  # its deadline has passed
        await until(lambda: backend.closed)
        await ask(lifecycle)
        assert lifecycle.status == "ready"
        await until(lambda: not replaced._tasks)
    assert "before it had answered" not in caplog.text  # its end was expected


async def test_lifecycle_reload_frees_a_service_whose_backend_hangs(
    backend: Any, clock: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("app.batching.lifecycle.WATCH_SECONDS", HOUR)  # nothing else kills it before the reload
    caplog.set_level(logging.INFO)
    async with running(backend, another(backend)) as lifecycle:
        hanging = await held(lifecycle)
        hang(lifecycle, clock)
        assert await lifecycle.reload()
        assert lifecycle.status == "ready"
        assert backend.closed
        await ask(lifecycle)
        with pytest.raises(UnavailableError, match="reloading"):
            await hanging
        lifecycle.track_stall()
        assert not lifecycle.is_hung
        assert caplog.messages[-1] == "no longer stalled"
    assert "before it had answered" not in caplog.text


async def test_lifecycle_kills_no_hung_process_during_a_reload(
    backend: Any, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.batching.lifecycle.WATCH_SECONDS", HOUR)
    fresh = another(backend, may_load=threading.Event())
    async with running(backend, fresh) as lifecycle:
        hanging = await held(lifecycle)
        hang(lifecycle, clock)
        reloading = asyncio.create_task(lifecycle.reload())
        await until(lambda: hasattr(fresh, "on_death"))  # it loads
        assert not lifecycle.is_hung
        fresh.may_load.set()
        assert await reloading
        with pytest.raises(UnavailableError, match="reloading"):
            await hanging


async def test_lifecycle_reload_while_draining_is_refused(backend: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    fresh = another(backend)
    async with running(backend, fresh) as lifecycle:
        lifecycle.advance(State.REFUSING)
        assert not await lifecycle.reload()
        assert fresh.closed
        assert not hasattr(fresh, "on_death"), "it is not even loaded"
    assert caplog.messages[-1] == "not reloaded: the service ends"


async def test_lifecycle_close_during_a_reload_ends_its_load(backend: Any) -> None:
    fresh = another(backend, may_load=threading.Event())
    async with running(backend, fresh) as lifecycle:
        reloading = asyncio.create_task(lifecycle.reload())
        await until(lambda: hasattr(fresh, "on_death"))  # it loads
        await lifecycle.aclose()
        assert not await reloading
        assert (backend.closed, fresh.closed, lifecycle.failure) == (True, True, None)


async def test_lifecycle_reload_that_does_not_end_is_given_up(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.batching.lifecycle.MAX_RELOAD_SECONDS", 0.1)
    endless = another(backend, may_load=threading.Event())
    async with running(backend, endless) as lifecycle:
        assert not await lifecycle.reload()
        assert endless.closed
        assert not backend.closed
        await ask(lifecycle)


async def test_lifecycle_reload_whose_load_raises_anything_leaves_the_service_as_it_is(backend: Any) -> None:
    failing = another(backend, load_error=TimeoutError("of the file system"))
    async with running(backend, failing) as lifecycle:
        assert not await lifecycle.reload()
        assert (failing.closed, backend.closed) == (True, False)
        assert (lifecycle.status, lifecycle.failure) == ("ready", None)
        await ask(lifecycle)
