"""`compute`: a parsed request through tokenization, the queue and the results, with a fake backend."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from pydantic_core import to_json

from app.batching.admission import Deadline
from app.batching.lifecycle import Lifecycle
from app.errors import (
    InvalidInputError,
    QueueFullError,
    TooLargeError,
)
from app.http import handle
from app.http.context import RequestContext, Service
from app.http.handle import MAX_RESPONSE_BYTES, Call, task_result
from app.http.native import as_sent
from app.observability.metrics import Metrics
from app.settings import Settings
from app.tasks import FILL_MASK, NEXT_SENTENCE, SENTIMENT, TASKS
from app.tasks.schemas import Input, TextPair
from app.tasks.task import Task, TaskResult
from model.errors import EmptyTextError, NoMaskError, TextTooLongError
from model.tokenizer import Encoding
from tests.app.waiting import until

PATIENCE = 30
LONG = "a " * 5000
"""Tokenized in a thread."""


@asynccontextmanager
async def running(*backends: Any, **given: object) -> AsyncIterator[Service]:
    """A service that has loaded its first backend; a reload takes the next."""
    settings, metrics, made = Settings.model_validate(given), Metrics(), iter(backends)
    service = Service(settings, metrics, Lifecycle(lambda: next(made), settings, metrics), TASKS)
    service.lifecycle.start()
    try:
        async with asyncio.timeout(PATIENCE):
            await service.lifecycle.wait_until_ready()
        yield service
    finally:
        for backend in backends:
            backend.gate.set()
        await service.lifecycle.aclose()
        service.threads.shutdown(wait=False, cancel_futures=True)


async def ask(
    service: Service,
    task: Task,
    inputs: Sequence[Input],
    *,
    seconds: float = PATIENCE,
    context: RequestContext | None = None,
    **parameters: object,
) -> TaskResult:
    call = Call(inputs, parameters, lambda result: result.results, as_sent)
    async with asyncio.timeout(PATIENCE):  # a test that fails ends
        return await task_result(context or RequestContext(service), task, call, Deadline.after(seconds))


async def queued(service: Service, requests: int) -> None:
    """Wait until so many requests wait for a batch or are being computed."""
    await until(lambda: service.lifecycle.unanswered_requests >= requests)


class HeldTokenizer:
    """A tokenizer that waits at a gate. As in a model of its own: `hold` puts it in place of a backend's."""

    def __init__(self, tokenizer: Any) -> None:
        self.gate, self.entered = threading.Event(), threading.Event()
        self.texts: list[str] = []
        """That were tokenized."""
        self.threads: list[threading.Thread] = []
        """The thread of each."""
        self._tokenizer = tokenizer
        self.unk_id, self.is_quick = tokenizer.unk_id, tokenizer.is_quick

    @property
    def work(self) -> int:
        work: int = self._tokenizer.work
        return work

    def encode(self, text: str, *others: Any, **options: Any) -> Encoding:
        self.entered.set()
        assert self.gate.wait(PATIENCE)
        self.texts.append(text)
        self.threads.append(threading.current_thread())
        encoding: Encoding = self._tokenizer.encode(text, *others, **options)
        return encoding


def hold(backend: Any) -> HeldTokenizer:
    held: Any = HeldTokenizer(backend.models["sentiment"].tokenizer)
    backend.models["sentiment"] = replace(backend.models["sentiment"], tokenizer=held)
    return held


# Results --------------------------------------------------------------------------------------------------------


async def test_compute_tasks_of_one_encoder_share_a_forward_pass(backend: Any) -> None:
    async with running(backend) as service:
        backend.gate.clear()
        first = asyncio.create_task(ask(service, FILL_MASK, ["a [MASK]"]))
        await backend.has_entered()
        others = [
            asyncio.create_task(ask(service, FILL_MASK, ["the [MASK]", "[MASK] is"])),
            asyncio.create_task(ask(service, NEXT_SENTENCE, [TextPair("a", "b")])),
            asyncio.create_task(ask(service, SENTIMENT, ["good"])),
        ]
        await queued(service, 4)
        backend.gate.set()
        await asyncio.gather(first, *others)
    assert len(backend.batches) == 3
    has_masks = [[bool(asked.query.masks) for asked in batch] for batch in backend.batches]
    assert sorted(has_masks[1:], key=len) == [[False], [True, False, True]]


async def test_compute_results_keep_the_order_of_the_inputs(backend: Any) -> None:
    texts = ["[MASK] a", "b [MASK] c", "d e [MASK] f"]
    async with running(backend, max_batch_tokens=1) as service:
        result = await ask(service, FILL_MASK, texts, top_k=1)
    assert [one["masks"][0]["position"] for one in result.results] == [1, 2, 3]
    assert (result.model, result.tokens) == ("fake-pretrained", 4 + 5 + 6)
    assert len(backend.batches) == 3


