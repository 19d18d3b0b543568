"""The backend in a process of its own: what it answers, what it says when it cannot, and how it ends."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import signal
import socket
import sys
import time
import weakref
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest
import pytest_asyncio
import torch

from app.errors import BackendDiedError, ProcessDiedError, UnavailableError
from app.inference import process_main
from app.inference.contract import BackendConfig, BackendInfo, BatchResult, Head, Part, Query, Words
from app.inference.frames import read_batch
from app.inference.process_main import pickled
from app.inference.process_pool import ProcessPool
from app.inference.processes import InferenceProcess
from app.inference.torch_backend import TorchBackend
from model import Tokenizer
from tests.app.backends import computed
from tests.app.process import PATIENCE, WITHOUT_TORCH, children
from tests.app.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")


def ignore(_: BackendDiedError) -> None:
    """Of a test that expects no death, or looks for it elsewhere."""


def nothing() -> None:
    """Of a test that looks for processes itself."""


def free(pool: ProcessPool) -> list[int]:
    """The numbers of the processes that compute nothing."""
    return sorted(number for number, process in pool._processes.items() if not process.replies)


@contextmanager
def without_first(pool: ProcessPool) -> Iterator[None]:
    """Keep batches from process 0."""
    first = pool._processes.pop(0)
    yield
    pool._processes[0] = first


async def run(pool: ProcessPool, parts: list[Part]) -> BatchResult:
    """As an engine does: a batch starts when a process is free."""
    await until(lambda: free(pool))
    return await pool.run("sentiment", parts)


def pool_of(pretrained: Path, sentiment: Path, threads: int = 1, logs: dict[str, Any] | None = None) -> ProcessPool:
    return ProcessPool(BackendConfig(pretrained, sentiment, "cpu", "float32", threads, logs))


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


@pytest.fixture
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes start faster, for tests that need no scores."""
    monkeypatch.setenv("PYTHONPATH", WITHOUT_TORCH["PYTHONPATH"])


@pytest_asyncio.fixture(loop_scope="module")
async def own_pair(without_torch: None, pretrained: Path, sentiment: Path) -> AsyncIterator[ProcessPool]:
    """Of two processes, for one test."""
    async with loaded(pretrained, sentiment, threads=2) as pool:
        yield pool


@asynccontextmanager
async def loaded(pretrained: Path, sentiment: Path, threads: int) -> AsyncIterator[ProcessPool]:
    pool = pool_of(pretrained, sentiment, threads=threads)
    await pool.load(ignore, nothing)
    yield pool
    await pool.aclose()


def server_of(backend: ProcessPool) -> int:
    """The fork server."""
    assert backend._fork_server is not None
    assert backend._fork_server._process.pid is not None
    return backend._fork_server._process.pid


def pids_of(backend: ProcessPool) -> list[int]:
    """The processes that compute, in the order of their numbers."""
    return [process.pid for _, process in sorted(backend._processes.items())]


async def stop(pid: int) -> None:
    """Stop a process. The signal takes a moment to reach all its threads."""
    os.kill(pid, signal.SIGSTOP)
    await until(lambda: all("State:\tT" in file.read_text() for file in Path(f"/proc/{pid}/task").glob("*/status")))


async def until_gone(pid: int) -> None:
    await until(lambda: not Path(f"/proc/{pid}").exists())


def sentiment_part(tokenizer: Tokenizer, text: str = "good") -> Part:
    return Part(Query([tokenizer.encode(text, spans=False)], labels=2), 0, 1)


async def test_process_pool_answers_as_the_models_in_this_process_do(
    backend: ProcessPool, pretrained: Path, sentiment: Path, tokenizer: Tokenizer
) -> None:
    here = TorchBackend(BackendConfig(pretrained, sentiment, device="cpu", dtype="float32", threads=1))
    here.load()
    text = tokenizer.encode("a good [MASK]")
    mask = text.input_ids.index(tokenizer.mask_id)
    pair = Query([tokenizer.encode("a film", "it was good")], labels=2)
    parts = [
        Part(Query([text], masks=[(mask,)], top_k=3), 0, 1),
        Part(pair, 0, 1),
        Part(Query([text], masks=[(mask,)], top_k=2, targets=(5, 6)), 0, 1),
    ]
    assert (await backend.run("pretrained", parts)).outputs == computed(here, "pretrained", parts).outputs
    assert set(backend.info.models) == set(here.info.models)
    assert backend.info.models["pretrained"].config == here.info.models["pretrained"].config
    assert backend.info.models["pretrained"].tokenizer.encode("a good film") == tokenizer.encode("a good film")
    assert (backend.info.device, backend.info.dtype) == ("cpu", "float32")
    assert backend.info.threads == backend.info.processes
    assert backend.info.tokens_per_second > 0


