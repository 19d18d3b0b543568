"""`pretrain`: learning, budgets, kills, resumes and refusals."""

from __future__ import annotations

import logging
import os
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from model import BertForPreTraining, Tokenizer, load_checkpoint
from tests.conftest import MakeCheckpoint
from tests.training.commands import finish, occupied, start, until
from tests.training.conftest import MakeRecipe
from tests.training.one_cpu import one_cpu
from training.__main__ import main
from training.corpus.prepare import prepare
from training.corpus.reader import PreparedText
from training.corpus.tokenizer import make_tokenizer
from training.errors import CorpusError, RunError
from training.examples.masking import Vocabulary
from training.examples.pairs import IGNORE_INDEX
from training.examples.pretraining import PretrainingStream
from training.loop.log import RunLog
from training.pretrain.run import new_model, open_heldout, pretrain
from training.pretrain.task import PretrainingLoss
from training.recipe import Recipe, load_recipe, read_resolved

SETTINGS = (
    *("pretrain.tokens=7680", "pretrain.dropout=0.1", "pretrain.average_fraction=0.6"),
    "pretrain.examples.final_mask_fraction=0.1",
)
EVERY_STEP = "checkpoint_minutes=1e-9"


def weights(recipe: Recipe) -> dict[str, Tensor]:
    return load_file(recipe.folder / "pretrained" / "model.safetensors")


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def lines(recipe: Recipe, event: str) -> list[dict[str, Any]]:
    return [line for line in RunLog(recipe.folder / "pretrain" / "log.jsonl") if line["event"] == event]


def command(recipe: Recipe, file: Path, *overrides: str) -> list[str]:
    return ["pretrain", str(file), f"data={recipe.data}", f"run={recipe.run}", *overrides]


def changed(recipe: Recipe, **changes: object) -> Recipe:
    return recipe.model_copy(update={"pretrain": recipe.pretrain.model_copy(update=changes)})


