"""`distill`: a teacher's probabilities as a column, and a student that learns from them."""

from __future__ import annotations

import json
import logging
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from model import BertForSequenceClassification, PackedBatch, Tokenizer, load_checkpoint, save_checkpoint
from tests.training.conftest import MakeRecipe
from tests.training.texts import review
from training.__main__ import STOPPED, main
from training.corpus.prepare import prepare_labelled
from training.corpus.reader import PreparedText
from training.errors import CorpusError, RunError
from training.evaluate.classification import predict_classification
from training.examples.labelled import Fold, LabelledStream, labelled_window
from training.export.run import export
from training.finetune.distill import distill
from training.finetune.run import finetune, starting_point, train_teachers
from training.finetune.task import classifier_from
from training.loop.trainer import Trainer
from training.pretrain.run import new_model
from training.recipe import Recipe, SourceConfig, load_recipe, read_resolved

LARGER = ("model.hidden_size=64", "finetune.learning_rate=2e-3")


def changed(recipe: Recipe, **changes: object) -> Recipe:
    return recipe.model_copy(update={"finetune": recipe.finetune.model_copy(update=changes)})


def save_new_network(recipe: Recipe) -> Recipe:
    tokenizer = Tokenizer.load(recipe.folder / "tokenizer")
    save_checkpoint(recipe.folder / "pretrained", new_model(recipe, tokenizer), tokenizer)
    return recipe


def run_distill(recipe: Recipe) -> None:
    start, recipe = starting_point(recipe)
    distill(recipe, start.tokenizer)


def set_distill(recipe: Recipe, **changes: object) -> Recipe:
    assert recipe.distill is not None
    return recipe.model_copy(update={"distill": recipe.distill.model_copy(update=changes)})


def columns(recipe: Recipe) -> list[Path]:
    return sorted((recipe.folder / "labelled" / "train").glob("*/target_probs.npy"))


