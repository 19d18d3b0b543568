"""More pretraining on the classifier's own texts, before it is trained."""

from __future__ import annotations

import json

import pytest
import torch

from model import load_checkpoint
from tests.training.conftest import MakeRecipe
from training.corpus.prepare import Corpus
from training.errors import RecipeError, RunError
from training.finetune.run import finetune
from training.pretrain.adapt import adapt, adaptation
from training.pretrain.run import pretrain
from training.recipe import Recipe


@pytest.fixture
def recipe(make_recipe: MakeRecipe) -> Recipe:
    recipe = make_recipe(
        "pretrain.tokens=1000", "adapt.tokens=1500", "adapt.learning_rate=0.01", "finetune.epochs=1"
    )
    assert pretrain(recipe)
    return recipe


def test_fine_tuning_starts_from_what_was_adapted(recipe: Recipe) -> None:
    with pytest.raises(RunError, match="run adapt first"):
        finetune(recipe)
    assert adapt(recipe)
    before = load_checkpoint(recipe.folder / "pretrained").model.state_dict()
    after = load_checkpoint(recipe.folder / "adapt" / "pretrained").model.state_dict()
    assert any(not torch.equal(before[name], after[name]) for name in before)
    losses = [
        json.loads(line)["mlm_loss"]
        for line in (recipe.folder / "adapt" / "pretrain" / "log.jsonl").read_text().splitlines()
        if json.loads(line)["event"] == "train"
    ]
    assert losses[-1] < losses[0], "the task's words are learned"
    assert finetune(recipe)
    assert (recipe.folder / "sentiment" / "model.safetensors").is_file()


def test_the_texts_are_those_of_fine_tuning_without_labels(recipe: Recipe) -> None:
    assert adapt(recipe)
    corpus = Corpus.open(recipe.folder / "adapt" / "corpus" / "train")
    assert set(corpus.manifest["sources"]) == {"reviews"}


def test_a_break_of_html_ends_a_sentence_as_in_pretraining(recipe: Recipe) -> None:
    assert all(source.label for source in recipe.finetune.train), "which keeps `<br />` as it is"
    assert not any(source.label for source in adaptation(recipe).corpus.sources)


def test_without_a_budget_it_is_refused(make_recipe: MakeRecipe) -> None:
    with pytest.raises(RunError, match=r"no \[adapt\]"):
        adapt(make_recipe())


def test_before_pretraining_the_remedy_is_named(make_recipe: MakeRecipe) -> None:
    with pytest.raises(RunError, match="run pretrain first"):
        adapt(make_recipe("adapt.minutes=1"))


@pytest.mark.parametrize("budget", [(), ("adapt.minutes=1", "adapt.tokens=5")])
def test_one_budget(make_recipe: MakeRecipe, budget: tuple[str, ...]) -> None:
    with pytest.raises(RecipeError, match="exactly one budget"):
        make_recipe("adapt.learning_rate=0.1", *budget)


def test_what_adapt_does_not_say_is_as_in_pretrain(make_recipe: MakeRecipe) -> None:
    recipe = make_recipe("adapt.minutes=1", "pretrain.batch=5")
    stage = adaptation(recipe)
    assert (stage.pretrain.batch, stage.pretrain.minutes, stage.pretrain.tokens) == (5, 1, None)
    assert stage.pretrain.learning_rate == 3e-4
