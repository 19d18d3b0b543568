"""The backend in a process of its own: what it answers, what it says when it cannot, and how it ends."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from app.errors import InferenceError
from app.inference.process_pool import RemoteBackend, _picklable
from app.inference.torch_backend import TorchBackend
from app.inference.types import Answer, Query, Task
from app.scheduling.scheduler import BackendDiedError, OutOfMemoryError
from app.settings import SettingsError
from model import Tokenizer
from model.errors import CheckpointError
from tests.app.process import PATIENCE, children


def remote(
    pretrained: Path, sentiment: Path, device: str = "cpu", threads: int = 1, logs: dict[str, Any] | None = None
) -> RemoteBackend:
    return RemoteBackend(pretrained, sentiment, device=device, dtype="float32", threads=threads, logs=logs)


@pytest.fixture(params=[1, 2])
def backend(request: pytest.FixtureRequest, pretrained: Path, sentiment: Path) -> Iterator[RemoteBackend]:
    """Of one process, or of two."""
    made = remote(pretrained, sentiment, threads=request.param)
    made.load()
    yield made
    made.close()


@pytest.fixture
def pair(pretrained: Path, sentiment: Path) -> Iterator[RemoteBackend]:
    made = remote(pretrained, sentiment, threads=2)
    made.load()
    yield made
    made.close()


def pid_of(backend: RemoteBackend) -> int:
    assert backend._process is not None
    assert backend._process.pid is not None
    return backend._process.pid


def forked(backend: RemoteBackend) -> list[int]:
    return children(pid_of(backend))


def beside(backend: RemoteBackend) -> int:
    """The process that the first one has forked."""
    (found,) = forked(backend)
    return found


def until_gone(pid: int) -> None:
    until = time.monotonic() + PATIENCE
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_answers_are_those_of_the_backend_itself(
    backend: RemoteBackend, pretrained: Path, sentiment: Path, tokenizer: Tokenizer
) -> None:
    here = TorchBackend(pretrained, sentiment, device="cpu", dtype="float32", threads=1)
    here.load()
    text = tokenizer.encode("a good [MASK]")
    mask = text.input_ids.index(tokenizer.mask_id)
    queries = [
        Query(Task.FILL_MASK, text, (mask,), 3),
        Query(Task.NEXT_SENTENCE, tokenizer.encode("a film", "it was good")),
        Query(Task.FILL_MASK, text, (mask,), 2, (5, 6)),
    ]
    answers = backend.run("pretrained", queries)
    assert answers == here.run("pretrained", queries)
    assert set(backend.models) == set(here.models)
    assert backend.models["pretrained"].config == here.models["pretrained"].config
    assert backend.models["pretrained"].tokenizer.encode("a good film") == tokenizer.encode("a good film")
    assert (backend.device, backend.dtype) == ("cpu", "float32")
    assert backend.threads == backend.processes
    assert backend.tokens_per_second > 0


def test_batch_that_fails_leaves_the_process_alive(backend: RemoteBackend, tokenizer: Tokenizer) -> None:
    query = Query(Task.SENTIMENT, tokenizer.encode("good"))
    with pytest.raises(KeyError, match="no such lane") as raised:
        backend.run("no such lane", [query])
    assert "in _compute" in "".join(raised.value.__notes__)  # where it happened, for the log
    assert len(backend.run("sentiment", [query])) == 1


def test_checkpoint_and_device_that_cannot_be_used_are_named(pretrained: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as raised:
        remote(pretrained, tmp_path / "nowhere").load()
    assert raised.value.path.is_relative_to(tmp_path / "nowhere")
    with pytest.raises(SettingsError, match="CUDA device"):
        remote(pretrained, pretrained, "cuda:99").load()


def test_process_that_dies_is_noticed_and_told(backend: RemoteBackend, tokenizer: Tokenizer) -> None:
    told = threading.Event()
    backend.watch(lambda dead, error: told.set() if dead is backend and "-9" in str(error) else None)
    os.kill(pid_of(backend), signal.SIGKILL)
    assert told.wait(PATIENCE)
    with pytest.raises(BackendDiedError, match="exit code -9"):
        backend.run("sentiment", [Query(Task.SENTIMENT, tokenizer.encode("good"))])
    late = threading.Event()
    backend.watch(lambda *_: late.set())
    assert late.is_set()


def test_closing_ends_the_process_without_an_alarm(backend: RemoteBackend) -> None:
    alarms: list[object] = []
    backend.watch(lambda *news: alarms.append(news))
    pid = pid_of(backend)
    backend.close()
    until_gone(pid)
    assert not alarms


def test_closing_at_any_moment_of_loading_ends_it(pretrained: Path, sentiment: Path) -> None:
    for pause in (0.0, 0.001, 0.005, 0.01, 0.02, 0.05, 0.3):
        backend = remote(pretrained, sentiment)
        with ThreadPoolExecutor(1) as pool:
            loading = pool.submit(backend.load)
            time.sleep(pause)
            backend.close()
            with pytest.raises(BackendDiedError):
                loading.result(PATIENCE)


def test_closing_just_after_the_fork_ends_both(pretrained: Path, sentiment: Path) -> None:
    backend = remote(pretrained, sentiment, threads=2)
    with ThreadPoolExecutor(1) as pool:
        loading = pool.submit(backend.load)
        until = time.monotonic() + PATIENCE
        while backend._process is None or backend._process.pid is None or not forked(backend):
            assert time.monotonic() < until
            time.sleep(0.001)
        pids = pid_of(backend), *forked(backend)
        backend.close()
        for pid in pids:
            until_gone(pid)
        if (error := loading.exception(PATIENCE)) is not None:  # or it was loaded in that very moment
            assert isinstance(error, BackendDiedError)


class NoFork:
    """A filter of a log; where it is made, nothing can be forked."""

    def __init__(self) -> None:
        os.fork = self.fork  # type: ignore[assignment]

    def fork(self) -> int:
        raise BlockingIOError(11, "no room for another process")


def test_fork_that_fails_is_told(pretrained: Path, sentiment: Path) -> None:
    logs = {"version": 1, "filters": {"first": {"()": f"{__name__}.NoFork"}}}
    backend = remote(pretrained, sentiment, threads=2, logs=logs)
    with ThreadPoolExecutor(1) as pool, pytest.raises(BlockingIOError, match="no room for another process"):
        pool.submit(backend.load).result(PATIENCE)
    until_gone(pid_of(backend))


def test_processes_end_when_nobody_holds_the_backend_any_more(pretrained: Path, sentiment: Path) -> None:
    backend = remote(pretrained, sentiment, threads=2)
    backend.load()
    pids = pid_of(backend), beside(backend)
    del backend
    gc.collect()
    for pid in pids:
        until_gone(pid)


def test_two_processes_answer_at_the_same_time_and_alike(pair: RemoteBackend, tokenizer: Tokenizer) -> None:
    batches = [
        [Query(Task.SENTIMENT, tokenizer.encode("a good film" + " and great" * (i % 5))) for i in range(n)]
        for n in range(1, 40)
    ]
    first = [list(pair.run("sentiment", batch)) for batch in batches]
    number = pair._free.get()  # from here on, the other one
    assert number == 0
    other = [list(pair.run("sentiment", batch)) for batch in batches]
    pair._free.put(number)
    with ThreadPoolExecutor(2) as pool:
        both = [list(answers) for answers in pool.map(lambda batch: pair.run("sentiment", batch), batches)]
    for one, two, three in zip(first, other, both, strict=True):
        assert scores(one) == pytest.approx(scores(two), abs=1e-6)
        assert scores(one) == pytest.approx(scores(three), abs=1e-6)


def scores(answers: Sequence[Answer | Exception]) -> list[float]:
    return [answer.scores[0][0] for answer in answers if isinstance(answer, Answer)]


def test_process_beside_the_first_shares_its_memory(pair: RemoteBackend, tokenizer: Tokenizer) -> None:
    assert pair._free.get() == 0
    pair.run("sentiment", [Query(Task.SENTIMENT, tokenizer.encode("good"))])
    assert pair._free.get(timeout=PATIENCE) == 1
    table = Path(f"/proc/{beside(pair)}/smaps_rollup").read_text()
    size = {line.split(":")[0]: int(line.split()[1]) for line in table.splitlines()[1:]}
    assert size["Private_Dirty"] + size["Private_Clean"] < size["Rss"] / 4


def test_process_beside_the_first_that_dies_is_noticed_and_told(pair: RemoteBackend, tokenizer: Tokenizer) -> None:
    told = threading.Event()
    pair.watch(lambda *_: told.set())
    first = pid_of(pair)
    os.kill(beside(pair), signal.SIGKILL)
    assert told.wait(PATIENCE)
    until_gone(first)
    with pytest.raises(BackendDiedError, match="exit code 1"):
        pair.run("sentiment", [Query(Task.SENTIMENT, tokenizer.encode("good"))])


def test_process_beside_the_first_ends_with_it(pair: RemoteBackend) -> None:
    other = beside(pair)
    os.kill(pid_of(pair), signal.SIGKILL)
    until_gone(other)


def test_one_batch_fewer_is_under_way_while_this_process_works(pair: RemoteBackend) -> None:
    pair._looked, pair._used = time.monotonic(), time.process_time()
    until = time.process_time() + 0.5
    while time.process_time() < until:
        pass
    began = time.monotonic() - pair._looked
    if not 0.47 < 0.5 / began < 0.53:  # another process may have had the processor
        assert pair.at_once == (1 if 0.5 / began > 0.5 else 2)
    time.sleep(1.2)
    assert pair.at_once == 2


def test_only_the_first_process_and_a_lone_text_may_take_all_threads(
    pair: RemoteBackend, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others never: OpenMP's threads are not forked."""
    query = Query(Task.SENTIMENT, tokenizer.encode("good"))
    said: list[tuple[int, bool]] = []
    send = pair._send

    def spy(number: int, request: Any) -> None:
        said.append((number, request[2]))
        send(number, request)

    monkeypatch.setattr(pair, "_send", spy)
    pair.run("sentiment", [query])
    pair.run("sentiment", [query, query])
    assert pair._free.get() == 0
    monkeypatch.setattr(pair._free, "qsize", lambda: 1)  # the first comes back in this very moment
    pair.run("sentiment", [query])
    assert said == [(0, True), (0, False), (1, False)]


class UnpicklableError(Exception):
    """Wants two arguments, and keeps one."""

    def __init__(self, reason: str, number: int) -> None:
        super().__init__(f"{reason} {number}")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OutOfMemoryError("no room"), OutOfMemoryError),
        (BackendDiedError("device fault"), BackendDiedError),
        (InferenceError("not finite"), InferenceError),
        (CheckpointError(Path("weights"), "is missing"), CheckpointError),
        (UnpicklableError("fault", 7), RuntimeError),
        (torch.OutOfMemoryError("no room for the weights"), RuntimeError),  # to know it is to load torch
    ],
)
def test_errors_arrive_as_what_they_are_or_at_least_in_words(error: Exception, kind: type[Exception]) -> None:
    arrived = pickle.loads(pickle.dumps(_picklable(error)))
    assert type(arrived) is kind
    assert str(error) in str(arrived)
