"""Training on a GPU."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from model import Tokenizer, load_checkpoint
from tests.training.conftest import MakeRecipe
from tests.training.stages import made
from tests.training.texts import squeezed
from training.corpus.reader import PreparedText
from training.examples.loader import MicroBatches, made_ahead
from training.examples.masking import Vocabulary
from training.examples.pretraining import PretrainingStream
from training.loop.log import RunLog
from training.loop.trainer import TrainConfig, Trainer
from training.pipeline import Pipeline
from training.pretrain.run import new_model
from training.pretrain.task import PretrainingLoss
from training.recipe import Recipe
from training.runtime.device import maybe_compile
from training.runtime.distributed import DistContext

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"),
    pytest.mark.filterwarnings("default"),  # torch warns in its compiler
]
SHAPE = ("model.hidden_size=64", "device=cuda")


def make_trainer(recipe: Recipe, *, compiled: bool, cuda_graphs: bool = False, taught: bool = False) -> Trainer:
    """A trainer as `pretrain` makes it, without evaluations."""
    tokenizer = Tokenizer.load(recipe.folder / "tokenizer")
    text = PreparedText(recipe.folder / "corpus", use="train")
    stream = PretrainingStream(text, Vocabulary.of(tokenizer), recipe.pretrain.examples, 1, recipe.micro_batch_tokens)
    teacher = new_model(recipe, tokenizer).encoder if taught else None
    loss = PretrainingLoss(new_model(recipe, tokenizer), teacher).to("cuda")
    if compiled:
        maybe_compile(loss, cuda_graphs=cuda_graphs)
    config = TrainConfig(10**9, 512, recipe.micro_batch_tokens, 1e-3, 0.1)
    return Trainer(loss, stream, config, recipe.folder / "pretrain", dist=DistContext())


@pytest.mark.parametrize("taught", [True, False])
@pytest.mark.parametrize("compiled", [True, False])
def test_trainer_step_never_waits_for_the_gpu(make_recipe: MakeRecipe, compiled: bool, taught: bool) -> None:
    trainer = make_trainer(make_recipe(*SHAPE), compiled=compiled, taught=taught)
    batches = made_ahead(MicroBatches(trainer.stream, total=100), trainer.device)
    for _ in range(4):
        trainer._step(batches)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            trainer._step(batches)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    trainer._window.count_skipped(trainer.state)


@pytest.mark.parametrize("change", ["cuda_graphs", "half_residual"])
def test_trainer_with_a_switch_on_has_the_same_losses(make_recipe_in: MakeRecipe, tmp_path: Path, change: str) -> None:
    losses = []
    for on in (None, change):
        recipe = make_recipe_in(tmp_path / str(on), *SHAPE)
        trainer = make_trainer(recipe, compiled=True, cuda_graphs=on == "cuda_graphs")
        trainer.loss.model.encoder.half_residual = on == "half_residual"
        batches = made_ahead(MicroBatches(trainer.stream, total=100), trainer.device)
        for _ in range(8):
            trainer._step(batches)
        losses.append(trainer._window.summary(trainer.state, trainer._window.sums())["loss"])
    assert losses[0] == pytest.approx(losses[1], rel=0.01)


def test_pretrain_learns(make_recipe: MakeRecipe) -> None:
    recipe = make_recipe(*SHAPE, "pretrain.learning_rate=0.01", "pretrain.tokens=51200")
    assert made(recipe, "pretrain")
    folder = Pipeline(recipe).pretrain.folder
    losses = [line["mlm_loss"] for line in RunLog(folder / "log.jsonl") if line["event"] == "train"]
    assert losses[-1] < min(losses[0], math.log(200) - 1), "below that of a uniform guess"
    assert load_checkpoint(recipe.folder / "pretrained").config.hidden_size == 64


def test_pretrain_changes_the_mask_rate_within_one_shape(make_recipe: MakeRecipe) -> None:
    rates = ("pretrain.examples.mask_fraction=0.2", "pretrain.examples.final_mask_fraction=0.1")
    assert made(make_recipe(*SHAPE, *rates), "pretrain")


@pytest.mark.parametrize("dropout", ["0.0", "0.1"])
def test_finetune_and_evaluate(make_recipe: MakeRecipe, capsys: pytest.CaptureFixture[str], dropout: str) -> None:
    recipe = make_recipe(*SHAPE, "pretrain.tokens=2560", f"pretrain.dropout={dropout}")
    assert made(recipe, "pretrain", "finetune", "evaluate")
    assert "| reviews | 20 |" in squeezed(capsys.readouterr().out)