@pytest.fixture(scope="module")
def finished(make_recipe_in: MakeRecipe, tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    """An uninterrupted run of 30 steps with dropout, averaged weights and a falling mask rate."""
    recipe = make_recipe_in(tmp_path_factory.mktemp("uninterrupted"), *SETTINGS)
    torch.set_num_threads(1)
    assert pretrain(recipe)
    return recipe


def test_pretrain_learns_a_small_language(make_recipe: MakeRecipe) -> None:
    changes = ("model.hidden_size=64", "micro_batch_tokens=512", "pretrain.batch_tokens=512")
    recipe = make_recipe(*changes, "finetune.batch_tokens=512", "pretrain.learning_rate=5e-3")
    recipe = changed(recipe, tokens=160 * 512)
    assert pretrain(recipe)
    entropy = PreparedText.open(recipe.folder / "corpus" / "heldout" / "stories").unigram_entropy
    figures = lines(recipe, "evaluation")[-1]["stories"]
    assert figures["mlm_loss"] < 0.8 * entropy
    assert figures["mlm_accuracy"] > 0.2
    assert lines(recipe, "left_plateau")


def test_pretrain_writes_the_recipes_network_its_log_and_its_recipe(finished: Recipe) -> None:
    loaded = load_checkpoint(finished.folder / "pretrained")
    assert isinstance(loaded.model, BertForPreTraining)
    assert loaded.model.next_sentence is not None
    assert (loaded.config.hidden_size, loaded.config.max_position_embeddings) == (16, 512)
    last = lines(finished, "train")[-1]
    assert {
        "loss",
        "mlm_loss",
        "nsp_loss",
        "gradient_norm",
        "learning_rate",
        "matmul_utilisation",
    } <= last.keys()
    assert (last["step"], last["tokens"]) == (30, 7680)
    assert "stories" in lines(finished, "evaluation")[-1]
    assert read_resolved(finished.folder / "pretrain") == finished


def test_pretrain_again_after_the_end_changes_nothing(finished: Recipe, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    before, log = weights(finished), list(RunLog(finished.folder / "pretrain" / "log.jsonl"))
    assert pretrain(finished)
    assert same(weights(finished), before)
    assert list(RunLog(finished.folder / "pretrain" / "log.jsonl")) == log
    made, found = caplog.messages[-3:-1]
    assert made.startswith("network of ")
    assert made.endswith(f"MB) in {finished.folder / 'pretrained'}")
    assert re.fullmatch(
        r"stories: masked-LM loss \d\.\d\d on held-out text; word frequencies alone have \d\.\d\d", found
    )
    assert "stories: nothing is learned from context yet: raise the budget" in caplog.messages[-1]
    assert "no effect" not in caplog.text
    assert pretrain(
        finished.model_copy(update={"pretrain": finished.pretrain.model_copy(update={"average_fraction": 0.5})})
    )
    assert "pretrain.average_fraction has no effect on a finished run; give the run another name" in caplog.text
    assert same(weights(finished), before)


def test_pretrain_stopped_and_killed_ends_with_the_same_weights(
    make_recipe: MakeRecipe, recipe_file: Path, finished: Recipe
) -> None:
    recipe = make_recipe(*SETTINGS)
    with one_cpu():
        process = start(*command(recipe, recipe_file, *SETTINGS))
    until(process, " 26%, ")  # the learning rate is level
    os.killpg(process.pid, signal.SIGTERM)
    status, _, errors = finish(process)
    assert status == 130
    assert "stopped by SIGTERM" in errors
    assert f"to continue: python -m training pretrain {recipe_file}" in errors
    assert list((recipe.folder / "pretrain").glob("state-*.pt"))
    assert not (recipe.folder / "pretrained").exists()

    with one_cpu():
        process = start(*command(recipe, recipe_file, *SETTINGS, EVERY_STEP))
    until(process, " 80%, ")  # it falls, and weights are averaged
    process.kill()
    assert finish(process)[0] == -signal.SIGKILL
    assert not (recipe.folder / "pretrained").exists()

    assert pretrain(recipe)
    assert same(weights(recipe), weights(finished))
    for event in ("train", "evaluation"):
        steps = [line["step"] for line in lines(recipe, event)]
        assert steps == sorted(set(steps)), "the log repeats no step"
        assert steps[-1] == 30


def test_pretrain_in_the_folder_of_a_running_process_is_refused(make_recipe: MakeRecipe) -> None:
    recipe = make_recipe()
    with (
        occupied(recipe.folder / "pretrain" / "rank-0"),
        pytest.raises(RunError, match=r"another process works in .*pretrain.*: wait until it ends"),
    ):
        pretrain(recipe)


def test_pretrain_whose_network_is_gone_makes_it_again_from_the_state_that_it_keeps(
    make_recipe: MakeRecipe, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    recipe = make_recipe("pretrain.tokens=2560")
    assert pretrain(recipe)
    assert [file.name for file in (recipe.folder / "pretrain").glob("*.pt")] == ["before-decay.pt"]
    before = weights(recipe)
    shutil.rmtree(recipe.folder / "pretrained")
    assert pretrain(recipe)
    assert "resuming at step 7" in caplog.text
    assert same(weights(recipe), before)


def test_pretrain_with_another_recipe_names_the_keys(finished: Recipe) -> None:
    with pytest.raises(RunError, match=r"pretrain\.learning_rate was 0\.0006, is 0\.5") as error:
        pretrain(changed(finished, learning_rate=0.5, dropout=0.2))
    assert "pretrain.dropout was 0.1, is 0.2" in str(error.value)
    assert "give this run another name" in str(error.value)


def test_pretrain_checkpoint_interval_may_change_between_resumes(finished: Recipe) -> None:
    assert pretrain(finished.model_copy(update={"checkpoint_minutes": 1.0}))


def test_pretrain_with_another_corpus_is_refused(make_recipe: MakeRecipe) -> None:
    with pytest.raises(CorpusError, match=r"other settings \(corpus\.sources has changed\); run prepare again"):
        pretrain(make_recipe('corpus.sources=[{path="reviews.jsonl"}]'))


def test_prepare_with_another_setting_keeps_the_corpus_that_a_checkpoint_needs(finished: Recipe) -> None:
    more = finished.model_copy(update={"corpus": finished.corpus.model_copy(update={"heldout_fraction": 0.5})})
    with pytest.raises(RunError, match=r"corpus\.heldout_fraction was 0\.1, is 0\.5: .* another name, or delete"):
        prepare(more, Tokenizer.load(finished.folder / "tokenizer"))
    assert PreparedText.open(finished.folder / "corpus" / "train").tokens


def test_pretrain_with_another_shape_names_its_key(finished: Recipe) -> None:
    wider = finished.model_copy(update={"model": finished.model.model_copy(update={"hidden_size": 32})})
    with pytest.raises(RunError, match=r"model\.hidden_size was 16, is 32\..* It began with \S*tiny\.toml .*dropout="):
        pretrain(wider)


def test_pretrain_on_few_examples_is_refused(make_recipe: MakeRecipe, tmp_path: Path) -> None:
    (tmp_path / "few.txt").write_text("The old sailor found a green boat. It was lost.\n\nA young doctor sold it.")
    recipe = make_recipe(f'corpus.sources=[{{path="{tmp_path / "few.txt"}"}}]')
    prepare(recipe, Tokenizer.load(recipe.folder / "tokenizer"))
    with pytest.raises(CorpusError, match=r"1 example; a run needs at least 48: add text"):
        pretrain(recipe)


def test_pretrain_with_a_larger_budget_continues_from_the_state_before_the_decay(
    make_recipe: MakeRecipe, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    recipe = make_recipe("pretrain.tokens=5120")
    assert pretrain(recipe)
    before = weights(recipe)
    more = changed(recipe, tokens=7680)
    assert pretrain(more)
    assert "continuing from the state before the learning rate fell" in caplog.text
    assert "resuming at step 14" in caplog.text
    assert not same(weights(recipe), before)
    assert lines(recipe, "train")[-1]["step"] == 30
    steps = [line["step"] for line in lines(recipe, "evaluation")]
    assert steps == sorted(set(steps))


def test_pretrain_budget_in_minutes_becomes_tokens_once(
    make_recipe: MakeRecipe, recipe_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = make_recipe()
    budget = "pretrain.minutes=0.02"
    assert main(command(recipe, recipe_file, budget)) == 0
    resolved = read_resolved(recipe.folder / "pretrain")
    assert resolved is not None
    assert resolved.pretrain.minutes is None
    assert resolved.pretrain.tokens is not None
    assert budget in resolved.overrides
    trained = lines(recipe, "train")[-1]["tokens"]
    assert abs(trained - resolved.pretrain.tokens) <= recipe.pretrain.batch_tokens / 2
    before = weights(recipe)
    assert main(command(recipe, recipe_file, budget)) == 0  # the same number of tokens, so nothing is left to do
    assert same(weights(recipe), before)
    assert main(["export", *command(recipe, recipe_file)[1:]]) == 0
    target = recipe.folder / "export" / "pretrained"
    exported = read_resolved(target)
    assert exported is not None
    assert exported.pretrain == resolved.pretrain
    assert exported.overrides == (budget,)
    assert f"all tiny.toml {budget}\n" in (target / "README.md").read_text()
    assert f"{trained:,} tokens" in (target / "README.md").read_text()


def test_pretrain_start_continues_from_a_checkpoint_with_its_vocabulary_and_shape(
    finished: Recipe, make_recipe: MakeRecipe
) -> None:
    source = finished.folder / "pretrained"
    recipe = make_recipe(f"pretrain.start={source}", "pretrain.tokens=512", "model.preset=base", "seed=2")
    tokenizer = Tokenizer.load(make_tokenizer(recipe))
    assert tokenizer.to_json() == Tokenizer.load(source).to_json()
    loaded = load_checkpoint(source).model.state_dict()
    assert same(dict(new_model(recipe, tokenizer).state_dict()), dict(loaded))
    assert pretrain(recipe)
    assert not same(weights(recipe), weights(finished))


def test_pretrain_start_with_too_few_positions_is_refused(make_recipe: MakeRecipe, pretrained: Path) -> None:
    recipe = make_recipe(f"pretrain.start={pretrained}", "pretrain.examples.long_length=65")
    with pytest.raises(RunError, match=r"up to 65 tokens, but .* has 64 positions"):
        new_model(recipe, Tokenizer.load(pretrained))


def test_pretrain_start_without_next_sentence_head_is_refused(make_recipe: MakeRecipe, sentiment: Path) -> None:
    recipe = make_recipe(f"pretrain.start={sentiment}")
    with pytest.raises(RunError, match="is not a checkpoint with masked-LM and next-sentence heads"):
        pretrain(recipe)


def test_pretrain_start_of_one_token_type_is_refused(make_recipe: MakeRecipe, save_pretrained: MakeCheckpoint) -> None:
    recipe = make_recipe(f"pretrain.start={save_pretrained(type_vocab_size=1)}")
    with pytest.raises(RunError, match=r"takes single texts only .*, and pretraining has pairs"):
        pretrain(recipe)


def test_pretrain_start_with_another_vocabulary_is_refused(make_recipe: MakeRecipe, pretrained: Path) -> None:
    recipe = make_recipe(f"pretrain.start={pretrained}")
    with pytest.raises(RunError, match=r"has another vocabulary, .*tokenizer; run tokenizer and prepare"):
        pretrain(recipe)


def test_pretrain_never_saves_or_exports_weights_after_a_nan(
    make_recipe: MakeRecipe, recipe_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = make_recipe()
    changes = ("pretrain.learning_rate=1e30", EVERY_STEP)
    assert main(command(recipe, recipe_file, *changes)) == 1
    assert "start again under another name with a lower learning_rate" in capsys.readouterr().err
    assert not (recipe.folder / "pretrained").exists()
    for file in (recipe.folder / "pretrain").glob("*.pt"):
        saved = torch.load(file, weights_only=True)
        assert all(tensor.isfinite().all() for tensor in saved["model"].values())
    assert main(["export", *command(recipe, recipe_file)[1:]]) == 1
    assert not (recipe.folder / "export").exists()


def test_pretraining_loss_is_the_mean_in_nats_over_masked_tokens_plus_that_over_pairs(
    make_recipe: MakeRecipe,
) -> None:
    recipe = make_recipe()
    tokenizer = Tokenizer.load(recipe.folder / "tokenizer")
    text = PreparedText.open(recipe.folder / "corpus" / "train")
    model = new_model(recipe, tokenizer).eval()
    stream = PretrainingStream(text, Vocabulary.of(tokenizer), recipe.pretrain.examples, 1, 256)
    examples = stream.window(0, 0)
    batch = stream.collate([examples.make(i) for i in range(6)])
    batch._fields()[2][0] = 0  # 0 is a token like any other
    loss, metrics = PretrainingLoss(model)(batch)
    hidden = model(batch.packed)
    masked = batch.masked_ids != IGNORE_INDEX
    assert 0 < masked.sum() < len(masked)
    words = model.masked_lm(hidden[batch.masked_rows[masked]]).log_softmax(1)
    mlm = -words[torch.arange(len(words)), batch.masked_ids[masked]].mean()
    labelled = batch.next_labels != IGNORE_INDEX
    assert model.next_sentence is not None
    pairs = model.next_sentence(hidden[batch.cls_rows[labelled]]).log_softmax(1)
    nsp = -pairs[torch.arange(len(pairs)), batch.next_labels[labelled]].mean()
    torch.testing.assert_close(loss, mlm + nsp)
    torch.testing.assert_close(metrics[:, 0] / metrics[:, 1], torch.stack([mlm + nsp, mlm, nsp]))


def test_pretrain_without_heldout_text_names_the_remedy(make_recipe: MakeRecipe) -> None:
    recipe = make_recipe().model_copy(update={"run": Path("nowhere")})
    with pytest.raises(CorpusError, match=r"heldout_fraction .* two documents or more .* run prepare again"):
        open_heldout(recipe)


def test_pretrain_before_prepare_names_the_command(make_recipe: MakeRecipe, recipe_file: Path) -> None:
    recipe = make_recipe()
    (recipe.folder / "corpus" / "train" / "manifest.json").unlink()
    with pytest.raises(CorpusError, match="run prepare"):
        pretrain(load_recipe(str(recipe_file), recipe.overrides))
