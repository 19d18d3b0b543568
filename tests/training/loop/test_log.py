"""The log of a run, over resumes, and its event files for TensorBoard."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.training.conftest import MakeRecipe
from tests.training.stages import made
from training.errors import RunError
from training.loop.checkpoint import TrainState
from training.loop.log import RunLog, flatten

PROTOBUF = "ignore::DeprecationWarning"
"""Protobuf's and tensorboard's own."""


def test_run_log_lines_are_read_back(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "deep" / "log.jsonl")
    log.write("train", TrainState(step=3, tokens=30, seconds=60), {"loss": 1.5})
    assert list(log) == [{"event": "train", "step": 3, "tokens": 30, "minutes": 1.0, "loss": 1.5}]


def test_run_log_rewind_makes_the_folder_where_another_node_has_written_until_now(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "seed-1" / "log.jsonl")
    log.rewind(3)
    assert list(log) == []


def test_run_log_rewind_drops_later_and_incomplete_lines(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "log.jsonl")
    for step in (1, 2, 3):
        log.write("train", TrainState(step=step), {})
    log.file.write_text(log.file.read_text() + '{"event": "tra')
    log.rewind(2)
    assert [line["step"] for line in log] == [1, 2]
    assert log.file.read_text().endswith("\n")


def test_flatten_joins_nested_keys() -> None:
    flat = flatten({"seed": 1, "pretrain": {"batch_tokens": 2, "examples": {"short_length": 8}}})
    assert flat == {"seed": 1, "pretrain.batch_tokens": 2, "pretrain.examples.short_length": 8}


def test_run_log_without_tensorboard_installed_names_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)  # as if it were not installed
    with pytest.raises(RunError, match="pip install tensorboard"):
        RunLog(tmp_path / "log.jsonl", tensorboard=True)


@pytest.mark.filterwarnings(PROTOBUF)
def test_run_log_with_tensorboard_writes_the_figures_of_a_run(make_recipe: MakeRecipe) -> None:
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    recipe = make_recipe("tensorboard=true", "pretrain.tokens=2000")
    assert made(recipe, "pretrain")
    read = accumulators.EventAccumulator(str(recipe.folder / "pretrain" / "tensorboard")).Reload()
    tags = read.Tags()
    assert {"train/loss", "train/matmul_utilisation", "evaluation/stories/mlm_loss"} <= set(tags["scalars"])


@pytest.mark.filterwarnings(PROTOBUF)
def test_run_log_with_tensorboard_does_not_change_the_weights(make_recipe_in: MakeRecipe, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    files = []
    for flag in ("true", "false"):
        recipe = make_recipe_in(tmp_path / flag, f"tensorboard={flag}", "pretrain.tokens=2000")
        assert made(recipe, "pretrain")
        files.append((recipe.folder / "pretrained" / "model.safetensors").read_bytes())
    assert files[0] == files[1]
