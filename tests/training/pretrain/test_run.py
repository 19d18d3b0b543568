"""`pretrain`: learning, budgets, kills, resumes and refusals."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from model import BertForPreTraining, Tokenizer, load_checkpoint
from tests.conftest import MakeCheckpoint
from tests.training.commands import finish, memory_layout, start, until
from tests.training.conftest import MakeRecipe
from tests.training.one_cpu import one_cpu
from tests.training.stages import made
from training.command import main
from training.corpus.reader import PreparedText
from training.errors import CorpusError, RunError
from training.examples.batches import PretrainingBatch
from training.examples.masking import Vocabulary
from training.examples.pairs import IGNORE_INDEX
from training.examples.pretraining import PretrainingStream
from training.loop.log import RunLog
from training.pipeline import Pipeline
from training.pretrain.run import load_pretrained, load_teacher, new_model, open_heldout
from training.pretrain.task import PretrainingLoss
from training.recipe import Recipe, read_resolved
from training.runtime.distributed import DistContext
from training.runtime.files import DONE, write_json

SETTINGS = ("pretrain.tokens=7680", "pretrain.dropout=0.1", "pretrain.examples.final_mask_fraction=0.1")
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


def pretrain(recipe: Recipe) -> bool:
    """Whether the command has finished."""
    return made(recipe, "pretrain")


@pytest.fixture(scope="module")
def finished(make_recipe_in: MakeRecipe, tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    """An uninterrupted run of 30 steps with dropout and a falling mask rate."""
    recipe = make_recipe_in(tmp_path_factory.mktemp("uninterrupted"), *SETTINGS)
    torch.set_num_threads(1)
    assert pretrain(recipe)
    return recipe


def test_pretrain_learns_a_small_language(make_recipe: MakeRecipe) -> None:
    changes = ("model.hidden_size=64", "micro_batch_tokens=512", "pretrain.batch_tokens=512")
    recipe = make_recipe(*changes, "finetune.batch_tokens=512", "pretrain.learning_rate=5e-3")
    recipe = changed(recipe, tokens=160 * 512)
    assert pretrain(recipe)
    figures = lines(recipe, "evaluation")[-1]["stories"]
    assert figures["mlm_loss"] < 0.8 * figures["unigram_entropy"]
    assert figures["mlm_accuracy"] > 0.15
    assert lines(recipe, "left_plateau")


def test_pretrain_writes_the_recipes_network_its_log_and_its_recipe(finished: Recipe) -> None:
    loaded = load_checkpoint(finished.folder / "pretrained")
    assert isinstance(loaded.model, BertForPreTraining)
    assert loaded.model.next_sentence is not None
    assert (loaded.config.hidden_size, loaded.config.max_position_embeddings) == (16, 512)
    last = lines(finished, "train")[-1]
    assert {"loss", "mlm_loss", "nsp_loss", "gradient_norm", "learning_rate"} <= last.keys()
    assert (last["step"], last["tokens"]) == (30, 7680)
    assert "stories" in lines(finished, "evaluation")[-1]
    assert read_resolved(finished.folder / "pretrain") == finished


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
    assert f"to continue: bert-train pretrain {recipe_file}" in errors
    assert list(Pipeline(recipe).pretrain.folder.glob("state-*.pt"))
    assert not (recipe.folder / "pretrained").exists()

    with one_cpu():
        process = start(*command(recipe, recipe_file, *SETTINGS, EVERY_STEP))
    until(process, " 80%, ")  # it falls
    process.kill()
    assert finish(process)[0] == -signal.SIGKILL
    assert not (recipe.folder / "pretrained").exists()

    assert pretrain(recipe)
    assert same(weights(recipe), weights(finished))
    for event in ("train", "evaluation"):
        steps = [line["step"] for line in lines(recipe, event)]
        assert steps == sorted(set(steps)), "the log repeats no step"
        assert steps[-1] == 30


def test_pretrain_on_few_examples_is_refused(make_recipe: MakeRecipe, tmp_path: Path) -> None:
    (tmp_path / "few.txt").write_text("The old sailor found a green boat. It was lost.\n\nA young doctor sold it.")
    recipe = make_recipe(f'corpus.sources=[{{path="{tmp_path / "few.txt"}"}}]')
    pipeline = Pipeline(recipe)
    assert pipeline.tokenizer.ensure(DistContext())
    assert pipeline.corpus.ensure(DistContext())
    with pytest.raises(
        CorpusError, match=r"64 tokens do not fill a batch of 256: add text, or lower micro_batch_tokens"
    ):
        pretrain(recipe)


def test_pretrain_budget_in_minutes_becomes_tokens(
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
    assert main(["export", *command(recipe, recipe_file, budget)[1:]]) == 0
    target = recipe.folder / "export" / "pretrained"
    exported = read_resolved(target)
    assert exported is not None
    assert exported.pretrain == resolved.pretrain
    assert f"{trained:,} tokens" in (target / "README.md").read_text()


def test_pretrain_start_continues_from_a_checkpoint_with_its_vocabulary_and_shape(
    finished: Recipe, make_recipe: MakeRecipe
) -> None:
    source = finished.folder / "pretrained"
    recipe = make_recipe(f"pretrain.start={source}", "pretrain.tokens=512", "model.preset=base", "seed=2")
    pipeline = Pipeline(recipe)
    assert pipeline.tokenizer.ensure(DistContext())
    assert pipeline.corpus.ensure(DistContext())
    tokenizer = Tokenizer.load(recipe.folder / "tokenizer")
    assert tokenizer.to_json() == Tokenizer.load(source).to_json()
    loaded = load_checkpoint(source).model.state_dict()
    assert same(dict(new_model(recipe, tokenizer).state_dict()), dict(loaded))
    assert pretrain(recipe)
    assert not same(weights(recipe), weights(finished))


@pytest.mark.parametrize(("key", "load"), [("start", new_model), ("teacher", load_teacher)])
def test_pretrain_with_a_network_that_does_not_fit_is_refused(
    make_recipe: MakeRecipe, pretrained: Path, key: str, load: Callable[[Recipe, Tokenizer], object]
) -> None:
    recipe = make_recipe(f"pretrain.{key}={pretrained}", "pretrain.examples.long_length=65")
    with pytest.raises(RunError, match=r"has 64 positions, not 65: lower .* long_length in pretraining"):
        load(recipe, Tokenizer.load(pretrained))
    with pytest.raises(RunError, match="has another vocabulary, or other model_input_names, than the prepared text"):
        load(recipe, Tokenizer.load(recipe.folder / "tokenizer"))


def test_pretrain_with_a_teacher_learns_its_relations_and_resumes_with_the_same_bits(
    finished: Recipe, make_recipe_in: MakeRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = (f"pretrain.teacher={finished.folder / 'pretrained'}", "pretrain.tokens=7680", "model.hidden_size=32")
    whole, parts = (make_recipe_in(tmp_path / name, *settings, "seed=2") for name in ("whole", "parts"))
    assert pretrain(whole)
    losses = [line["relation_loss"] for line in lines(whole, "train")]
    assert losses[-1] < 0.9 * losses[0]

    original = PretrainingLoss.forward
    calls: list[int] = []

    def stop_at_the_tenth_call(loss: PretrainingLoss, batch: PretrainingBatch) -> tuple[Tensor, Tensor]:
        calls.append(1)
        if len(calls) == 10:
            os.kill(os.getpid(), signal.SIGTERM)
        return original(loss, batch)

    with monkeypatch.context() as patch:
        patch.setattr(PretrainingLoss, "forward", stop_at_the_tenth_call)
        assert not pretrain(parts)
    (state,) = Pipeline(parts).pretrain.folder.glob("state-*.pt")
    assert (
        torch.load(state, weights_only=True)["model"].keys()
        == load_checkpoint(whole.folder / "pretrained").model.state_dict().keys()
    ), "the teacher is not saved"
    assert pretrain(parts)
    assert same(weights(whole), weights(parts))
    assert made(parts, "export")
    card = (parts.folder / "export" / "pretrained" / "README.md").read_text()
    assert "from random weights. It learned the attention relations of `tiny/pretrained`, too." in card


def test_pretrain_start_without_next_sentence_head_is_refused(sentiment: Path) -> None:
    with pytest.raises(RunError, match="is not a checkpoint with masked-LM and next-sentence heads"):
        load_pretrained(sentiment)


def test_pretrain_start_of_one_token_type_is_refused(save_pretrained: MakeCheckpoint) -> None:
    with pytest.raises(RunError, match=r"takes single texts only .*, not pairs"):
        load_pretrained(save_pretrained(type_vocab_size=1))


def test_pretraining_loss_is_the_mean_in_nats_over_masked_tokens_plus_that_over_pairs(
    make_recipe: MakeRecipe,
) -> None:
    recipe = make_recipe()
    tokenizer = Tokenizer.load(recipe.folder / "tokenizer")
    text = PreparedText(recipe.folder / "corpus", use="train")
    model = new_model(recipe, tokenizer).eval()
    stream = PretrainingStream(text, Vocabulary.of(tokenizer), recipe.pretrain.examples, 1, 256)
    batch = next(stream.windows()).batch(0, 0.0)
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
    torch.testing.assert_close(metrics[:3, 0] / metrics[:3, 1], torch.stack([mlm + nsp, mlm, nsp]))
    assert metrics[3].tolist() == [0, 0], "no teacher"
    loss.backward()
    assert all(weight.grad is not None for weight in model.parameters()), "one without a gradient would only decay"


def test_pretrain_without_heldout_text_names_the_remedy(tmp_path: Path) -> None:
    write_json(tmp_path / DONE, {"shards": [], "tokenizer_hash": "", "vocab_size": 0})
    with pytest.raises(CorpusError, match=r"heldout_fraction .* two documents or more .* run prepare again"):
        open_heldout(tmp_path)


def test_pretrain_in_other_processes_makes_the_same_bytes(
    make_recipe_in: MakeRecipe, recipe_file: Path, tmp_path: Path
) -> None:
    recipes = [make_recipe_in(tmp_path / name) for name in ("first", "second")]
    processes = [
        start(
            *("pretrain", str(recipe_file), f"data={recipe.data}", f"run={recipe.run}"),
            *(*SETTINGS, "model.hidden_size=128"),
            environment=memory_layout(number),
        )
        for number, recipe in enumerate(recipes, 1)
    ]
    for process in processes:
        status, _, errors = finish(process)
        assert status == 0, errors
    first, second = ((recipe.folder / "pretrained" / "model.safetensors").read_bytes() for recipe in recipes)
    assert first == second
