"""The backend in a process of its own: what it answers, what it says when it cannot, and how it ends."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from app.backend import TorchBackend
from app.batcher import BackendDiedError, OutOfMemoryError
from app.errors import InferenceError
from app.queries import Query, Task
from app.remote import RemoteBackend, _portable
from app.settings import SettingsError
from model import Tokenizer
from model.errors import CheckpointError

PATIENCE = 120


def remote(pretrained: Path, sentiment: Path, device: str = "cpu") -> RemoteBackend:
    return RemoteBackend(pretrained, sentiment, device=device, dtype="float32", threads=1)


@pytest.fixture
def backend(pretrained: Path, sentiment: Path) -> Iterator[RemoteBackend]:
    made = remote(pretrained, sentiment)
    made.load()
    yield made
    made.close()


def pid_of(backend: RemoteBackend) -> int:
    assert backend._process is not None
    assert backend._process.pid is not None
    return backend._process.pid


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
    passes = backend.forward_passes
    answers = backend.run("pretrained", queries)
    assert answers == here.run("pretrained", queries)
    assert backend.forward_passes == passes + 1
    assert set(backend.models) == set(here.models)
    assert backend.models["pretrained"].config == here.models["pretrained"].config
    assert backend.models["pretrained"].tokenizer.encode("a good film") == tokenizer.encode("a good film")
    assert (backend.device, backend.dtype, backend.threads) == ("cpu", "float32", 1)
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


def test_process_ends_when_nobody_holds_the_backend_any_more(pretrained: Path, sentiment: Path) -> None:
    backend = remote(pretrained, sentiment)
    backend.load()
    pid = pid_of(backend)
    del backend
    gc.collect()
    until_gone(pid)


def test_a_core_is_asked_for_while_this_process_works(pretrained: Path, sentiment: Path) -> None:
    backend = remote(pretrained, sentiment)
    until = time.process_time() + 0.5
    while time.process_time() < until:
        pass
    began = time.monotonic() - backend._looked
    assert backend._needs_a_core() == (0.34 * began < 0.5)  # another process may have had the processor
    time.sleep(1.0)
    assert not backend._needs_a_core()


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
    ],
)
def test_errors_arrive_as_what_they_are_or_at_least_in_words(error: Exception, kind: type[Exception]) -> None:
    arrived = pickle.loads(pickle.dumps(_portable(error)))
    assert type(arrived) is kind
    assert str(error) in str(arrived)
