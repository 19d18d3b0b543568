"""Pretraining that is killed, stopped, resumed, and shared by two processes."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from model import BertForPreTraining, Tokenizer, load_checkpoint
from tests.training.commands import finish, start, until
from tests.training.conftest import MakeRecipe
from training.corpus.prepare import Corpus
from training.corpus.tokenizer import make_tokenizer
from training.errors import CorpusError, RunError
from training.loop.checkpoint import Progress
from training.loop.trainer import MEAN_STEPS
from training.pretrain.run import new_model, open_heldout, pretrain
from training.pretrain.task import PretrainingTask, pretraining_losses
from training.recipe import Recipe

RENDEZVOUS = ("--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0")
TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node=2", *RENDEZVOUS)
LONG_MODEL = ("model.max_position_embeddings=128",)
EVERY_STEP = "pretrain.checkpoint_minutes=1e-9"


def weights(recipe: Recipe) -> dict[str, Tensor]:
    return load_file(recipe.folder / "pretrained" / "model.safetensors")


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def lines(recipe: Recipe, event: str) -> list[dict[str, Any]]:
    log = (recipe.folder / "pretrain" / "log.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, log) if line["event"] == event]


def command(recipe: Recipe, file: Path, *overrides: str) -> list[str]:
    return ["pretrain", str(file), f"data={recipe.data}", f"run={recipe.run}", *overrides]


@pytest.fixture(scope="module")
def uninterrupted(make_recipe_in: MakeRecipe, tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    """A finished run with dropout, two phases and several epochs."""
    recipe = make_recipe_in(tmp_path_factory.mktemp("uninterrupted"))
    torch.set_num_threads(1)
    assert pretrain(recipe)
    return recipe


def test_a_run_killed_at_any_moment_ends_with_the_same_weights(
    make_recipe: MakeRecipe, recipe_file: Path, uninterrupted: Recipe
) -> None:
    recipe = make_recipe(EVERY_STEP)
    for sign in ("step 10 ", "step 40 "):  # in the first phase, and in the second
        process = start(*command(recipe, recipe_file, EVERY_STEP))
        until(process, sign)
        process.send_signal(signal.SIGKILL)
        assert finish(process)[0] == -signal.SIGKILL
        assert not (recipe.folder / "pretrained").exists()
    assert pretrain(recipe)
    assert same(weights(recipe), weights(uninterrupted))
    steps = [line["step"] for line in lines(recipe, "train")]
    assert steps == sorted(set(steps)), "the log repeats steps"
    assert steps == [line["step"] for line in lines(uninterrupted, "train")]


def test_a_second_process_in_the_same_folder_is_refused_and_the_first_goes_on(
    make_recipe: MakeRecipe, recipe_file: Path, uninterrupted: Recipe
) -> None:
    recipe = make_recipe()
    process = start(*command(recipe, recipe_file))
    until(process, "step 5 ")
    process.send_signal(signal.SIGSTOP)
    try:
        with pytest.raises(RunError, match=r"another process is at work in .*pretrain: wait for its end"):
            pretrain(recipe)
    finally:
        process.send_signal(signal.SIGCONT)
        status, _, errors = finish(process)
    assert status == 0, errors
    assert same(weights(recipe), weights(uninterrupted))
    assert pretrain(recipe)


def test_a_signal_to_the_whole_process_group_spares_the_workers_until_the_state_is_saved(
    make_recipe: MakeRecipe, recipe_file: Path, uninterrupted: Recipe
) -> None:
    recipe = make_recipe()
    process = start(*command(recipe, recipe_file, "pretrain.workers=2"))
    until(process, "step 10 ")
    os.killpg(process.pid, signal.SIGTERM)
    status, _, errors = finish(process)
    assert (status, "stopped by SIGTERM" in errors) == (130, True), errors
    assert pretrain(recipe)
    assert same(weights(recipe), weights(uninterrupted))


def test_sigterm_saves_and_says_how_to_continue(
    make_recipe: MakeRecipe, recipe_file: Path, uninterrupted: Recipe
) -> None:
    recipe = make_recipe()
    arguments = command(recipe, recipe_file)
    process = start(*arguments)
    until(process, "step 5 ")
    process.terminate()
    status, _, errors = finish(process)
    assert status == 130
    assert "stopped by SIGTERM" in errors
    assert "to continue: python -m training pretrain" in errors
    assert str(recipe_file) in errors
    assert list((recipe.folder / "pretrain").glob("state-*.pt"))
    assert not (recipe.folder / "pretrained").exists(), "half a training is nobody's checkpoint"
    assert pretrain(recipe)
    assert same(weights(recipe), weights(uninterrupted))


def test_a_truncated_newest_checkpoint_costs_one_interval_and_no_exactness(
    make_recipe: MakeRecipe, uninterrupted: Recipe, caplog: pytest.LogCaptureFixture
) -> None:
    recipe = make_recipe(EVERY_STEP)
    assert pretrain(recipe)
    newest = max((recipe.folder / "pretrain").glob("state-*.pt"))
    os.truncate(newest, newest.stat().st_size // 2)
    assert pretrain(recipe)
    assert "falling back to the one before" in caplog.text
    assert same(weights(recipe), weights(uninterrupted))


def test_a_finished_run_started_again_changes_nothing(uninterrupted: Recipe) -> None:
    before, log = weights(uninterrupted), lines(uninterrupted, "train")
    assert pretrain(uninterrupted)
    assert same(weights(uninterrupted), before)
    assert lines(uninterrupted, "train") == log


def test_resuming_with_another_recipe_names_the_key(uninterrupted: Recipe) -> None:
    changed = uninterrupted.model_copy(
        update={"pretrain": uninterrupted.pretrain.model_copy(update={"learning_rate": 0.5})}
    )
    with pytest.raises(RunError, match=r"pretrain\.learning_rate was 0\.001, is 0\.5"):
        pretrain(changed)


def test_a_corpus_of_other_sources_is_not_trained_on(make_recipe: MakeRecipe) -> None:
    with pytest.raises(CorpusError, match=r"made from another recipe \(corpus\.sources\); run prepare again"):
        pretrain(make_recipe('corpus.sources=[{path="reviews.jsonl"}]'))


def test_a_finished_run_goes_on_with_a_larger_budget(make_recipe: MakeRecipe) -> None:
    recipe = make_recipe("pretrain.tokens=4000", "pretrain.decay_fraction=0.2")
    assert pretrain(recipe)
    before, steps = weights(recipe), lines(recipe, "train")[-1]["step"]
    more = recipe.pretrain.model_copy(update={"tokens": 6000})
    assert pretrain(recipe.model_copy(update={"pretrain": more}))
    assert not same(weights(recipe), before)
    assert lines(recipe, "train")[-1]["step"] > steps


def test_muon_resumes_with_the_same_weights(make_recipe_in: MakeRecipe, tmp_path: Path) -> None:
    changes = ["pretrain.optimizer=muon", "pretrain.tokens=3000", "pretrain.decay_fraction=0.3"]
    whole = make_recipe_in(tmp_path / "whole", *changes, EVERY_STEP)
    assert pretrain(whole)
    halved = make_recipe_in(tmp_path / "halved", *changes)
    first, second = sorted((whole.folder / "pretrain").glob("state-*.pt"))
    assert first != second
    (halved.folder / "pretrain").mkdir()
    shutil.copy(first, halved.folder / "pretrain")
    assert pretrain(halved)
    assert same(weights(halved), weights(whole))


def test_pretraining_goes_on_from_a_checkpoint_with_its_vocabulary(
    uninterrupted: Recipe, make_recipe_in: MakeRecipe, tmp_path: Path
) -> None:
    begun = uninterrupted.folder / "pretrained"
    recipe = make_recipe_in(tmp_path, f"pretrain.start={begun}", "pretrain.tokens=600", "model.preset=base")
    make_tokenizer(recipe)
    tokenizer = Tokenizer.load(recipe.folder / "tokenizer")
    assert tokenizer.to_json() == Tokenizer.load(begun).to_json()
    beginning = new_model(recipe, tokenizer).state_dict()
    loaded = load_checkpoint(begun).model.state_dict()
    assert same(dict(beginning), dict(loaded))
    assert pretrain(recipe)
    assert not same(weights(recipe), weights(uninterrupted))


def test_examples_longer_than_the_start_has_positions_are_refused(
    uninterrupted: Recipe, make_recipe_in: MakeRecipe, tmp_path: Path
) -> None:
    begun = uninterrupted.folder / "pretrained"
    recipe = make_recipe_in(tmp_path, f"pretrain.start={begun}", "pretrain.long_length=65", *LONG_MODEL)
    with pytest.raises(RunError, match=r"up to 65 tokens, but .* has 64 positions"):
        pretrain(recipe)


def test_a_classifier_that_would_not_fit_the_start_is_refused_before_pretraining(
    uninterrupted: Recipe, make_recipe_in: MakeRecipe, tmp_path: Path
) -> None:
    begun = uninterrupted.folder / "pretrained"
    changes = [f"pretrain.start={begun}", "finetune.max_length=65", "model.max_position_embeddings=16"]
    recipe = make_recipe_in(tmp_path, *changes)
    with pytest.raises(RunError, match=r"finetune\.max_length is 65, but .* has 64 positions"):
        pretrain(recipe)


def test_a_start_of_another_vocabulary_is_refused(make_recipe: MakeRecipe, pretrained: Path) -> None:
    recipe = make_recipe(f"pretrain.start={pretrained}", "pretrain.long_fraction=0")
    with pytest.raises(RunError, match=r"has another vocabulary than .*tokenizer; run tokenizer and prepare"):
        pretrain(recipe)


def test_watching_may_change_between_resumes(uninterrupted: Recipe) -> None:
    changed = uninterrupted.pretrain.model_copy(
        update={"log_steps": 7, "checkpoint_minutes": 1.0, "workers": 1}
    )
    assert pretrain(uninterrupted.model_copy(update={"pretrain": changed}))


def test_the_checkpoint_is_the_recipes_network(uninterrupted: Recipe) -> None:
    loaded = load_checkpoint(uninterrupted.folder / "pretrained")
    assert isinstance(loaded.model, BertForPreTraining)
    assert loaded.config.hidden_size == 16
    assert loaded.model.next_sentence is not None


def test_the_log_holds_every_figure_of_the_run(uninterrupted: Recipe) -> None:
    last = lines(uninterrupted, "train")[-1]
    assert {"loss", "mlm_loss", "nsp_loss", "gradient_norm", "learning_rate", "mfu"} <= last.keys()
    assert last["tokens"] >= 8000
    assert "stories" in lines(uninterrupted, "evaluation")[-1]


def test_the_long_phase_has_longer_examples_and_as_many_tokens_a_step(make_recipe: MakeRecipe) -> None:
    recipe = make_recipe()
    tokenizer = Tokenizer.load(recipe.folder / "tokenizer")
    corpus = Corpus.open(recipe.folder / "corpus" / "train")
    task = PretrainingTask(new_model(recipe, tokenizer), corpus, tokenizer, recipe)
    progress = Progress()
    (short,) = task.micro_batches(progress, 0.0)
    assert (progress.phase, progress.position) == (0, 8)
    (long,) = task.micro_batches(progress, 0.9)
    assert (progress.phase, progress.position) == (1, 4)
    assert max(short.packed.lengths) <= 32 < max(long.packed.lengths) <= 64
    task.micro_batches(progress, 0.5)  # as if the budget had been doubled
    assert (progress.phase, progress.position) == (0, 16)
    task.micro_batches(progress, 0.9)
    assert (progress.phase, progress.position) == (1, 8)


def test_positions_of_long_examples_are_no_mean_with_states_that_never_saw_any(make_recipe: MakeRecipe) -> None:
    recipe = make_recipe(
        "pretrain.tokens=60000", "pretrain.average_fraction=0.8", "pretrain.evaluate_examples=1"
    )
    assert pretrain(recipe)
    (state, *_) = sorted((recipe.folder / "pretrain").glob("state-*.pt"), reverse=True)
    saved = torch.load(state, weights_only=True)
    steps = lines(recipe, "train")
    long = [line["step"] for line in steps if line["tokens"] > 0.8 * 60000]
    assert 0 < saved["mean"]["count"] <= (long[-1] - long[0]) // MEAN_STEPS + 2


def test_a_start_with_few_positions_will_do_where_no_example_is_long(
    uninterrupted: Recipe, make_recipe_in: MakeRecipe, tmp_path: Path
) -> None:
    begun = uninterrupted.folder / "pretrained"
    lengths = ["pretrain.long_length=512", "pretrain.long_fraction=0", *LONG_MODEL]
    recipe = make_recipe_in(tmp_path, f"pretrain.start={begun}", *lengths)
    assert new_model(recipe, Tokenizer.load(begun)).config.max_position_embeddings == 64


def test_next_sentence_counts_as_much_as_its_weight_says(make_recipe: MakeRecipe) -> None:
    recipe = make_recipe("pretrain.dropout=0.0", "pretrain.next_weight=3.0")
    tokenizer = Tokenizer.load(recipe.folder / "tokenizer")
    corpus = Corpus.open(recipe.folder / "corpus" / "train")
    task = PretrainingTask(new_model(recipe, tokenizer), corpus, tokenizer, recipe)
    (batch,) = task.micro_batches(Progress(), 0.0)
    loss, masked, following = task.losses(batch, batch.counts)
    torch.testing.assert_close(loss, masked + 3 * following)


def test_losses_are_means_in_nats_over_all_masked_words_and_id_0_is_one(make_recipe: MakeRecipe) -> None:
    recipe = make_recipe("pretrain.dropout=0.0")
    tokenizer = Tokenizer.load(recipe.folder / "tokenizer")
    corpus = Corpus.open(recipe.folder / "corpus" / "train")
    task = PretrainingTask(new_model(recipe, tokenizer), corpus, tokenizer, recipe)
    (batch,) = task.micro_batches(Progress(), 0.0)
    batch.masked_ids[0] = 0
    _, mlm, nsp = pretraining_losses(task.bert, batch, batch.counts)
    hidden = task.bert(batch.packed)
    words = task.bert.masked_lm(hidden[batch.masked_rows]).log_softmax(1)
    surprises = -words[torch.arange(len(words)), batch.masked_ids]
    torch.testing.assert_close(mlm, surprises.mean())
    assert task.bert.next_sentence is not None
    pairs = task.bert.next_sentence(hidden[batch.cls_rows]).log_softmax(1)
    known = batch.next_labels >= 0
    torch.testing.assert_close(nsp, -pairs[known, batch.next_labels[known]].mean())


def test_a_corpus_with_fewer_examples_than_a_batch_goes_on_to_the_next_epoch(make_recipe: MakeRecipe) -> None:
    recipe = make_recipe("pretrain.batch=1000")
    tokenizer = Tokenizer.load(recipe.folder / "tokenizer")
    corpus = Corpus.open(recipe.folder / "corpus" / "train")
    task = PretrainingTask(new_model(recipe, tokenizer), corpus, tokenizer, recipe)
    progress = Progress()
    (batch,) = task.micro_batches(progress, 0.0)
    assert len(batch.kinds) == 1000
    assert progress.epoch > 0


def test_two_processes_compute_what_one_does(
    make_recipe_in: MakeRecipe, recipe_file: Path, tmp_path: Path
) -> None:
    changes = ["pretrain.dropout=0.0", "pretrain.tokens=4000"]
    one = make_recipe_in(tmp_path / "one", *changes)
    assert pretrain(one)
    two = make_recipe_in(tmp_path / "two", *changes)
    status, _, errors = finish(start(*command(two, recipe_file, *changes), launcher=TORCHRUN))
    assert status == 0, errors
    for mine, theirs in zip(lines(one, "train"), lines(two, "train"), strict=True):
        assert (mine["step"], mine["tokens"]) == (theirs["step"], theirs["tokens"])
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-3)
    for mine, theirs in zip(weights(one).values(), weights(two).values(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0.02, atol=2e-3)


def test_two_processes_go_on_where_they_were_stopped(
    make_recipe_in: MakeRecipe, recipe_file: Path, tmp_path: Path
) -> None:
    changes = ["pretrain.dropout=0.0", "pretrain.tokens=4000", EVERY_STEP]
    whole = make_recipe_in(tmp_path / "whole", *changes)
    assert pretrain(whole)
    stopped = make_recipe_in(tmp_path / "stopped", *changes)
    process = start(*command(stopped, recipe_file, *changes), launcher=TORCHRUN)
    until(process, "step 5 ")
    process.terminate()
    assert finish(process)[0] != 0
    assert not (stopped.folder / "pretrained").exists()
    status, _, errors = finish(start(*command(stopped, recipe_file, *changes), launcher=TORCHRUN))
    assert status == 0, errors
    assert "resuming from" in errors
    assert [line["step"] for line in lines(stopped, "train")] == [
        line["step"] for line in lines(whole, "train")
    ]
    for mine, theirs in zip(weights(whole).values(), weights(stopped).values(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0.02, atol=2e-3)


def test_without_heldout_text_the_remedy_is_named(make_recipe: MakeRecipe) -> None:
    recipe = make_recipe().model_copy(update={"run": Path("nowhere")})
    with pytest.raises(CorpusError, match=r"heldout_fraction .* two documents or more .* run prepare again"):
        open_heldout(recipe)
