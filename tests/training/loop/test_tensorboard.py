"""Event files, read by TensorBoard."""

from __future__ import annotations

import builtins
from pathlib import Path

import pytest
import torch

from tests.training.conftest import MakeRecipe
from training.errors import RunError
from training.loop.tensorboard import Board
from training.pretrain.run import pretrain

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # protobuf's and tensorboard's own


def test_board_has_the_figures_of_a_run(make_recipe: MakeRecipe) -> None:
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    recipe = make_recipe("tensorboard=true", "pretrain.tokens=2000")
    assert pretrain(recipe)
    read = accumulators.EventAccumulator(str(recipe.folder / "pretrain" / "tensorboard")).Reload()
    tags = read.Tags()
    assert {"train/loss", "train/matmul_utilisation", "evaluation/stories/mlm_loss"} <= set(tags["scalars"])


def test_board_does_not_change_the_weights(make_recipe_in: MakeRecipe, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    files = []
    for flag in ("true", "false"):
        recipe = make_recipe_in(tmp_path / flag, f"tensorboard={flag}", "pretrain.tokens=2000")
        pretrain(recipe)
        files.append((recipe.folder / "pretrained" / "model.safetensors").read_bytes())
    assert files[0] == files[1]


def test_board_without_tensorboard_names_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    true_import = builtins.__import__

    def no_tensorboard(name: str, *arguments: object, **keywords: object) -> object:
        if name == "torch.utils.tensorboard":
            raise ImportError(name)
        return true_import(name, *arguments, **keywords)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", no_tensorboard)
    with pytest.raises(RunError, match="pip install tensorboard"):
        Board(tmp_path)
    assert torch.is_grad_enabled()
