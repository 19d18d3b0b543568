"""`prepare` on a Ray cluster of two nodes: the same shards as on one machine, also when a worker dies."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.training.corpus.test_prepare import TOKENIZER, recipe, write_documents
from training.corpus import inputs as inputs_module
from training.corpus.prepare import prepare
from training.errors import CorpusError

pytest.importorskip("ray", reason="needs the extra `cluster`: run make test-cluster")
pytestmark = [pytest.mark.cluster, pytest.mark.filterwarnings("ignore")]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(inputs_module, "SHARD_CHARACTERS", 2000)
    for number, name in enumerate(("a", "b")):
        write_documents(tmp_path / "data" / f"{name}.jsonl", 300, seed=number)
    return tmp_path


def prepared(root: Path, address: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    monkeypatch.setenv("RAY_ADDRESS", address)
    folder = root / (address or "local")
    prepare(recipe(root), TOKENIZER, folder)
    return contents(folder)


def test_shards_are_those_of_one_machine(cluster: Any, texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = prepared(texts, cluster.address, monkeypatch)
    assert len([name for name in made if name.endswith("tokens.npy")]) > 20
    assert made == prepared(texts, "", monkeypatch)


def test_shard_of_a_worker_that_dies_is_made_again(
    cluster: Any, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from training.corpus.engines import ray as engine

    make, victim = engine.make_in_worker, tmp_path / "died"

    def die_once(tokenizer: str, store: Path, shard_input: Any) -> Any:
        if shard_input.number == 5 and not victim.exists():
            victim.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return make(tokenizer, store, shard_input)

    monkeypatch.setattr(engine, "make_in_worker", die_once)
    made = prepared(texts, cluster.address, monkeypatch)
    assert victim.exists()
    assert made == prepared(texts, "", monkeypatch)


def test_folder_that_another_node_does_not_share_is_an_error(
    cluster: Any, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from training.corpus.engines import ray as engine

    make, elsewhere = engine.make_in_worker, tmp_path / "elsewhere"
    monkeypatch.setattr(engine, "make_in_worker", lambda encoder, store, text: make(encoder, elsewhere, text))
    with pytest.raises(CorpusError, match="another folder on some node of the Ray cluster: share it"):
        prepared(texts, cluster.address, monkeypatch)