async def test_process_pool_large_batch_and_large_answer_arrive_whole(pair: ProcessPool, tokenizer: Tokenizer) -> None:
    text = tokenizer.encode("a [MASK]")
    masks = [(text.ids.index(tokenizer.mask_id),)] * 2000
    query = Query([text] * 2000, masks=masks, top_k=50)
    ((*answers,),) = (await pair.run("pretrained", [Part(query, 0, 2000)])).outputs
    assert len(answers) == 2000
    assert all(isinstance(answer, Words) and len(answer.scores) == 50 for answer in answers)


async def test_process_pool_batch_that_fails_leaves_the_process_alive(
    backend: ProcessPool, tokenizer: Tokenizer
) -> None:
    part, bad = sentiment_part(tokenizer), sentiment_part(tokenizer)
    bad.query.encodings[0].ids[1] = 1_000_000
    with pytest.raises(IndexError) as raised:
        await backend.run("sentiment", [part, bad])
    assert "in _scores" in "".join(raised.value.__notes__)  # where it happened, for the log
    assert len((await backend.run("sentiment", [part])).outputs) == 1


@pytest.mark.parametrize("victim", [0, 1])
async def test_process_pool_process_that_ends_fails_its_batch_and_is_replaced(
    victim: int, own_pair: ProcessPool, tokenizer: Tokenizer
) -> None:
    query = sentiment_part(tokenizer)
    server, pids = server_of(own_pair), pids_of(own_pair)
    for pid in pids:
        await stop(pid)
    asked = [asyncio.create_task(run(own_pair, [query])) for _ in range(5)]
    await until(lambda: not free(own_pair))
    os.kill(pids[victim], signal.SIGKILL)
    with pytest.raises(ProcessDiedError, match="one by one"):
        await asked[victim]
    await until(lambda: len(pids_of(own_pair)) == 2 and pids_of(own_pair)[victim] != pids[victim])
    os.kill(pids[1 - victim], signal.SIGCONT)
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert [isinstance(answer, BatchResult) for answer in answers] == [i != victim for i in range(5)]
    assert server_of(own_pair) == server
    assert sorted(children(server)) == sorted(pids_of(own_pair))


async def test_process_pool_idle_process_that_ends_fails_no_batch(own_pair: ProcessPool, tokenizer: Tokenizer) -> None:
    pids = pids_of(own_pair)
    os.kill(pids[0], signal.SIGKILL)
    await until(lambda: len(pids_of(own_pair)) == 2 and pids_of(own_pair)[0] != pids[0])
    both = await asyncio.gather(*(own_pair.run("sentiment", [sentiment_part(tokenizer)]) for _ in range(2)))
    assert [len(result.outputs) for result in both] == [1, 1]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.usefixtures("without_torch")
async def test_process_pool_loads_again_when_the_fork_server_ends(
    threads: int, pretrained: Path, sentiment: Path, tokenizer: Tokenizer
) -> None:
    async with loaded(pretrained, sentiment, threads) as pool:
        first, started = server_of(pool), asyncio.Event()
        pool._on_start = started.set
        assert pool.slots == threads
        os.kill(first, signal.SIGKILL)
        await until(lambda: not pool.slots)
        started.clear()
        await started.wait()
        assert len((await pool.run("sentiment", [sentiment_part(tokenizer)])).outputs) == 1
        assert server_of(pool) != first
        await until(lambda: pool.slots == threads)
        assert len(pool._deaths) == 1


