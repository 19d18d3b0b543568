"""The backend in a process of its own: what it answers, what it says when it cannot, and how it ends."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch

from app.errors import BackendDiedError, SettingsError
from app.inference.process_pool import ProcessPool
from app.inference.torch_backend import TorchBackend
from app.inference.types import Answer, BackendConfig, Query, Task
from model import Tokenizer
from model.errors import CheckpointError
from tests.app.process import PATIENCE, children

pytestmark = pytest.mark.asyncio(loop_scope="module")


def ignore(_: BackendDiedError) -> None:
    """Of a test that expects no death, or looks for it elsewhere."""


def pool_of(
    pretrained: Path, sentiment: Path, device: str = "cpu", threads: int = 1, logs: dict[str, Any] | None = None
) -> ProcessPool:
    return ProcessPool(BackendConfig(pretrained, sentiment, device, "float32", threads, logs))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def single(pretrained: Path, sentiment: Path) -> AsyncIterator[ProcessPool]:
    """Of one process, for tests that leave it alive."""
    async with loaded(pretrained, sentiment, threads=1) as pool:
        yield pool


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pair(pretrained: Path, sentiment: Path) -> AsyncIterator[ProcessPool]:
    """Of two processes, for tests that leave them alive."""
    async with loaded(pretrained, sentiment, threads=2) as pool:
        yield pool


@pytest.fixture(params=[1, 2])
def backend(request: pytest.FixtureRequest, single: ProcessPool, pair: ProcessPool) -> ProcessPool:
    """Of one process, or of two, for tests that leave them alive."""
    return single if request.param == 1 else pair


@pytest_asyncio.fixture(loop_scope="module")
async def own_pair(pretrained: Path, sentiment: Path) -> AsyncIterator[ProcessPool]:
    """Of two processes, for one test."""
    async with loaded(pretrained, sentiment, threads=2) as pool:
        yield pool


@asynccontextmanager
async def loaded(pretrained: Path, sentiment: Path, threads: int) -> AsyncIterator[ProcessPool]:
    pool = pool_of(pretrained, sentiment, threads=threads)
    await pool.load(ignore)
    yield pool
    await pool.aclose()


def pid_of(backend: ProcessPool) -> int:
    assert backend._process is not None
    assert backend._process.pid is not None
    return backend._process.pid


def fork_of(backend: ProcessPool) -> int:
    """The process that the first one has forked."""
    (found,) = children(pid_of(backend))
    return found


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 (no event says so)
            await asyncio.sleep(0.005)


async def until_gone(pid: int) -> None:
    await until(lambda: not Path(f"/proc/{pid}").exists())


def sentiment_query(tokenizer: Tokenizer, text: str = "good") -> Query:
    return Query(Task.SENTIMENT, tokenizer.encode(text))


async def test_process_pool_answers_as_the_models_in_this_process_do(
    backend: ProcessPool, pretrained: Path, sentiment: Path, tokenizer: Tokenizer
) -> None:
    here = TorchBackend(BackendConfig(pretrained, sentiment, device="cpu", dtype="float32", threads=1))
    here.load()
    text = tokenizer.encode("a good [MASK]")
    mask = text.input_ids.index(tokenizer.mask_id)
    queries = [
        Query(Task.FILL_MASK, text, (mask,), 3),
        Query(Task.NEXT_SENTENCE, tokenizer.encode("a film", "it was good")),
        Query(Task.FILL_MASK, text, (mask,), 2, (5, 6)),
    ]
    assert await backend.run("pretrained", queries) == here.run("pretrained", queries)
    assert set(backend.info.models) == set(here.info.models)
    assert backend.info.models["pretrained"].config == here.info.models["pretrained"].config
    assert backend.info.models["pretrained"].tokenizer.encode("a good film") == tokenizer.encode("a good film")
    assert (backend.info.device, backend.info.dtype) == ("cpu", "float32")
    assert backend.info.threads == backend.info.processes
    assert backend.info.tokens_per_second > 0


async def test_process_pool_large_batch_and_large_answer_arrive_whole(pair: ProcessPool, tokenizer: Tokenizer) -> None:
    text = tokenizer.encode("a [MASK]")
    query = Query(Task.FILL_MASK, text, (text.input_ids.index(tokenizer.mask_id),), 50)
    answers = await pair.run("pretrained", [query] * 2000)
    assert len(answers) == 2000
    assert all(isinstance(answer, Answer) and len(answer.scores[0]) == 50 for answer in answers)


async def test_process_pool_batch_that_fails_leaves_the_process_alive(
    backend: ProcessPool, tokenizer: Tokenizer
) -> None:
    query = sentiment_query(tokenizer)
    with pytest.raises(KeyError, match="no such encoder") as raised:
        await backend.run("no such encoder", [query])
    assert "in _compute" in "".join(raised.value.__notes__)  # where it happened, for the log
    assert len(await backend.run("sentiment", [query])) == 1


async def test_process_pool_names_checkpoint_and_device_that_cannot_be_used(pretrained: Path, tmp_path: Path) -> None:
    missing = pool_of(pretrained, tmp_path / "nowhere")
    with pytest.raises(CheckpointError) as raised:
        await missing.load(ignore)
    assert raised.value.path.is_relative_to(tmp_path / "nowhere")
    await missing.aclose()
    absent = pool_of(pretrained, pretrained, "cuda:99")
    with pytest.raises(SettingsError, match="CUDA device"):
        await absent.load(ignore)
    await absent.aclose()


@pytest.mark.parametrize("threads", [1, 2])
async def test_process_pool_death_is_told(
    threads: int, pretrained: Path, sentiment: Path, tokenizer: Tokenizer
) -> None:
    told: list[BackendDiedError] = []
    backend = pool_of(pretrained, sentiment, threads=threads)
    await backend.load(told.append)
    os.kill(pid_of(backend), signal.SIGKILL)
    await until(lambda: bool(told))
    assert "memory ran out" in str(told[0])
    with pytest.raises(BackendDiedError, match="BERT_MAX_BATCH_TOKENS"):
        await backend.run("sentiment", [sentiment_query(tokenizer)])
    await backend.aclose()
    assert len(told) == 1


async def test_process_pool_death_during_a_batch_fails_it(own_pair: ProcessPool, tokenizer: Tokenizer) -> None:
    os.kill(pid_of(own_pair), signal.SIGSTOP)
    asked = asyncio.create_task(own_pair.run("sentiment", [sentiment_query(tokenizer)]))
    await asyncio.sleep(0.05)
    os.kill(pid_of(own_pair), signal.SIGKILL)
    with pytest.raises(BackendDiedError, match="signal 9"):
        await asked


async def test_process_pool_hung_process_does_not_block_the_event_loop(
    own_pair: ProcessPool, tokenizer: Tokenizer
) -> None:
    """Also if it hangs before it has read a request that is larger than the connection's buffers."""
    os.kill(pid_of(own_pair), signal.SIGSTOP)
    asked = asyncio.create_task(own_pair.run("sentiment", [sentiment_query(tokenizer, "good " * 60)] * 20_000))
    began = time.monotonic()
    await asyncio.sleep(0.05)
    other = await own_pair.run("sentiment", [sentiment_query(tokenizer)])
    assert len(other) == 1
    assert time.monotonic() - began < PATIENCE / 2
    os.kill(pid_of(own_pair), signal.SIGKILL)
    with pytest.raises(BackendDiedError):
        await asked


