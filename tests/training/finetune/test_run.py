"""`finetune`: learning, kept weights, seeds, resumes and refusals."""

from __future__ import annotations

import json
import logging
import random
import shutil
import signal
import sys
from functools import partial
from itertools import islice
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from model import BertForPreTraining, BertForSequenceClassification, Tokenizer, load_checkpoint
from tests.conftest import MakeCheckpoint
from tests.training.commands import finish, occupied, start, until
from tests.training.conftest import MakeRecipe
from tests.training.one_cpu import one_cpu
from tests.training.stages import made, save_new_network
from tests.training.texts import BLAME, PRAISE, sentence, squeezed
from training.corpus.reader import PreparedText
from training.errors import RunError
from training.evaluate.run import evaluate
from training.examples.labelled import LabelledStream
from training.finetune.plan import PlanPolicy, bag_weight, planned
from training.finetune.run import EVALUATIONS, _kept_plan, check_start
from training.finetune.selection import best_seed
from training.finetune.task import classifier_from
from training.loop.log import RunLog
from training.pipeline import Pipeline
from training.recipe import FinetuneConfig, Recipe, SourceConfig, read_resolved, write_resolved
from training.runtime.distributed import DistContext
from training.runtime.files import DONE, read_json, write_json

TORCHRUN = (
    "-m",
    "torch.distributed.run",
    "--nproc-per-node=2",
    "--rdzv-backend=c10d",
    "--rdzv-endpoint=localhost:0",
)


def seed_folder(recipe: Recipe, seed: int = 1) -> Path:
    return Pipeline(recipe).seeds[seed].folder


def changed(recipe: Recipe, **changes: object) -> Recipe:
    return recipe.model_copy(update={"finetune": recipe.finetune.model_copy(update=changes)})


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def same(one: Path, other: Path) -> bool:
    first, second = weights(one), weights(other)
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def command(recipe: Recipe, file: Path, *overrides: str) -> list[str]:
    return ["finetune", str(file), f"data={recipe.data}", f"run={recipe.run}", *overrides]