async def test_process_pool_ends_when_processes_end_over_and_over(
    pretrained: Path, sentiment: Path, tokenizer: Tokenizer
) -> None:
    """The batch of the last one fails before the end is told: what it may have caused must not be repeated."""
    told: list[tuple[BackendDiedError, bool]] = []
    asked: asyncio.Task[BatchResult]
    pool = pool_of(pretrained, sentiment, threads=2)
    await pool.load(lambda error: told.append((error, asked.done())), nothing)
    for _ in range(3):
        assert not told
        before = pids_of(pool)
        await stop(before[0])
        asked = asyncio.create_task(pool.run("sentiment", [sentiment_part(tokenizer)]))
        await until(lambda: 0 not in free(pool))
        os.kill(before[0], signal.SIGKILL)
        with pytest.raises(ProcessDiedError):
            await asked
        await until(lambda: bool(told) or (len(pids_of(pool)) == 2 and pids_of(pool) != before))  # noqa: B023
    ((error, was_failed),) = told
    assert "inference processes ended 3 times within 60 s" in str(error)
    assert was_failed
    with pytest.raises(BackendDiedError, match="3 times"):
        await pool.run("sentiment", [sentiment_part(tokenizer)])
    await pool.aclose()
    assert len(told) == 1


async def test_process_pool_ends_if_other_checkpoints_are_there_when_it_loads_again(
    save_sentiment: Any, pretrained: Path, tmp_path: Path
) -> None:
    link = tmp_path / "current"
    link.symlink_to(save_sentiment("before"))
    told: list[BackendDiedError] = []
    pool = pool_of(pretrained, link)
    await pool.load(told.append, nothing)
    link.unlink()
    link.symlink_to(save_sentiment("after", id2label={0: "a", 1: "b", 2: "c"}))
    os.kill(server_of(pool), signal.SIGKILL)
    await until(lambda: bool(told))
    assert "the checkpoints have changed" in str(told[0])
    await pool.aclose()


async def test_process_pool_kills_a_process_that_hangs(own_pair: ProcessPool, tokenizer: Tokenizer) -> None:
    pids = pids_of(own_pair)
    await stop(pids[0])
    asked = asyncio.create_task(own_pair.run("sentiment", [sentiment_part(tokenizer)]))
    assert own_pair.computing_since is None
    await until(lambda: 0 not in free(own_pair))
    assert own_pair.computing_since == own_pair._processes[0].computing_since is not None
    own_pair.kill_hung(PATIENCE)
    assert not asked.done()
    own_pair.kill_hung(0)
    with pytest.raises(ProcessDiedError):
        await asked
    await until(lambda: len(pids_of(own_pair)) == 2)
    assert pids_of(own_pair)[1] == pids[1]


async def test_process_pool_hung_process_does_not_block_the_event_loop(
    own_pair: ProcessPool, tokenizer: Tokenizer
) -> None:
    """Also if it hangs before it has read a request that is larger than the connection's buffers."""
    pids = pids_of(own_pair)
    await stop(pids[0])
    asked = asyncio.create_task(own_pair.run("sentiment", [sentiment_part(tokenizer, "good " * 60)] * 20_000))
    await until(lambda: 0 not in free(own_pair))
    other = await own_pair.run("sentiment", [sentiment_part(tokenizer)])
    assert len(other.outputs) == 1
    assert not asked.done()
    os.kill(pids[0], signal.SIGKILL)
    with pytest.raises(ProcessDiedError):
        await asked


@pytest.mark.usefixtures("without_torch")
async def test_process_pool_closing_ends_the_processes_without_an_alarm(pretrained: Path, sentiment: Path) -> None:
    alarms: list[object] = []
    backend = pool_of(pretrained, sentiment, threads=2)
    await backend.load(alarms.append, nothing)
    pids = [server_of(backend), *pids_of(backend)]
    await backend.aclose()
    for pid in pids:
        await until_gone(pid)
    assert not alarms