async def test_compute_many_predictions_are_put_together_in_the_order_of_the_inputs(backend: Any) -> None:
    texts = [f"{'a ' * i}[MASK]" for i in range(40)]
    async with running(backend) as service:
        result = await ask(service, FILL_MASK, texts, top_k=50)
    assert [one["masks"][0]["position"] for one in result.results] == list(range(1, 41))
    assert all(len(one["masks"][0]["predictions"]) == 50 for one in result.results)


# Tokenization ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("characters", [1, 10_000], ids=["on the event loop", "in a thread"])
async def test_compute_names_all_texts_without_an_answer_and_computes_nothing(backend: Any, characters: int) -> None:
    texts = ["", "[MASK] " + " " * characters, "a film", "a " * 100 + "[MASK]"]
    async with running(backend) as service:
        with pytest.raises(InvalidInputError) as raised:
            await ask(service, FILL_MASK, texts)
        assert service.lifecycle.engine.admission.reserved_tokens == 0
    found = [(type(error), loc) for error, loc in raised.value.faults]
    assert found == [(EmptyTextError, ("inputs", 0)), (NoMaskError, ("inputs", 2)), (TextTooLongError, ("inputs", 3))]
    assert backend.batches == []


async def test_compute_tokenizes_long_texts_like_short_ones(backend: Any) -> None:
    async with running(backend) as service:
        result = await ask(service, SENTIMENT, [LONG + ".", "a"], truncate=True)
        assert service.lifecycle.engine.admission.reserved_tokens == 0
    assert [(one["tokens"], one["truncated"]) for one in result.results] == [(64, True), (3, False)]


async def test_compute_tokenizes_long_texts_beside_the_event_loop(backend: Any) -> None:
    held = hold(backend)
    async with running(backend) as service:
        long = asyncio.create_task(ask(service, SENTIMENT, [LONG], truncate=True))
        assert await asyncio.to_thread(held.entered.wait, PATIENCE)
        await ask(service, NEXT_SENTENCE, [TextPair("a", "b")])  # uses the other tokenizer
        assert not long.done()
        held.gate.set()
        await long


@pytest.mark.parametrize(
    ("inputs", "on_loop"),
    [
        pytest.param(["a film " * 1000], True, id="known words"),
        pytest.param(["a film"] * 512, True, id="many sentences"),
        pytest.param(["a" * 100 + " " + "b" * 400], True, id="a short text"),
        pytest.param([f"a film {number}" for number in range(50)], True, id="few new words"),
        pytest.param([" ".join(map(str, range(1000, 2000)))], False, id="new words"),
        pytest.param(["0123456789abcdef" * 4 + " "] * 16, False, id="hexadecimal digits"),
        pytest.param([TextPair("a film", "gattaca " + "gatta" * 20 + " c" * 400) for _ in range(6)], False, id="pairs"),
        pytest.param(["a" * 8192], False, id="one long word"),
        pytest.param(["a " * 5000], False, id="many characters"),
    ],
)
async def test_compute_tokenizes_on_the_event_loop_what_is_little_work(
    backend: Any, inputs: list[Input], on_loop: bool
) -> None:
    held = hold(backend)
    held.gate.set()
    async with running(backend) as service:
        await ask(service, SENTIMENT, ["a film"])  # these words are known from now on
        held.threads.clear()
        await ask(service, SENTIMENT, inputs, truncate=True)
    assert (held.threads[-1] is threading.main_thread()) == on_loop


async def test_compute_holds_room_while_a_text_is_tokenized(backend: Any) -> None:
    held = hold(backend)
    async with running(backend, max_queue_tokens=70) as service:
        first = asyncio.create_task(ask(service, SENTIMENT, [LONG], truncate=True))
        assert await asyncio.to_thread(held.entered.wait, PATIENCE)
        assert service.lifecycle.engine.admission.reserved_tokens == 70
        with pytest.raises(QueueFullError):
            service.lifecycle.engine.admission.check_head(len(LONG), Deadline.after(PATIENCE))
        held.gate.set()
        await first
        await ask(service, SENTIMENT, [LONG], truncate=True)


async def test_compute_cancelled_while_it_waits_for_a_thread_leaves_its_room(backend: Any) -> None:
    release = threading.Event()
    async with running(backend) as service:
        busy = [service.threads.submit(release.wait, PATIENCE) for _ in range(2)]
        context = RequestContext(service)
        asked = asyncio.create_task(ask(service, SENTIMENT, [LONG], context=context, truncate=True))
        await asyncio.sleep(0)
        assert service.lifecycle.engine.admission.reserved_tokens == 512
        asked.cancel()
        await asyncio.wait([asked])
        assert asked.cancelled()
        assert service.lifecycle.engine.admission.reserved_tokens == 0
        assert not context.computation_started
        release.set()
        assert all(work.result() for work in busy)
    assert backend.batches == []


