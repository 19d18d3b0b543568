"""Fine-tuning of a tiny pretrained network."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from model import BertForPreTraining, BertForSequenceClassification, Tokenizer, load_checkpoint, save_checkpoint
from tests.conftest import MakeCheckpoint
from tests.training.commands import finish, start, until
from tests.training.conftest import MakeRecipe
from training.config import FinetuneConfig, Recipe
from training.errors import RunError
from training.finetune import (
    ClassificationTask,
    classifier_from,
    finetune,
    fit_temperature,
    read_all,
    read_test,
)
from training.pretrain import new_model
from training.run_state import Progress


def with_pretrained(recipe: Recipe) -> Recipe:
    """A run folder as pretraining leaves it, without its cost."""
    tokenizer = Tokenizer.load(recipe.folder / "tokenizer")
    save_checkpoint(recipe.folder / "pretrained", new_model(recipe, tokenizer), tokenizer)
    return recipe


def weights(recipe: Recipe) -> dict[str, torch.Tensor]:
    return load_file(recipe.folder / "sentiment" / "model.safetensors")


@pytest.fixture(scope="module")
def finished(make_recipe_in: MakeRecipe, tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    recipe = with_pretrained(make_recipe_in(tmp_path_factory.mktemp("finetuned")))
    torch.set_num_threads(1)
    assert finetune(recipe)
    return recipe


def test_the_classifier_starts_from_the_pretrained_encoder_and_pooler(pretrained: Path) -> None:
    source = load_checkpoint(pretrained).model
    assert isinstance(source, BertForPreTraining)
    labels = {"bad": "NEGATIVE", "so-so": "NEUTRAL", "good": "POSITIVE"}
    model = classifier_from(source, FinetuneConfig(labels=labels, truncation="head"), seed=1)
    assert model.training
    for name, tensor in source.encoder.state_dict().items():
        assert torch.equal(model.encoder.state_dict()[name], tensor)
    assert source.next_sentence is not None
    assert torch.equal(model.pooler.dense.weight, source.next_sentence.pooler.dense.weight)
    assert model.config.labels == ["NEGATIVE", "NEUTRAL", "POSITIVE"]
    assert (model.config.truncation, model.config.hidden_dropout_prob) == ("head", 0.1)


def test_a_checkpoint_without_next_sentence_head_can_be_fine_tuned(save_pretrained: MakeCheckpoint) -> None:
    source = load_checkpoint(save_pretrained("no-nsp", next_sentence=False)).model
    assert isinstance(source, BertForPreTraining)
    assert isinstance(classifier_from(source, FinetuneConfig(), 1), BertForSequenceClassification)


def test_the_checkpoint_carries_labels_truncation_and_temperature(finished: Recipe) -> None:
    config = load_checkpoint(finished.folder / "sentiment").config
    assert config.labels == ["NEGATIVE", "POSITIVE"]
    assert config.truncation == "head_tail"
    assert 0.2 <= config.temperature <= 5


def test_a_killed_run_ends_with_the_same_weights(
    make_recipe: MakeRecipe, recipe_file: Path, finished: Recipe
) -> None:
    recipe = with_pretrained(make_recipe())
    places = [f"data={recipe.data}", f"run={recipe.run}"]
    process = start("finetune", str(recipe_file), *places, "finetune.checkpoint_minutes=1e-9")
    until(process, "step 4 ")
    process.send_signal(signal.SIGKILL)
    finish(process)
    assert finetune(recipe)
    mine, theirs = weights(recipe), weights(finished)
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)


def test_a_finished_run_started_again_changes_nothing(finished: Recipe) -> None:
    before = weights(finished)
    assert finetune(finished)
    assert all(torch.equal(before[name], tensor) for name, tensor in weights(finished).items())


def test_another_pretrained_network_is_another_run(make_recipe: MakeRecipe) -> None:
    recipe = with_pretrained(make_recipe())
    assert finetune(recipe)
    with_pretrained(recipe.model_copy(update={"seed": 2}))
    with pytest.raises(RunError, match="pretrained was"):
        finetune(recipe)


def test_a_classifier_is_no_place_to_start_from(make_recipe: MakeRecipe, finished: Recipe) -> None:
    recipe = make_recipe()
    (recipe.folder / "pretrained").symlink_to(finished.folder / "sentiment")
    with pytest.raises(RunError, match="is no pretrained model"):
        finetune(recipe)


def test_no_source_is_a_clear_error(make_recipe: MakeRecipe) -> None:
    with pytest.raises(RunError, match=r"finetune\.train names no source"):
        finetune(with_pretrained(make_recipe("finetune.train=[]")))


def test_every_text_comes_once_an_epoch(make_recipe: MakeRecipe) -> None:
    recipe = make_recipe()
    tokenizer = Tokenizer.load(recipe.folder / "tokenizer")
    (texts,), _ = read_all(recipe, tokenizer)
    model = classifier_from(new_model(recipe, tokenizer), recipe.finetune, 1)
    task, progress = ClassificationTask(model, texts, recipe.finetune, 1), Progress()
    seen: list[int] = []
    while len(seen) < len(texts):
        (batch,) = task.micro_batches(progress, 0.0)
        seen += batch.labels.tolist()
    assert progress.epoch == 0
    assert len(seen) == len(texts)
    assert sorted(seen) == sorted(texts.labels)
    task.micro_batches(progress, 0.0)
    assert progress.epoch == 1


def test_test_sources_are_read_whole(make_recipe: MakeRecipe) -> None:
    recipe = make_recipe()
    (test,) = read_test(recipe, Tokenizer.load(recipe.folder / "tokenizer"))
    assert len(test) == 20


def test_temperature_lowers_the_loss_on_dev(finished: Recipe) -> None:
    loaded = load_checkpoint(finished.folder / "sentiment")
    assert isinstance(loaded.model, BertForSequenceClassification)
    loaded.model.classifier.weight.data *= 500  # sure of itself, and often wrong
    _, (dev,) = read_all(finished, loaded.tokenizer)
    assert fit_temperature(loaded.model, dev) > 1.5
