"""Event files, read by TensorBoard."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.conftest import MakeRecipe
from training.pretrain.run import pretrain

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # protobuf's and tensorboard's own


def test_tensorboard_has_the_figures_of_a_run(make_recipe: MakeRecipe) -> None:
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    recipe = make_recipe("tensorboard=true", "pretrain.tokens=2000")
    assert pretrain(recipe)
    read = accumulators.EventAccumulator(str(recipe.folder / "pretrain" / "tensorboard")).Reload()
    tags = read.Tags()
    assert {"train/loss", "train/matmul_utilisation", "evaluation/stories/mlm_loss"} <= set(tags["scalars"])


def test_tensorboard_does_not_change_the_weights(make_recipe_in: MakeRecipe, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    files = []
    for flag in ("true", "false"):
        recipe = make_recipe_in(tmp_path / flag, f"tensorboard={flag}", "pretrain.tokens=2000")
        pretrain(recipe)
        files.append((recipe.folder / "pretrained" / "model.safetensors").read_bytes())
    assert files[0] == files[1]
