"""Training on a GPU: what no CPU can show."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from training.evaluate.report import evaluate

from model import Tokenizer, load_checkpoint
from tests.training.conftest import MakeRecipe
from training.corpus.prepare import Corpus
from training.finetune.run import finetune
from training.loop.log import RunLog, Window
from training.loop.optimizer import make_optimizer
from training.loop.trainer import Budget, Loop
from training.pretrain.run import new_model, pretrain
from training.pretrain.task import PretrainingTask
from training.recipe import Recipe

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"),
    pytest.mark.filterwarnings("default"),  # torch's own, in its compiler and on forking
]
SHAPE = ("model.hidden_size=64", "model.num_attention_heads=2", "device=cuda")


def trained_loop(recipe: Recipe, log: Path) -> Loop:  # type: ignore[type-arg]
    """A loop as `pretrain` makes it, some steps after its beginning."""
    tokenizer = Tokenizer.load(recipe.folder / "tokenizer")
    corpus = Corpus.open(recipe.folder / "corpus" / "train")
    model = new_model(recipe, tokenizer).to(recipe.device)
    task = PretrainingTask(model, corpus, tokenizer, recipe)
    task.prepare()
    loop = Loop(
        task=task,
        optimizer=make_optimizer(model, recipe.pretrain),
        budget=Budget(tokens=10**9),
        learning_rate=1e-3,
        warmup_fraction=0.1,
        clip_norm=1.0,
        precision=torch.bfloat16,
        log=RunLog(log),
    )
    loop._window = Window(task.figures, loop.progress)
    for _ in range(4):
        loop.step()
    return loop


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("compiled", ["true", "false"])
def test_a_step_never_waits_for_the_gpu(
    make_recipe: MakeRecipe, tmp_path: Path, optimizer: str, compiled: str
) -> None:
    changes = (f"pretrain.optimizer={optimizer}", f"pretrain.compile={compiled}", "pretrain.workers=1")
    loop = trained_loop(make_recipe(*SHAPE, *changes, "pretrain.dropout=0"), tmp_path / "log.jsonl")
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            loop.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(torch.tensor(loop._window.norms).isfinite())


def test_a_run_compiled_and_by_muon_learns_stops_and_is_written(make_recipe: MakeRecipe) -> None:
    changes = ("pretrain.optimizer=muon", "pretrain.compile=true", "pretrain.workers=2", "pretrain.dropout=0")
    recipe = make_recipe(*SHAPE, *changes, "pretrain.learning_rate=0.01", "pretrain.tokens=60000")
    assert pretrain(recipe)
    lines = list(RunLog(recipe.folder / "pretrain" / "log.jsonl"))
    losses = [line["mlm_loss"] for line in lines if line["event"] == "train"]
    assert losses[-1] < losses[0] - 0.5
    assert load_checkpoint(recipe.folder / "pretrained").config.hidden_size == 64
    more = recipe.model_copy(update={"pretrain": recipe.pretrain.model_copy(update={"tokens": 80000})})
    assert pretrain(more), "it goes on from the state on disk"


@pytest.mark.parametrize("dropout", ["0.0", "0.1"])
def test_fine_tuning_and_evaluation(make_recipe: MakeRecipe, dropout: str) -> None:
    """Without dropout attention is of variable length; with it, padded."""
    changes = ("pretrain.tokens=2000", f"finetune.attention_dropout={dropout}", "finetune.baseline_texts=0")
    recipe = make_recipe(*SHAPE, *changes)
    assert pretrain(recipe)
    assert finetune(recipe)
    assert "| reviews | 20 |" in evaluate(recipe)


def test_the_most_that_fits_is_found(make_recipe: MakeRecipe, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = make_recipe(*SHAPE, "pretrain.batch=64", "pretrain.compile=false")
    tokenizer = Tokenizer.load(recipe.folder / "tokenizer")
    corpus = Corpus.open(recipe.folder / "corpus" / "train")
    task = PretrainingTask(new_model(recipe, tokenizer).to("cuda"), corpus, tokenizer, recipe)
    passes = task._pass

    def cramped(batch: object) -> None:
        if len(batch.kinds) > 20:  # type: ignore[attr-defined]
            torch.empty(1 << 50, device="cuda")
        passes(batch)  # type: ignore[arg-type]

    monkeypatch.setattr(task, "_pass", cramped)
    task.prepare()
    assert task.micro_batch == 16