@pytest.fixture(scope="module")
def teacher(make_recipe_in: MakeRecipe, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier of reviews that is nearly always right."""
    recipe = make_recipe_in(tmp_path_factory.mktemp("teacher"), *LARGER, "finetune.epochs=12")
    torch.set_num_threads(1)
    assert finetune(save_new_network(recipe))
    return recipe.folder / "sentiment"


@pytest.fixture(scope="module")
def other_teacher(make_recipe_in: MakeRecipe, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier with new weights."""
    recipe = make_recipe_in(tmp_path_factory.mktemp("other-teacher"), "seed=5")
    tokenizer = Tokenizer.load(recipe.folder / "tokenizer")
    folder = recipe.folder / "sentiment"
    save_checkpoint(folder, classifier_from(new_model(recipe, tokenizer), recipe.finetune, 5), tokenizer)
    return folder


@pytest.fixture
def recipe(make_recipe: MakeRecipe, teacher: Path) -> Recipe:
    """A recipe with a teacher and a source without labels."""
    unlabelled = 'distill.sources=[{name="more", path="test.jsonl"}]'
    recipe = make_recipe(f"distill.teacher={teacher}", unlabelled, "finetune.epochs=0.2")
    return save_new_network(changed(recipe, test=()))


def test_distill_writes_the_teachers_probabilities_beside_each_shard(
    recipe: Recipe, teacher: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    run_distill(recipe)
    text = PreparedText.open(recipe.folder / "labelled" / "train")
    assert [shard.source for shard in text.shards] == ["reviews", "more"]
    assert len(columns(recipe)) == 2
    window = text.window()
    probabilities, labels = window.column("target_probs"), window.column("labels")
    assert probabilities is not None
    assert labels is not None
    assert probabilities.shape == (text.documents, 2)
    np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-5)
    assert (labels[-20:] == -1).all(), "the texts without a label"

    loaded = load_checkpoint(teacher)
    assert isinstance(loaded.model, BertForSequenceClassification)
    first, last = window.sentence_starts[window.document_starts[[0, 1]]]
    ids = [loaded.tokenizer.cls_id, *window.tokens(first, last).tolist(), loaded.tokenizer.sep_id]
    with torch.no_grad():
        expected = loaded.model.eval()(PackedBatch.pack([ids], outputs=[[0]])).softmax(1)[0]
    np.testing.assert_allclose(probabilities[0], expected, atol=0.02)
    assert f"labelled {text.documents} texts in {text.folder}" in caplog.messages[-1]


def test_distill_targets_mix_labels_and_probabilities(recipe: Recipe) -> None:
    run_distill(recipe)
    window = PreparedText.open(recipe.folder / "labelled" / "train").window()
    tokenizer = Tokenizer.load(recipe.folder / "tokenizer")
    probabilities, labels = window.column("target_probs"), window.column("labels")
    assert probabilities is not None
    assert labels is not None
    known = labels >= 0
    targets = labelled_window(window, tokenizer, 2, 48, teacher_weight=0.25).targets
    one_hot = np.eye(2)[labels[known]]
    np.testing.assert_allclose(targets[known], 0.75 * one_hot + 0.25 * probabilities[known], atol=1e-6)
    np.testing.assert_allclose(targets[~known], probabilities[~known], atol=1e-6)


def test_finetune_without_the_teachers_labels_names_the_command(recipe: Recipe) -> None:
    with pytest.raises(RunError, match=r"has no labels of .*/sentiment; run distill first"):
        finetune(recipe)


def test_finetune_keeps_the_teachers_labels_when_it_refuses_changed_settings(recipe: Recipe) -> None:
    run_distill(recipe)
    made = {file: file.stat().st_mtime_ns for file in columns(recipe)}
    with pytest.raises(RunError, match=r"has the labels \['NEGATIVE', 'POSITIVE'\], but finetune.labels are"):
        finetune(changed(recipe, labels={"0": "BAD", "1": "GOOD"}))
    with pytest.raises(RunError, match=r"labelled was made from another recipe, .* or run distill again"):
        finetune(changed(recipe, dev_fraction=0.3))
    assert {file: file.stat().st_mtime_ns for file in columns(recipe)} == made
    assert finetune(recipe)


def test_finetune_without_repeated_overrides_learns_from_the_teacher(
    recipe: Recipe, recipe_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    run_distill(recipe)
    assert recipe.distill is not None
    places = [f"data={recipe.data}", f"run={recipe.run}", "finetune.epochs=0.2"]
    later = changed(load_recipe(str(recipe_file), places), test=())
    assert later.distill is None
    assert finetune(later)
    teacher = recipe.distill.teacher
    assert f"learning from the labels of {teacher}; to learn without them, remove [distill]" in caplog.text
    resolved = read_resolved(recipe.folder / "finetune" / "seed-1")
    assert resolved is not None
    assert resolved.distill == recipe.distill
    assert f"distill.teacher={teacher}" in resolved.overrides
    assert len(columns(recipe)) == 2


def test_distill_interrupted_continues_with_the_missing_shards(recipe: Recipe) -> None:
    run_distill(recipe)
    first, second = columns(recipe)
    wanted, kept = np.load(second), first.stat().st_mtime_ns
    second.unlink()
    (second.parent.parent / "teacher.json").unlink()
    with pytest.raises(RunError, match="run distill first"):
        finetune(recipe)
    run_distill(recipe)
    np.testing.assert_array_equal(np.load(second), wanted)
    assert first.stat().st_mtime_ns == kept
    run_distill(recipe)  # nothing is left to do
    assert first.stat().st_mtime_ns == kept


def test_shard_that_was_damaged_is_labelled_again_before_it_is_learned_from(recipe: Recipe) -> None:
    run_distill(recipe)
    first, second = columns(recipe)
    before = np.load(first), np.load(second)
    (first.parent / "labels.npy").write_bytes(b"")
    with pytest.raises(CorpusError, match="have no labels of the teacher; run distill again"):
        finetune(recipe)
    assert columns(recipe) == [second], "prepare has made the first again"
    run_distill(recipe)
    for wanted, made in zip(before, columns(recipe), strict=True):
        np.testing.assert_array_equal(np.load(made), wanted)
    assert finetune(recipe)


def test_distill_by_another_teacher_replaces_the_column_and_is_another_run(recipe: Recipe, other_teacher: Path) -> None:
    run_distill(recipe)
    assert finetune(recipe)
    before = np.load(columns(recipe)[0])
    other = set_distill(recipe, teacher=other_teacher)
    with pytest.raises(RunError, match="run distill first"):
        finetune(other)
    run_distill(other)
    assert np.abs(np.load(columns(recipe)[0]) - before).max() > 0.1
    with pytest.raises(RunError, match="the teacher has changed"):
        finetune(other)


def test_student_learns_from_the_teacher_where_labels_are_wrong(
    make_recipe: MakeRecipe, teacher: Path, tmp_path: Path
) -> None:
    rng = random.Random(7)
    for name, count in (("wrong", 60), ("unlabelled", 120)):
        rows = [{"text": review(rng, good=i % 2 == 1), "label": 1 - i % 2} for i in range(count)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    overrides = (
        f"distill.teacher={teacher}",
        "distill.weight=1",
        "finetune.dev_fraction=0",
        "finetune.epochs=8",
    )
    recipe = make_recipe(*LARGER, *overrides)
    unlabelled = SourceConfig(path=str(tmp_path / "unlabelled.jsonl"))
    recipe = changed(recipe, train=(SourceConfig(path=str(tmp_path / "wrong.jsonl"), label="label"),))
    recipe = save_new_network(set_distill(recipe, sources=(unlabelled,)))
    run_distill(recipe)
    assert finetune(recipe)
    loaded = load_checkpoint(recipe.folder / "sentiment")
    assert isinstance(loaded.model, BertForSequenceClassification)
    window = PreparedText.open(recipe.folder / "labelled" / "train").window()
    answers = predict_classification(loaded.model, labelled_window(window, loaded.tokenizer, 2, 48, 1.0))
    assert answers.figures()["accuracy"].value >= 0.9, "as the teacher says"


def test_distill_without_a_teacher_is_refused(make_recipe: MakeRecipe) -> None:
    with pytest.raises(
        RunError, match=r"no \[distill\]: name a classifier, distill.teacher=\S+, or learn from this run's own teachers"
    ):
        run_distill(save_new_network(make_recipe()))


def test_distill_by_a_teacher_that_is_no_classifier_or_has_other_labels_is_refused(
    make_recipe: MakeRecipe, pretrained: Path, teacher: Path
) -> None:
    recipe = save_new_network(make_recipe(f"distill.teacher={pretrained}"))
    with pytest.raises(RunError, match="is not a classifier"):
        run_distill(recipe)
    distilled = set_distill(recipe, teacher=teacher)
    with pytest.raises(RunError, match=r"has the labels \['NEGATIVE', 'POSITIVE'\], but finetune.labels are"):
        run_distill(changed(distilled, labels={"0": "BAD", "1": "GOOD"}))


FOLDS = ("distill.folds=2", "finetune.epochs=0.5")


def test_distill_without_a_teacher_trains_one_per_fold_and_each_labels_what_it_has_not_read(
    make_recipe: MakeRecipe, recipe_file: Path
) -> None:
    unlabelled = 'distill.sources=[{name="more", path="test.jsonl"}]'
    recipe = changed(save_new_network(make_recipe(*FOLDS, unlabelled)), test=())
    folders = [recipe.folder / "teachers" / f"fold-{number}" for number in (0, 1)]
    with pytest.raises(RunError, match=f"{folders[0] / 'model'} is missing; run distill first"):
        finetune(recipe)
    assert train_teachers(recipe)
    run_distill(recipe)
    text = PreparedText.open(recipe.folder / "labelled" / "train")
    together, groups, labels = (text.column(name) for name in ("target_probs", "groups", "labels"))
    assert together is not None
    assert groups is not None
    assert labels is not None
    alone = []
    for folder in folders:
        run_distill(set_distill(recipe, teacher=folder / "model"))
        alone.append(text.column("target_probs"))
    assert np.abs(alone[0] - alone[1]).max() > 1e-3
    for number, is_unread in enumerate([groups % 2 == 0, groups % 2 == 1]):
        chosen = is_unread & (labels >= 0)
        assert chosen.any()
        np.testing.assert_allclose(together[chosen], alone[number][chosen], atol=1e-6)
    assert (labels == -1).any()
    np.testing.assert_allclose(together[labels == -1], (alone[0] + alone[1])[labels == -1] / 2, atol=1e-6)


def test_distill_is_repeated_and_continued_by_the_same_command(make_recipe: MakeRecipe, recipe_file: Path) -> None:
    recipe = save_new_network(make_recipe(*FOLDS, "distill.weight=0.7"))
    arguments = [str(recipe_file), f"data={recipe.data}", f"run={recipe.run}", *FOLDS]
    assert main(["distill", *arguments, "distill.weight=0.7"]) == 0
    made = np.load(columns(recipe)[0])
    assert main(["distill", *arguments, "distill.weight=0.7"]) == 0, "labels again"
    np.testing.assert_array_equal(np.load(columns(recipe)[0]), made)
    assert main(["finetune", *arguments]) == 0, "which need not repeat distill.weight"
    resolved = read_resolved(recipe.folder / "finetune" / "seed-1")
    assert resolved is not None
    assert resolved.distill == recipe.distill


def test_teacher_reads_only_the_labelled_texts_of_the_other_folds(make_recipe: MakeRecipe) -> None:
    recipe = save_new_network(make_recipe(*FOLDS, 'distill.sources=[{name="more", path="test.jsonl"}]'))
    recipe = changed(recipe, test=())
    tokenizer = Tokenizer.load(recipe.folder / "tokenizer")
    text = PreparedText.open(prepare_labelled(recipe, tokenizer) / "train")
    groups, labels = text.column("groups"), text.column("labels")
    assert groups is not None
    assert labels is not None
    assert (labels == -1).any()
    for number in (0, 1):
        stream = LabelledStream(text, tokenizer, 2, 48, None, 1, 256, left_out=Fold(number, 2))
        window = stream.window(0, 0)
        read = groups[window._order]
        assert len(window) == stream.documents == ((groups % 2 != number) & (labels >= 0)).sum()
        assert (read % 2 != number).all()
        assert (labels[window._order] >= 0).all()
    student = LabelledStream(text, tokenizer, 2, 48, 0.5, 1, 256)
    assert student.documents == text.documents


def test_distill_interrupted_among_the_teachers_says_so_and_continues(
    make_recipe: MakeRecipe, recipe_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = save_new_network(make_recipe())
    arguments = ["distill", str(recipe_file), f"data={recipe.data}", f"run={recipe.run}", *FOLDS, "distill.weight=1"]
    real = Trainer.run
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "run", lambda self: self.config.seed == 1 and real(self))
        assert main(arguments) == STOPPED
    assert "stopped; to continue: python -m training distill" in capsys.readouterr().err
    assert not columns(recipe)
    assert main(arguments) == 0
    assert columns(recipe)


def test_teacher_of_another_vocabulary_is_refused(recipe: Recipe, teacher: Path, tmp_path: Path) -> None:
    loaded = load_checkpoint(teacher)
    words = [*loaded.tokenizer.vocab[:-1], "zzz"]
    save_checkpoint(tmp_path / "other", loaded.model, Tokenizer.from_vocab(words))
    with pytest.raises(RunError, match="has another vocabulary than the network to fine-tune; a teacher reads"):
        run_distill(set_distill(recipe, teacher=tmp_path / "other"))


def test_finetune_takes_the_teachers_of_the_last_distill(make_recipe: MakeRecipe, recipe_file: Path) -> None:
    recipe = save_new_network(make_recipe("finetune.epochs=0.5"))
    file = recipe_file.with_name("distilled.toml")
    file.write_text(recipe_file.read_text() + "\n[distill]\nweight = 0.7\n")
    arguments = [str(file), f"data={recipe.data}", f"run={recipe.run}", "finetune.epochs=0.5"]
    assert main(["distill", *arguments, "distill.folds=2"]) == 0
    assert main(["finetune", *arguments]) == 0, "the folds need not be repeated"
    *_, target = export(recipe)
    card = (target / "README.md").read_text()
    said = (
        "It learned from the labels of 2 classifiers, each on the texts that it has not read, too, with the weight 0.7."
    )
    assert said in card
    teacher = recipe.folder / "teachers" / "fold-0" / "model"
    assert main(["distill", *arguments, f"distill.teacher={teacher}", "distill.weight=0.9"]) == 0
    shutil.rmtree(recipe.folder / "finetune")
    assert main(["finetune", *arguments]) == 0, "nor the teacher"
    resolved = read_resolved(recipe.folder / "finetune" / "seed-1")
    assert resolved is not None
    assert resolved.distill is not None
    assert (resolved.distill.teacher, resolved.distill.weight) == (teacher, 0.9)
    *_, target = export(recipe)
    card = (target / "README.md").read_text()
    assert "It learned from the labels of `runs/tiny/teachers/fold-0/model` too, with the weight 0.9." in card


def test_labels_of_two_teachers_are_not_mixed(
    recipe: Recipe, other_teacher: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_distill(recipe)
    with monkeypatch.context() as patch:
        patch.setattr("training.finetune.distill._labelled", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run_distill(set_distill(recipe, teacher=other_teacher))
    with pytest.raises(RunError, match="run distill first"):
        finetune(recipe)


def test_distill_again_with_another_weight_is_what_finetune_learns_with(recipe: Recipe, recipe_file: Path) -> None:
    run_distill(recipe)
    run_distill(set_distill(recipe, weight=0.25))
    places = [f"data={recipe.data}", f"run={recipe.run}", "finetune.epochs=0.2"]
    assert finetune(changed(load_recipe(str(recipe_file), places), test=()))
    resolved = read_resolved(recipe.folder / "finetune" / "seed-1")
    assert resolved is not None
    assert resolved.distill is not None
    assert resolved.distill.weight == 0.25