async def test_process_pool_closing_ends_the_processes_without_an_alarm(pretrained: Path, sentiment: Path) -> None:
    alarms: list[object] = []
    backend = pool_of(pretrained, sentiment, threads=2)
    await backend.load(alarms.append)
    pids = pid_of(backend), fork_of(backend)
    await backend.aclose()
    for pid in pids:
        await until_gone(pid)
    assert not alarms


async def test_process_pool_closing_at_any_moment_of_loading_ends_it(pretrained: Path, sentiment: Path) -> None:
    for pause in (0.0, 0.01, 0.05, 0.3):
        backend = pool_of(pretrained, sentiment)
        loading = asyncio.create_task(backend.load(ignore))
        await asyncio.sleep(pause)
        await backend.aclose()
        with pytest.raises(BackendDiedError):
            await loading
        with pytest.raises(BackendDiedError):
            await backend.load(ignore)


async def test_process_pool_closing_just_after_the_fork_ends_both(pretrained: Path, sentiment: Path) -> None:
    backend = pool_of(pretrained, sentiment, threads=2)
    loading = asyncio.create_task(backend.load(ignore))
    await until(lambda: backend._process is not None and bool(children(pid_of(backend))))
    pids = pid_of(backend), *children(pid_of(backend))
    await backend.aclose()
    for pid in pids:
        await until_gone(pid)
    with suppress(BackendDiedError):  # it may have been loaded in that very moment
        await loading