@pytest.fixture(scope="module")
def finished(make_recipe_in: MakeRecipe, tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    """An uninterrupted run with two seeds."""
    recipe = save_new_network(make_recipe_in(tmp_path_factory.mktemp("finetuned"), "finetune.seeds=[1, 2]"))
    torch.set_num_threads(1)
    assert made(recipe, "finetune")
    return recipe


# --- what is learned -----------------------------------------------------------------------------------------------


def write_reviews(file: Path, count: int, seed: int) -> None:
    """Reviews whose title has an opinion and whose body has none."""
    rng = random.Random(seed)
    rows = [
        {"title": f"A {rng.choice(PRAISE if i % 2 else BLAME)} thing.", "body": sentence(rng), "label": i % 2}
        for i in range(count)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_finetune_with_read_both_is_as_good_on_pairs_as_on_single_texts(
    make_recipe: MakeRecipe, tmp_path: Path
) -> None:
    write_reviews(tmp_path / "titles.jsonl", 320, seed=1)
    write_reviews(tmp_path / "titles-test.jsonl", 100, seed=2)
    recipe = make_recipe(
        *(
            "model.hidden_size=64",
            "finetune.learning_rate=2e-3",
            "finetune.passes=5",
            "finetune.dev_fraction=0.1",
        )
    )
    train, test = (
        SourceConfig(path=str(tmp_path / name), text=("title", "body"), read="both", label="label")
        for name in ("titles.jsonl", "titles-test.jsonl")
    )
    recipe = save_new_network(changed(recipe, train=(train,), test=(test,)))
    assert made(recipe, "finetune")
    evaluate(Pipeline(recipe))
    figures = json.loads((recipe.folder / "report.json").read_text())["classification"]
    names = ("titles-test", "titles-test (pair)")
    single, pair = (figures[name]["figures"]["this model"]["accuracy"]["value"] for name in names)
    assert single >= 0.95
    assert abs(single - pair) <= 0.03


# --- what is kept --------------------------------------------------------------------------------------------------


def test_finetune_keeps_the_last_weights_of_each_seed(finished: Recipe) -> None:
    for seed, result in Pipeline(finished).results().items():
        log = RunLog(seed_folder(finished, seed) / "log.jsonl")
        *_, last = looks = [line for line in log if line["event"] == "evaluation"]
        assert len(looks) == EVALUATIONS
        assert (result.dev_score, result.dev_loss) == (last["dev_score"], last["dev_loss"])


def test_finetune_goes_on_with_the_plan_that_it_began_with(make_recipe: MakeRecipe, tmp_path: Path) -> None:
    recipe = make_recipe()
    assert _kept_plan(recipe, tmp_path, DistContext()) == recipe
    write_resolved(recipe, tmp_path)
    other = changed(recipe, batch_tokens=512, learning_rate=1e-3)  # as that of more processes
    other = other.model_copy(update={"micro_batch_tokens": 128})  # after memory has run out
    kept = _kept_plan(other, tmp_path, DistContext())
    assert (kept.finetune, kept.micro_batch_tokens) == (recipe.finetune, 128)


def test_finetune_learns_from_the_bag_of_words_without_texts_and_scikit_learn(
    make_recipe: MakeRecipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = save_new_network(make_recipe("finetune.bag_weight=0.5"))
    assert made(recipe, "prepare")
    for file in recipe.folder.glob("stages/labelled-*/*/texts.jsonl.gz"):
        file.unlink()
    monkeypatch.setitem(sys.modules, "training.finetune.bag", None)
    assert made(recipe, "finetune")
    untaught = changed(recipe, bag_weight=0.0)
    assert made(untaught, "finetune")
    assert not same(seed_folder(recipe) / "model", seed_folder(untaught) / "model")
    shutil.rmtree(Pipeline(recipe).bag.folder)
    again = changed(recipe, seeds=(2,))
    with pytest.raises(RunError, match=r"scikit-learn is missing: run prepare .* copy stages/bag-\*"):
        made(again, "finetune")
    few = partial(bag_weight, policy=PlanPolicy(max_bag_texts=10))
    monkeypatch.setattr("training.pipeline.bag_weight", few)
    assert made(changed(again, bag_weight=None), "finetune"), "of many texts, no bag is needed"


def test_finetune_of_all_rows_takes_plan_calibration_and_configuration_of_the_best_seed(
    make_recipe: MakeRecipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = partial(planned, policy=PlanPolicy(min_steps=20, max_passes=1))
    monkeypatch.setattr("training.finetune.run.planned", short)
    recipe = make_recipe("finetune.all_rows=true", "finetune.seeds=[1,2]", "finetune.bag_weight=0.5")
    recipe = save_new_network(changed(recipe, test=(), test_fraction=0.2, passes=None, max_length=32))
    weights_of = []
    for temperature in (1.0, 2.0):
        for seed in (1, 2):
            assert made(changed(recipe, seeds=(seed,), all_rows=False), "prepare", "finetune")
            folder = seed_folder(recipe, seed)
            record = read_json(folder / DONE) or {}
            write_json(folder / DONE, record | {"temperature": temperature, "files": {}})
            config = (folder / "model" / "config.json").read_text()
            (folder / "model" / "config.json").write_text(config.replace('"head_tail"', '"tail"'))
        assert made(recipe, "prepare", "finetune")
        final, best = Pipeline(recipe).final, Pipeline(recipe).best
        assert final is not None
        assert (recipe.folder / "classifier").resolve() == final.folder / "model"
        assert load_checkpoint(final.folder / "model").config.truncation == "tail"
        resolved = [read_resolved(stage.folder) for stage in (final, best)]
        assert len({each and each.finetune.passes for each in resolved}) == 1, "a plan for more texts has fewer"
        assert (final.record or {})["texts"] == 80 > (best.record or {})["texts"]
        assert (final.record or {})["result"]["seed"] == best.settings["seed"]
        weights_of.append(weights(final.folder / "model")["classifier.weight"].float())
        shutil.rmtree(final.folder)
    torch.testing.assert_close(weights_of[0], 2 * weights_of[1], rtol=1e-2, atol=1e-3)


def test_finetune_keeps_the_best_of_several_seeds(finished: Recipe) -> None:
    results = Pipeline(finished).results()
    assert list(results) == [1, 2]
    folders = [seed_folder(finished, seed) / "model" for seed in (1, 2)]
    assert not same(*folders)
    best = best_seed(list(results.values())).seed
    assert (finished.folder / "classifier").resolve() == seed_folder(finished, best) / "model"
    assert (finished.folder / "finetune").resolve() == seed_folder(finished, best)
    resolved = read_resolved(folders[0].parent)
    assert resolved is not None
    assert resolved.finetune.passes, "what the recipe leaves out is chosen and kept"
    assert resolved.finetune.train == finished.finetune.train


def test_finetune_checkpoint_has_labels_and_truncation(finished: Recipe) -> None:
    config = load_checkpoint(finished.folder / "classifier").config
    assert config.labels == ["NEGATIVE", "POSITIVE"]
    assert config.truncation == "head_tail"


def test_finetune_of_seeds_that_are_trained_only_chooses_among_them(
    make_recipe: MakeRecipe, finished: Recipe, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = make_recipe()
    shutil.rmtree(recipe.folder)
    shutil.copytree(finished.folder, recipe.folder, symlinks=True)
    caplog.set_level(logging.INFO)
    monkeypatch.setattr("training.pipeline.finetune", None)
    for seeds in ((1, 2), (2,), (1,)):
        assert made(changed(recipe, seeds=seeds), "finetune")
        assert caplog.messages[-1] == f"{seed_folder(changed(recipe, seeds=seeds), seeds[-1])}: already there"
    assert (recipe.folder / "classifier").resolve() == seed_folder(recipe, 1) / "model"


def test_finetune_killed_ends_with_the_same_weights(
    make_recipe: MakeRecipe, recipe_file: Path, finished: Recipe
) -> None:
    recipe = save_new_network(make_recipe("finetune.seeds=[1, 2]"))
    with one_cpu():
        process = start(*command(recipe, recipe_file, "finetune.seeds=[1, 2]", "checkpoint_minutes=1e-9"))
    until(process, " 68%, ")
    process.kill()
    assert finish(process)[0] == -signal.SIGKILL
    assert not (recipe.folder / "classifier").exists()
    assert made(recipe, "finetune")
    assert same(recipe.folder / "classifier", finished.folder / "classifier")
    assert Pipeline(recipe).results() == Pipeline(finished).results()


def test_finetune_on_two_processes_prepares_text_once_and_keeps_one_classifier(
    make_recipe: MakeRecipe, recipe_file: Path
) -> None:
    recipe = save_new_network(make_recipe())
    changes = ("finetune.batch_tokens=512", "finetune.passes=1", "finetune.all_rows=true")
    status, out, errors = finish(start(*command(recipe, recipe_file, *changes), launcher=TORCHRUN))
    assert status == 0, errors
    assert out.count("train       100%") == 2, "rank 0 logs"
    assert (recipe.folder / "classifier").resolve().parent.name.startswith("final-")
    assert isinstance(load_checkpoint(recipe.folder / "classifier").model, BertForSequenceClassification)


# --- what it starts from -------------------------------------------------------------------------------------------


def test_classifier_starts_from_the_pretrained_encoder_and_pooler(pretrained: Path) -> None:
    source = load_checkpoint(pretrained).model
    assert isinstance(source, BertForPreTraining)
    labels = {"bad": "NEGATIVE", "so-so": "NEUTRAL", "good": "POSITIVE"}
    model = classifier_from(source, FinetuneConfig(labels=labels), seed=1)
    assert model.training
    for name, tensor in source.encoder.state_dict().items():
        assert torch.equal(model.encoder.state_dict()[name], tensor)
    assert source.next_sentence is not None
    assert torch.equal(model.pooler.dense.weight, source.next_sentence.pooler.dense.weight)
    assert model.config.labels == ["NEGATIVE", "NEUTRAL", "POSITIVE"]
    assert (model.config.hidden_dropout_prob, model.config.attention_probs_dropout_prob) == (0.1, 0.0)


def test_classifier_starts_from_a_checkpoint_without_next_sentence_head(
    save_pretrained: MakeCheckpoint,
) -> None:
    source = load_checkpoint(save_pretrained("no-nsp", next_sentence=False)).model
    assert isinstance(source, BertForPreTraining)
    assert isinstance(classifier_from(source, FinetuneConfig(), 1), BertForSequenceClassification)


def test_classifier_continues_from_a_classifier_of_the_same_labels(finished: Recipe) -> None:
    source = load_checkpoint(finished.folder / "classifier").model
    assert isinstance(source, BertForSequenceClassification)
    further = classifier_from(source, FinetuneConfig().in_order_of(source.config.labels), seed=7)
    before = source.state_dict()
    assert all(torch.equal(before[name], tensor) for name, tensor in further.state_dict().items())


def test_classifier_of_other_labels_gives_encoder_and_pooler(finished: Recipe) -> None:
    source = load_checkpoint(finished.folder / "classifier").model
    assert isinstance(source, BertForSequenceClassification)
    model = classifier_from(source, FinetuneConfig(labels={"a": "A", "b": "B"}), seed=7)
    before, after = source.state_dict(), model.state_dict()
    differing = {name for name, tensor in after.items() if not torch.equal(before[name], tensor)}
    assert differing == {"classifier.weight", "classifier.bias"} or differing == {"classifier.weight"}


def test_classifier_continues_with_its_labels_in_its_own_order(make_recipe: MakeRecipe, finished: Recipe) -> None:
    start = f"finetune.pretrained={finished.folder / 'classifier'}"
    recipe = make_recipe(start, "finetune.passes=0.2", "finetune.labels={1='POSITIVE',0='NEGATIVE'}")
    assert made(recipe, "finetune")
    assert load_checkpoint(recipe.folder / "classifier").config.labels == ["NEGATIVE", "POSITIVE"]
    assert "| reviews | 20 |" in squeezed(evaluate(Pipeline(recipe)))


def test_finetune_with_another_setting_or_network_is_another_result(
    make_recipe: MakeRecipe, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = save_new_network(make_recipe("finetune.passes=0.5", "finetune.seeds=[1]"))
    assert made(recipe, "finetune")
    assert "advice      only 4 steps hardly move a network: repeat with more time (--min" in capsys.readouterr().out
    before = weights(seed_folder(recipe) / "model")
    network = recipe.pretrain.model_copy(update={"learning_rate": 0.5})
    for other in (changed(recipe, passes=1), recipe.model_copy(update={"pretrain": network})):
        assert made(save_new_network(other, seed=2), "finetune")
        assert not same(recipe.folder / "classifier", seed_folder(recipe) / "model")
    assert all(torch.equal(before[name], tensor) for name, tensor in weights(seed_folder(recipe) / "model").items())
    assert made(recipe, "finetune")
    assert (recipe.folder / "classifier").resolve() == seed_folder(recipe) / "model"


def test_finetune_reads_texts_as_often_as_passes_say(finished: Recipe) -> None:
    resolved = read_resolved(seed_folder(finished))
    assert resolved is not None
    config, tokenizer = resolved.finetune, Tokenizer.load(finished.folder / "tokenizer")
    text = PreparedText(Pipeline(finished).labelled.folder)
    stream = LabelledStream(text, tokenizer, config.max_length, None, 1, resolved.micro_tokens(config))
    passes = [len(window) for window in islice(stream.windows(), round(config.passes or 0))]
    steps = list(RunLog(seed_folder(finished) / "log.jsonl"))[-1]["step"]
    assert len(passes) == config.passes == 2 == (read_json(seed_folder(finished) / DONE) or {})["passes"]
    assert abs(steps - sum(passes) * stream.micro_batch_tokens / (config.batch_tokens or 0)) <= 1


def test_finetune_reads_texts_less_often_for_a_budget_in_minutes(
    make_recipe: MakeRecipe, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = save_new_network(make_recipe("finetune.passes=4", "finetune.minutes=1e-9"))
    assert made(recipe, "finetune")
    printed = capsys.readouterr().out
    assert "budget      4 steps of 256 tokens, which read the text 0.5 times: about " in printed
    assert "advice      4 passes would be better, and take" in printed
    assert list(RunLog(seed_folder(recipe) / "log.jsonl"))[-1]["step"] == 4


def test_finetune_pretrained_that_is_no_checkpoint_names_the_key(make_recipe: MakeRecipe, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"finetune\.pretrained: .*config\.json"):
        made(make_recipe(f"finetune.pretrained={tmp_path}"), "finetune")


def test_finetune_max_length_above_the_positions_of_the_network_is_refused(
    make_recipe: MakeRecipe, save_pretrained: MakeCheckpoint
) -> None:
    short = save_pretrained("short", max_position_embeddings=16)
    with pytest.raises(RunError, match="has 16 positions, not 48: lower max_length"):
        made(make_recipe(f"finetune.pretrained={short}"), "finetune")


def test_finetune_on_pairs_from_a_network_of_one_token_type_is_refused(
    make_recipe: MakeRecipe, save_pretrained: MakeCheckpoint
) -> None:
    recipe = make_recipe(f"finetune.pretrained={save_pretrained(type_vocab_size=1)}")
    start = Pipeline(recipe).start
    assert start is not None
    check_start(recipe, start)
    pairs = tuple(source.model_copy(update={"read": "pair"}) for source in recipe.finetune.train)
    with pytest.raises(
        RunError, match=r"takes single texts only \(its type_vocab_size is 1\), not pairs: set read = \"text\""
    ):
        check_start(changed(recipe, train=pairs), start)


def test_finetune_in_the_folder_of_a_running_process_is_refused(make_recipe: MakeRecipe) -> None:
    recipe = save_new_network(make_recipe())
    with (
        occupied(seed_folder(recipe) / "rank-0"),
        pytest.raises(RunError, match=r"another process works in .*finetune.*: wait until it ends"),
    ):
        made(recipe, "finetune")


def test_finetune_without_a_source_is_refused(make_recipe: MakeRecipe) -> None:
    with pytest.raises(RunError, match=r"finetune\.train"):
        made(save_new_network(make_recipe("finetune.train=[]")), "finetune")