@pytest.mark.usefixtures("without_torch")
async def test_process_pool_that_was_closed_is_in_no_reference_cycle(
    pretrained: Path, sentiment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a reload keeps it: it freezes all objects."""
    pool = pool_of(pretrained, sentiment, threads=2)
    await pool.load(ignore, nothing)
    server, closed = pool._fork_server, weakref.ref(pool)
    assert server is not None
    gc.collect()
    gc.disable()
    try:
        with monkeypatch.context() as patch:  # closing does not wait, so its tasks do not see the processes' end
            patch.setattr(server, "exit_reason", AsyncMock())
            await pool.aclose()
        del pool
        await until(lambda: closed() is None)
    finally:
        gc.enable()
        await server.exit_reason()


async def test_process_pool_closing_fails_what_is_computed(own_pair: ProcessPool, tokenizer: Tokenizer) -> None:
    for pid in pids_of(own_pair):
        await stop(pid)
    asked = [asyncio.create_task(own_pair.run("sentiment", [sentiment_part(tokenizer)])) for _ in range(2)]
    await until(lambda: not free(own_pair))
    await own_pair.aclose()
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(answer) for answer in answers] == [BackendDiedError] * 2


async def test_process_that_is_no_longer_listened_to_fails_its_batch() -> None:
    ours, theirs = socket.socketpair()
    process = InferenceProcess(*await asyncio.open_connection(sock=ours))
    listening = asyncio.create_task(process.deliver_replies())
    asked = asyncio.create_task(process.ask(b"anything"))
    await asyncio.sleep(0)
    listening.cancel()
    with pytest.raises(ProcessDiedError):
        await asked
    theirs.close()


@pytest.mark.usefixtures("without_torch")
async def test_process_pool_closing_at_any_moment_of_loading_ends_it(pretrained: Path, sentiment: Path) -> None:
    for pause in (0.0, 0.01, 0.05, 0.3):
        backend = pool_of(pretrained, sentiment)
        loading = asyncio.create_task(backend.load(ignore, nothing))
        await asyncio.sleep(pause)
        await backend.aclose()
        with suppress(BackendDiedError):  # it may have been loaded before that
            await loading
        with pytest.raises(BackendDiedError):
            await backend.load(ignore, nothing)


@pytest.mark.usefixtures("without_torch")
async def test_process_pool_closing_just_after_the_fork_ends_all(pretrained: Path, sentiment: Path) -> None:
    backend = pool_of(pretrained, sentiment, threads=2)
    loading = asyncio.create_task(backend.load(ignore, nothing))
    await until(lambda: backend._fork_server is not None and bool(children(server_of(backend))))
    pids = server_of(backend), *children(server_of(backend))
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


@pytest.mark.usefixtures("without_torch")
async def test_process_pool_fork_that_fails_is_told(pretrained: Path, sentiment: Path) -> None:
    logs = {"version": 1, "filters": {"first": {"()": f"{__name__}.NoFork"}}}
    backend = pool_of(pretrained, sentiment, threads=2, logs=logs)
    with pytest.raises(BlockingIOError, match="no room for another process"):
        await backend.load(ignore, nothing)
    await backend.aclose()


class LoadsInSlowlyEndingThread:
    """A filter of a log; where it is made, the thread that loads takes a moment to end, and nothing can be forked
    before."""

    def __init__(self) -> None:
        self.free = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: time.sleep(0.3))
        self.key = ctypes.c_uint()
        self.system = ctypes.CDLL(None)
        self.system.pthread_key_create(ctypes.byref(self.key), self.free)
        self.threads = set(Path("/proc/self/task").iterdir())
        self.real_load, self.real_fork = process_main._load, os.fork
        process_main._load, os.fork = self.load, self.fork

    def load(self, backend: TorchBackend) -> BackendInfo | Exception:
        self.system.pthread_setspecific(self.key, ctypes.c_void_p(1))
        return self.real_load(backend)

    def fork(self) -> int:
        if not self.threads.issuperset(Path("/proc/self/task").iterdir()):
            raise BlockingIOError(11, "a thread has not ended")
        return self.real_fork()


@pytest.mark.usefixtures("without_torch")
async def test_process_pool_forks_after_the_loading_thread_has_ended(
    pretrained: Path, sentiment: Path, tokenizer: Tokenizer
) -> None:
    logs = {"version": 1, "filters": {"first": {"()": f"{__name__}.LoadsInSlowlyEndingThread"}}}
    backend = pool_of(pretrained, sentiment, threads=2, logs=logs)
    await backend.load(ignore, nothing)
    assert len((await backend.run("sentiment", [sentiment_part(tokenizer)])).outputs) == 1
    await backend.aclose()


class NotLinux:
    """A filter of a log; where it is made, the system has no fork, and so computes in one process as with a GPU."""

    def __init__(self) -> None:
        sys.platform = "darwin"


@pytest.mark.usefixtures("without_torch")
async def test_process_pool_that_does_not_fork_computes_in_the_process_that_loads(
    pretrained: Path, sentiment: Path, tokenizer: Tokenizer
) -> None:
    logs = {"version": 1, "filters": {"first": {"()": f"{__name__}.NotLinux"}}}
    told: list[BackendDiedError] = []
    backend = pool_of(pretrained, sentiment, threads=4, logs=logs)
    await backend.load(told.append, nothing)
    assert (backend.info.processes, backend.info.threads) == (1, 4)
    first = server_of(backend)
    assert pids_of(backend) == [first]
    await stop(first)
    asked = asyncio.create_task(backend.run("sentiment", [sentiment_part(tokenizer)]))
    await until(lambda: not free(backend))
    os.kill(first, signal.SIGKILL)
    with pytest.raises(ProcessDiedError):
        await asked
    with pytest.raises(UnavailableError):  # an engine asks for the free process before it takes inputs
        await backend.run("sentiment", [sentiment_part(tokenizer)])
    assert len((await run(backend, [sentiment_part(tokenizer)])).outputs) == 1
    assert pids_of(backend) == [server_of(backend)] != [first]
    assert not told
    assert len(backend._deaths) == 1
    await backend.aclose()


async def test_process_pool_that_cannot_start_a_process_says_so_and_closes(
    pretrained: Path, sentiment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise BlockingIOError(11, "no room for another process")

    monkeypatch.setattr("multiprocessing.context.SpawnProcess.start", fail)
    backend = pool_of(pretrained, sentiment)
    with pytest.raises(BackendDiedError, match=r"started \(no room for another process\): raise the limit"):
        await backend.load(ignore, nothing)
    await backend.aclose()


async def test_process_pool_cancelled_batch_does_not_answer_the_next(
    own_pair: ProcessPool, tokenizer: Tokenizer
) -> None:
    for pid in pids_of(own_pair):
        await stop(pid)
    cancelled = [
        asyncio.create_task(own_pair.run("sentiment", [sentiment_part(tokenizer, "bad")] * 3)) for _ in range(2)
    ]
    await until(lambda: not free(own_pair))
    for task in cancelled:
        task.cancel()
    await asyncio.wait(cancelled)
    for pid in pids_of(own_pair):
        os.kill(pid, signal.SIGCONT)
    assert len((await run(own_pair, [sentiment_part(tokenizer)])).outputs) == 1
    await until(lambda: len(free(own_pair)) == 2)


async def test_process_pool_two_processes_answer_at_the_same_time_and_alike(
    pair: ProcessPool, tokenizer: Tokenizer
) -> None:
    batches = [
        [sentiment_part(tokenizer, "a good film" + " and great" * (i % 5)) for i in range(n)] for n in range(1, 40)
    ]
    first = [await pair.run("sentiment", batch) for batch in batches]
    with without_first(pair):
        other = [await pair.run("sentiment", batch) for batch in batches]
    both = await asyncio.gather(*(run(pair, batch) for batch in batches))
    for one, two, three in zip(first, other, both, strict=True):
        assert scores(one) == pytest.approx(scores(two), abs=1e-6)
        assert scores(one) == pytest.approx(scores(three), abs=1e-6)


def scores(result: BatchResult) -> list[float]:
    return [answer[0] for (answer,) in result.outputs if isinstance(answer, list)]


async def test_process_pool_forks_share_memory(pair: ProcessPool, tokenizer: Tokenizer) -> None:
    with without_first(pair):
        await pair.run("sentiment", [sentiment_part(tokenizer)])
    table = Path(f"/proc/{pids_of(pair)[1]}/smaps_rollup").read_text()  # noqa: ASYNC240 (a moment)
    size = {line.split(":")[0]: int(line.split()[1]) for line in table.splitlines()[1:]}
    assert size["Private_Dirty"] + size["Private_Clean"] < size["Rss"] / 4


async def test_process_pool_lone_text_is_computed_with_all_threads(pair: ProcessPool, tokenizer: Tokenizer) -> None:
    """OpenMP's threads are not forked: process 0 starts its own."""
    (pid, _) = pids_of(pair)
    assert len(list(Path(f"/proc/{pid}/task").iterdir())) > 1  # noqa: ASYNC240 (a moment)
    long = sentiment_part(tokenizer, "good " * 60)
    assert scores(await pair.run("sentiment", [long])) == pytest.approx(
        scores(await pair.run("sentiment", [long, long]))[:1], abs=1e-5
    )


async def test_process_pool_processes_give_way_to_this_one(pair: ProcessPool) -> None:
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    assert [os.getpriority(os.PRIO_PROCESS, pid) for pid in pids_of(pair)] == [min(nice + 5, 19)] * 2


async def test_process_pool_only_a_lone_text_in_process_0_may_take_all_threads(
    pair: ProcessPool, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While no other batch is computed."""
    query = sentiment_part(tokenizer)
    sent: list[tuple[int, bool]] = []
    ask = InferenceProcess.ask

    async def spy(process: InferenceProcess, batch: bytes) -> bytes:
        sent.append((pids_of(pair).index(process.pid), read_batch(batch).alone))
        return await ask(process, batch)

    monkeypatch.setattr(InferenceProcess, "ask", spy)
    await pair.run("sentiment", [query])
    await pair.run("sentiment", [query, query])
    await asyncio.gather(pair.run("sentiment", [query]), pair.run("sentiment", [query]))
    assert sent == [(0, True), (0, False), (0, True), (1, False)]


async def test_logits_and_scores_of_one_batch_are_not_mixed_up(pair: ProcessPool) -> None:
    name, served = next((n, model) for n, model in pair.info.models.items() if Head.LABELS in model.heads)
    encoding = served.tokenizer.encode("good")
    result = await pair.run(name, [Part(Query([encoding], 2, logits), 0, 1) for logits in (True, False, True)])
    logits, scores, again = [answer for (answer,) in result.outputs if isinstance(answer, list)]
    assert scores == pytest.approx(torch.tensor(logits).softmax(-1).tolist())
    assert logits == again != scores


async def test_process_pool_tells_how_long_each_process_computes(own_pair: ProcessPool, tokenizer: Tokenizer) -> None:
    before = own_pair.process_seconds()
    assert [computed for computed, _ in before.values()] == [0.0, 0.0]
    results = [await own_pair.run("sentiment", [sentiment_part(tokenizer)]) for _ in range(3)]
    after = own_pair.process_seconds()
    assert after[0][0] == pytest.approx(sum(result.seconds for result in results))
    assert after[1][0] == 0
    assert after[1][1] > before[1][1] > 0
    assert min(result.seconds for result in results) > 0


async def test_process_pool_seconds_of_a_batch_are_the_processs_own(
    own_pair: ProcessPool, tokenizer: Tokenizer
) -> None:
    first = pids_of(own_pair)[0]
    await stop(first)
    asked = asyncio.create_task(own_pair.run("sentiment", [sentiment_part(tokenizer)]))
    await until(lambda: 0 not in free(own_pair))
    os.kill(first, signal.SIGCONT)
    time.sleep(2)  # noqa: ASYNC251 (the event loop is busy, or the system is)
    assert (await asked).seconds < 2


async def test_process_with_two_batches_in_flight_answers_in_their_order() -> None:
    ours, theirs = socket.socketpair()
    process = InferenceProcess(*await asyncio.open_connection(sock=ours))
    listening = asyncio.create_task(process.deliver_replies())
    first, second, third = (asyncio.create_task(process.ask(b"a batch")) for _ in range(3))
    await asyncio.sleep(0)
    since = process.computing_since
    theirs.sendall(pickled(b"one") + pickled(ValueError("two")))
    assert await first == b"one"
    with pytest.raises(ValueError, match="two"):
        await second
    assert len(process.replies) == 1
    assert process.computing_since is not None
    assert since is not None
    assert process.computing_since > since, "the third is computed only since then"
    theirs.close()
    with pytest.raises(ProcessDiedError):
        await third
    await listening
    assert not process.replies