class NoFork:
    """A filter of a log; where it is made, nothing can be forked."""

    def __init__(self) -> None:
        os.fork = self.fork  # type: ignore[assignment]

    def fork(self) -> int:
        raise BlockingIOError(11, "no room for another process")


async def test_process_pool_fork_that_fails_is_told(pretrained: Path, sentiment: Path) -> None:
    logs = {"version": 1, "filters": {"first": {"()": f"{__name__}.NoFork"}}}
    backend = pool_of(pretrained, sentiment, threads=2, logs=logs)
    with pytest.raises(BlockingIOError, match="no room for another process"):
        await backend.load(ignore)
    await until_gone(pid_of(backend))
    await backend.aclose()


class NotLinux:
    """A filter of a log; where it is made, the system has no fork, and so computes in one process as with a GPU."""

    def __init__(self) -> None:
        sys.platform = "darwin"


async def test_process_pool_of_one_process_with_several_threads_lives(
    pretrained: Path, sentiment: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections that it does not need are closed by the parent, which is not taken for its death."""
    monkeypatch.setattr("app.inference.process_pool._EXIT_SECONDS", 0.1)
    logs = {"version": 1, "filters": {"first": {"()": f"{__name__}.NotLinux"}}}
    told: list[BackendDiedError] = []
    backend = pool_of(pretrained, sentiment, threads=4, logs=logs)
    await backend.load(told.append)
    assert (backend.info.processes, backend.info.threads) == (1, 4)
    await asyncio.sleep(0.5)
    assert len(await backend.run("sentiment", [sentiment_query(tokenizer)])) == 1
    assert not told
    await backend.aclose()


async def test_process_pool_that_cannot_start_a_process_says_so_and_closes(
    pretrained: Path, sentiment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise BlockingIOError(11, "no room for another process")

    monkeypatch.setattr("multiprocessing.context.SpawnProcess.start", fail)
    backend = pool_of(pretrained, sentiment)
    with pytest.raises(BackendDiedError, match=r"started \(no room for another process\): raise the limit"):
        await backend.load(ignore)
    await backend.aclose()


async def test_process_pool_cancelled_batch_does_not_answer_the_next(
    own_pair: ProcessPool, tokenizer: Tokenizer
) -> None:
    for number in (pid_of(own_pair), fork_of(own_pair)):
        os.kill(number, signal.SIGSTOP)
    cancelled = asyncio.create_task(own_pair.run("sentiment", [sentiment_query(tokenizer, "bad")] * 3))
    await asyncio.sleep(0.02)
    cancelled.cancel()
    await asyncio.wait([cancelled])
    for number in (pid_of(own_pair), fork_of(own_pair)):
        os.kill(number, signal.SIGCONT)
    assert len(await own_pair.run("sentiment", [sentiment_query(tokenizer)])) == 1


async def test_process_pool_two_processes_answer_at_the_same_time_and_alike(
    pair: ProcessPool, tokenizer: Tokenizer
) -> None:
    batches = [
        [sentiment_query(tokenizer, "a good film" + " and great" * (i % 5)) for i in range(n)] for n in range(1, 40)
    ]
    first = [await pair.run("sentiment", batch) for batch in batches]
    assert await pair._free.get() == 0  # from here on, the other one
    other = [await pair.run("sentiment", batch) for batch in batches]
    pair._free.put_nowait(0)
    both = await asyncio.gather(*(pair.run("sentiment", batch) for batch in batches))
    for one, two, three in zip(first, other, both, strict=True):
        assert scores(one) == pytest.approx(scores(two), abs=1e-6)
        assert scores(one) == pytest.approx(scores(three), abs=1e-6)


def scores(answers: Sequence[Answer | Exception]) -> list[float]:
    return [answer.scores[0][0] for answer in answers if isinstance(answer, Answer)]


async def test_process_pool_fork_shares_memory(own_pair: ProcessPool, tokenizer: Tokenizer) -> None:
    assert await own_pair._free.get() == 0
    await own_pair.run("sentiment", [sentiment_query(tokenizer)])
    table = Path(f"/proc/{fork_of(own_pair)}/smaps_rollup").read_text()  # noqa: ASYNC240 (a moment)
    size = {line.split(":")[0]: int(line.split()[1]) for line in table.splitlines()[1:]}
    assert size["Private_Dirty"] + size["Private_Clean"] < size["Rss"] / 4


async def test_process_pool_death_of_a_fork_ends_all(pretrained: Path, sentiment: Path) -> None:
    told: list[BackendDiedError] = []
    backend = pool_of(pretrained, sentiment, threads=2)
    await backend.load(told.append)
    os.kill(fork_of(backend), signal.SIGKILL)
    await until(lambda: bool(told))
    assert "memory ran out" in str(told[0])
    await until_gone(pid_of(backend))
    await backend.aclose()


async def test_process_pool_fork_ends_with_the_first_process(own_pair: ProcessPool) -> None:
    other = fork_of(own_pair)
    os.kill(pid_of(own_pair), signal.SIGKILL)
    await until_gone(other)


async def test_process_pool_runs_one_batch_fewer_while_this_process_is_busy(pair: ProcessPool) -> None:
    pair._busy_checked, pair._busy_time = time.monotonic() - 1.0, time.process_time() - 0.6
    assert pair.preferred_concurrent_batches == 1
    pair._busy_checked, pair._busy_time = time.monotonic() - 1.0, time.process_time() - 0.4
    assert pair.preferred_concurrent_batches == 2


async def test_process_pool_only_a_lone_text_in_the_first_process_may_take_all_threads(
    pair: ProcessPool, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fork never does: OpenMP's threads are not forked."""
    query = sentiment_query(tokenizer)
    sent: list[tuple[int, bool]] = []
    exchange = pair._exchange

    async def spy(number: int, request: Any) -> Any:
        sent.append((number, request[2]))
        return await exchange(number, request)

    monkeypatch.setattr(pair, "_exchange", spy)
    await pair.run("sentiment", [query])
    await pair.run("sentiment", [query, query])
    await asyncio.gather(pair.run("sentiment", [query]), pair.run("sentiment", [query]))
    assert sent == [(0, True), (0, False), (0, True), (1, False)]


async def test_logits_and_scores_of_one_batch_are_not_mixed_up(pair: ProcessPool) -> None:
    name, served = next((n, model) for n, model in pair.info.models.items() if Task.SENTIMENT in model.tasks)
    encoding = served.tokenizer.encode("good")
    queries = [Query(Task.SENTIMENT, encoding, raw_scores=raw) for raw in (True, False, True)]
    logits, scores, again = [answer.scores[0] for answer in await pair.run(name, queries) if isinstance(answer, Answer)]
    assert scores == pytest.approx(torch.tensor(logits).softmax(-1).tolist())
    assert logits == again != scores
