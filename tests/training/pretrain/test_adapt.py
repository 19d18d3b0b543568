"""`adapt`, and how fine-tuning finds the adapted network."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest
import torch

from model import Tokenizer, load_checkpoint, save_checkpoint
from tests.training.conftest import MakeRecipe
from training.corpus.reader import PreparedText
from training.errors import RecipeError, RunError
from training.export.run import export
from training.finetune.run import finetune, starting_point
from training.loop.log import RunLog
from training.pretrain.adapt import _stage, adapt, adapted
from training.pretrain.run import new_model
from training.recipe import Recipe, load_recipe, read_resolved


def save_new_network(recipe: Recipe, seed: int = 1) -> Recipe:
    """Put a network with new weights where `pretrain` leaves its own."""
    tokenizer = Tokenizer.load(recipe.folder / "tokenizer")
    model = new_model(recipe.model_copy(update={"seed": seed}), tokenizer)
    save_checkpoint(recipe.folder / "pretrained", model, tokenizer)
    return recipe


@pytest.fixture(scope="module")
def run(make_recipe_in: MakeRecipe, tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    """A pretrained and adapted run; read only."""
    recipe = make_recipe_in(tmp_path_factory.mktemp("adapted"), "adapt.tokens=5120", "finetune.epochs=0.2")
    torch.set_num_threads(1)
    assert adapt(save_new_network(recipe))
    return recipe


@pytest.fixture
def recipe(run: Recipe, make_recipe: MakeRecipe) -> Recipe:
    """A copy of the adapted run, with a recipe that has no [adapt]."""
    recipe = make_recipe("finetune.epochs=0.2")
    shutil.rmtree(recipe.folder)
    shutil.copytree(run.folder, recipe.folder)
    return recipe


def test_adapt_continues_pretraining_on_the_texts_of_finetune(run: Recipe) -> None:
    before = load_checkpoint(run.folder / "pretrained").model.state_dict()
    after = load_checkpoint(run.folder / "adapt" / "pretrained").model.state_dict()
    assert any(not torch.equal(before[name], after[name]) for name in before)
    text = PreparedText.open(run.folder / "adapt" / "corpus" / "train")
    assert {shard.source for shard in text.shards} == {"reviews"}
    assert list(RunLog(run.folder / "adapt" / "pretrain" / "log.jsonl"))[-1]["tokens"] == 5120


def test_adapt_has_a_third_of_the_learning_rate_and_no_label_column(run: Recipe) -> None:
    resolved = read_resolved(run.folder / "adapt" / "pretrain")
    assert resolved is not None
    assert resolved.pretrain.learning_rate == pytest.approx(run.pretrain.learning_rate / 3)
    assert resolved.pretrain.batch_tokens == run.pretrain.batch_tokens
    assert all(source.label for source in run.finetune.train)
    assert not any(source.label for source in resolved.corpus.sources), "a <br /> is a line break"


def test_adapt_holds_out_the_recipes_share_of_the_texts(run: Recipe) -> None:
    assert run.corpus.heldout_fraction == 0.1
    parts = [PreparedText.open(run.folder / "adapt" / "corpus" / part) for part in ("heldout/reviews", "train")]
    heldout, train = (part.documents for part in parts)
    assert heldout > 0.05 * (heldout + train)


def test_adapt_of_changed_texts_names_the_key_of_the_recipe(recipe: Recipe, recipe_file: str) -> None:
    again = load_recipe(str(recipe_file), [*recipe.overrides, "adapt.tokens=5120"])
    fewer = again.finetune.train[0].model_copy(update={"limit": 50})
    with pytest.raises(RunError, match=r"that they began with, but finetune\.train has changed: restore that"):
        adapt(again.model_copy(update={"finetune": again.finetune.model_copy(update={"train": (fewer,)})}))


def test_finetune_without_repeated_overrides_starts_from_the_adapted_network(
    recipe: Recipe, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    assert recipe.adapt is None
    assert finetune(recipe)
    assert f"fine-tuning starts from {recipe.folder / 'adapt' / 'pretrained'}" in caplog.text


def test_card_of_a_classifier_that_was_adapted_from_another_runs_network_says_so(
    make_recipe: MakeRecipe, recipe_file: Path
) -> None:
    made = save_new_network(make_recipe())
    places = [f"data={made.data}", f"run={made.run}", "name=adapted", f"finetune.pretrained={made.folder}/pretrained"]
    recipe = load_recipe(str(recipe_file), [*places, "adapt.tokens=5120", "pretrain.learning_rate=1e-3"])
    assert adapt(recipe)
    later = load_recipe(str(recipe_file), [*places, "finetune.epochs=0.2"])
    assert finetune(later)
    (target,) = export(later)
    card = " ".join((target / "README.md").read_text().split())
    assert "It starts from `runs/tiny/pretrained`, adapted on 5,120 tokens of the texts to fine-tune on." in card
    assert "adapt.tokens=5120 pretrain.learning_rate=1e-3" in card
    resolved = read_resolved(target)
    assert resolved is not None
    assert resolved.pretrain == recipe.pretrain


def test_adapted_network_of_another_pretrained_network_is_not_used(
    recipe: Recipe, caplog: pytest.LogCaptureFixture
) -> None:
    save_new_network(recipe, seed=2)
    assert adapted(recipe) is None
    assert "was adapted from another network" in caplog.text
    assert "is not used; delete it" in caplog.text
    assert starting_point(recipe)[0].path == recipe.folder / "pretrained"


def test_adapted_network_of_other_texts_is_used_with_a_warning(run: Recipe, caplog: pytest.LogCaptureFixture) -> None:
    assert adapted(run)
    assert not caplog.messages
    finetune = run.finetune.model_copy(update={"train": run.finetune.train[:1] * 2})
    assert adapted(run.model_copy(update={"finetune": finetune}))
    assert "was adapted to other texts than finetune.train; delete it to adapt again" in caplog.text


def test_adapt_reads_a_labelled_file_as_one_text(run: Recipe) -> None:
    source = run.finetune.train[0].model_copy(update={"label": "folder"})
    finetune = run.finetune.model_copy(update={"train": (source,)})
    stage = _stage(run.model_copy(update={"finetune": finetune}), run.folder / "pretrained")
    assert [each.label for each in stage.corpus.sources] == ["folder"]


def test_adapt_after_another_pretraining_deletes_nothing(recipe: Recipe, recipe_file: str) -> None:
    save_new_network(recipe, seed=2)
    again = load_recipe(str(recipe_file), [*recipe.overrides, "adapt.tokens=512"])
    with pytest.raises(RunError, match=r"adapted from another network than .*: delete it to adapt again, or give"):
        adapt(again)
    shutil.rmtree(recipe.folder / "adapt")
    assert adapt(again)
    assert adapted(recipe) == recipe.folder / "adapt" / "pretrained"


def test_adapt_ends_with_what_it_made_and_its_loss(
    recipe: Recipe, recipe_file: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    assert adapt(load_recipe(str(recipe_file), [*recipe.overrides, "adapt.tokens=5120"]))
    (made,) = (line for line in caplog.messages if line.startswith("network of "))
    assert str(recipe.folder / "adapt" / "pretrained") in made
    assert "parameters" in made
    assert "reviews: masked-LM loss " in caplog.text


def test_finetune_with_adapt_in_the_recipe_needs_an_adapted_network(make_recipe: MakeRecipe) -> None:
    recipe = save_new_network(make_recipe("adapt.tokens=512"))
    with pytest.raises(RunError, match=r"adapt has no adapted network; run adapt first"):
        finetune(recipe)


def test_adapt_without_a_budget_is_refused(make_recipe: MakeRecipe) -> None:
    with pytest.raises(RunError, match=r"no \[adapt\]; give it a budget: adapt.tokens="):
        adapt(make_recipe())
    with pytest.raises(RecipeError, match=r"adapt\.minutes"):
        load_recipe("quick", ["adapt.minutes=1"])


def test_adapt_before_pretrain_names_the_command(make_recipe: MakeRecipe) -> None:
    with pytest.raises(RunError, match="run pretrain first"):
        adapt(make_recipe("adapt.tokens=512"))