async def test_compute_cancelled_during_tokenization_ends_it_after_the_present_text(backend: Any) -> None:
    held = hold(backend)
    async with running(backend) as service:
        asked = asyncio.create_task(ask(service, SENTIMENT, [LONG] * 3, truncate=True))
        assert await asyncio.to_thread(held.entered.wait, PATIENCE)
        asked.cancel()
        await asyncio.wait([asked])
        held.gate.set()
        await asyncio.to_thread(service.threads.shutdown, wait=True)
    assert len(held.texts) == 1
    assert backend.batches == []


async def test_compute_during_a_reload_stays_with_the_model_that_tokenizes(backend: Any) -> None:
    fresh = replace(backend, models=dict(backend.models), batches=[])
    fresh.models["sentiment"] = replace(backend.models["sentiment"], name="fresh-sentiment")
    held = hold(backend)
    async with running(backend, fresh) as service:
        asked = asyncio.create_task(ask(service, SENTIMENT, [LONG], truncate=True))
        assert await asyncio.to_thread(held.entered.wait, PATIENCE)
        assert await service.lifecycle.reload()
        assert (await ask(service, SENTIMENT, ["a"])).model == "fresh-sentiment"
        assert not backend.closed
        held.gate.set()
        assert (await asked).model == "fake-sentiment"
        await until(lambda: backend.closed)
    assert [len(batch) for batch in (*backend.batches, *fresh.batches)] == [1, 1]


# Deadlines ------------------------------------------------------------------------------------------------------


async def test_compute_deadline_bounds_the_wait_for_a_thread(serve: Any, backend: Any) -> None:
    release = threading.Event()
    async with serve() as running:
        service = running.app.service
        busy = [service.threads.submit(release.wait, PATIENCE) for _ in range(2)]
        body = {"inputs": LONG, "parameters": {"truncate": True}}
        answer = await running.client.post("/sentiment", json=body, headers={"X-Request-Timeout-Ms": "50"})
        assert (answer.status_code, answer.json()["code"]) == (504, "deadline_exceeded")
        assert service.lifecycle.engine.admission.reserved_tokens == 0
        assert await running.metric("bert_requests_expired_total") == 1
        release.set()
        assert all(work.result() for work in busy)
    assert backend.batches == []


async def test_compute_tells_whether_the_model_has_begun_with_a_request_that_is_cancelled(backend: Any) -> None:
    """Only a request that ends before that counts as cancelled in the metrics."""
    async with running(backend) as service:
        backend.gate.clear()
        contexts = [RequestContext(service) for _ in range(2)]
        begun = asyncio.create_task(ask(service, SENTIMENT, ["a"], context=contexts[0]))
        await backend.has_entered()
        waiting = asyncio.create_task(ask(service, SENTIMENT, ["b"], context=contexts[1]))
        await queued(service, 2)
        for task in (begun, waiting):
            task.cancel()
        await asyncio.wait([begun, waiting])
        assert [context.computation_started for context in contexts] == [True, False]
        assert (service.lifecycle.unanswered_requests, service.lifecycle.queued_tokens) == (0, 0)


# Size of the answer ---------------------------------------------------------------------------------------------


async def test_compute_answer_is_no_larger_than_its_targets(backend: Any) -> None:
    texts = ["[MASK]" + " " * 600] * 512  # with 76 predictions each, too much
    async with running(backend) as service:
        result = await ask(service, FILL_MASK, texts, targets=["good", "bad"], top_k=100)
        with pytest.raises(TooLargeError):
            await ask(service, FILL_MASK, texts, top_k=100)
    assert [len(one["masks"][0]["predictions"]) for one in result.results] == [2] * 512


async def test_compute_answer_that_is_too_large_is_refused_before_the_model_is_asked(backend: Any) -> None:
    text = "[MASK] " + "\u0001" * 10_000  # JSON writes six bytes for each
    async with running(backend) as service:
        with pytest.raises(TooLargeError, match=f"more than {MAX_RESPONSE_BYTES}; lower top_k, or send fewer masks"):
            await ask(service, FILL_MASK, [text], top_k=50)
        assert service.lifecycle.engine.admission.reserved_tokens == 0
        assert backend.batches == []
        result = await ask(service, FILL_MASK, [text], top_k=30)
    assert MAX_RESPONSE_BYTES / 2 < len(to_json(result.results)) < MAX_RESPONSE_BYTES


async def test_compute_answer_of_very_many_labels_is_refused(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handle, "MAX_RESPONSE_BYTES", 1000)
    async with running(backend) as service:
        with pytest.raises(TooLargeError, match="lower top_k, or send fewer texts"):
            await ask(service, SENTIMENT, ["a"] * 6)
        assert backend.batches == []
        assert len((await ask(service, SENTIMENT, ["a"] * 6, top_k=1)).results) == 6
