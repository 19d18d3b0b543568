"""`soft-labels`: a teacher's probabilities as a column, and a student that learns from them."""

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
from tests.training.stages import made, save_new_network
from tests.training.texts import review
from training.command import STOPPED, main
from training.corpus.parts import Part
from training.corpus.reader import PreparedText
from training.errors import RunError
from training.examples.labelled import Fold, LabelledStream, labelled_window, pass_size, trained_on
from training.export.run import export
from training.loop.trainer import Trainer
from training.metrics.classification import predict_classification
from training.pipeline import Pipeline
from training.recipe import Recipe, SourceConfig
from training.runtime.files import DONE
from training.stage import follow

LARGER = ("model.hidden_size=64", "finetune.learning_rate=2e-3")


def changed(recipe: Recipe, **changes: object) -> Recipe:
    return recipe.model_copy(update={"finetune": recipe.finetune.model_copy(update=changes)})


def set_teaching(recipe: Recipe, **changes: object) -> Recipe:
    assert recipe.soft_labels is not None
    return recipe.model_copy(update={"soft_labels": recipe.soft_labels.model_copy(update=changes)})


def soft_labels(recipe: Recipe) -> Path:
    stage = Pipeline(recipe).soft_labels
    assert stage is not None
    return stage.folder


def column(recipe: Recipe) -> Path:
    return soft_labels(recipe) / "target_probs.npy"


def labelled(recipe: Recipe) -> PreparedText:
    """The labelled texts with their soft labels."""
    return PreparedText(Pipeline(recipe).labelled.folder, places=[soft_labels(recipe)])


@pytest.fixture(scope="module")
def teacher(make_recipe_in: MakeRecipe, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier of reviews that is nearly always right."""
    recipe = make_recipe_in(tmp_path_factory.mktemp("teacher"), *LARGER, "finetune.passes=12")
    torch.set_num_threads(1)
    assert made(save_new_network(recipe), "finetune")
    return recipe.folder / "classifier"


@pytest.fixture
def recipe(make_recipe: MakeRecipe, teacher: Path) -> Recipe:
    """A recipe with a teacher and a source without labels."""
    unlabelled = 'soft_labels.sources=[{name="more", path="test.jsonl"}]'
    recipe = make_recipe(f"soft_labels.teacher={teacher}", unlabelled, "finetune.passes=0.2")
    return save_new_network(changed(recipe, test=()))


def test_soft_labels_writes_the_teachers_probabilities_of_all_texts_to_train_on(
    recipe: Recipe, teacher: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    assert made(recipe, "soft-labels")
    text = labelled(recipe)
    assert [shard.source for shard in text.shards] == ["reviews", "more"]
    window = text.window()
    probabilities, labels, rows = window.column("target_probs"), window.column("labels"), trained_on(window)
    assert probabilities.shape == (text.documents, 2)
    np.testing.assert_allclose(probabilities[rows].sum(1), 1, rtol=1e-5)
    assert np.isnan(probabilities).any(1).sum() == text.documents - len(rows) > 0
    assert (labels[-20:] == -1).all(), "the texts without a label"

    loaded = load_checkpoint(teacher)
    assert isinstance(loaded.model, BertForSequenceClassification)
    first, last = window.sentence_starts[window.document_starts[[rows[0], rows[0] + 1]]]
    ids = [loaded.tokenizer.cls_id, *window.tokens(first, last).tolist(), loaded.tokenizer.sep_id]
    with torch.no_grad():
        expected = loaded.model.eval()(PackedBatch.pack([ids], outputs=[[0]])).softmax(1)[0]
    np.testing.assert_allclose(probabilities[rows[0]], expected, atol=0.02)
    assert caplog.messages[-1] == f"{follow(teacher)} labelled {len(rows)} texts"


def test_soft_labels_interrupted_continues_with_the_missing_shards(recipe: Recipe) -> None:
    assert made(recipe, "soft-labels")
    text, whole = labelled(recipe), np.load(column(recipe))
    (soft_labels(recipe) / DONE).unlink()
    with pytest.raises(RunError, match="run soft-labels first"):
        made(recipe, "finetune")
    begun, first = whole.copy(), text.first_documents[1]
    begun[:first] += 1  # what is there stays
    begun[first + 3] = np.nan
    np.save(column(recipe), begun)
    for _ in range(2):  # the second time, nothing is left to do
        assert made(recipe, "soft-labels")
        np.testing.assert_array_equal(np.load(column(recipe))[:first], begun[:first])
        np.testing.assert_array_equal(np.load(column(recipe))[first:], whole[first:])


def test_soft_labels_by_a_teacher_with_labels_in_another_order_are_found_by_name(
    recipe: Recipe, teacher: Path, tmp_path: Path
) -> None:
    config = json.loads((teacher / "config.json").read_text()) | {"id2label": {0: "POSITIVE", 1: "NEGATIVE"}}
    (shutil.copytree(teacher, tmp_path / "other") / "config.json").write_text(json.dumps(config))
    other = set_teaching(recipe, teacher=tmp_path / "other")
    assert made(recipe, "soft-labels")
    with pytest.raises(RunError, match="run soft-labels first"):
        made(other, "finetune")
    assert made(other, "soft-labels")
    assert (recipe.folder / "soft_labels").resolve() == soft_labels(other)
    np.testing.assert_array_equal(np.load(column(other)), np.load(column(recipe))[:, ::-1])


def test_student_learns_from_the_teacher_where_labels_are_wrong(
    make_recipe: MakeRecipe, teacher: Path, tmp_path: Path
) -> None:
    rng = random.Random(7)
    for name, count in (("wrong", 60), ("unlabelled", 120)):
        rows = [{"text": review(rng, good=i % 2 == 1), "label": 1 - i % 2} for i in range(count)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    overrides = (
        f"soft_labels.teacher={teacher}",
        "soft_labels.weight=1",
        "finetune.dev_fraction=0",
        "finetune.passes=12",
    )
    recipe = make_recipe(*LARGER, *overrides)
    unlabelled = SourceConfig(path=str(tmp_path / "unlabelled.jsonl"))
    recipe = changed(recipe, train=(SourceConfig(path=str(tmp_path / "wrong.jsonl"), label="label"),))
    recipe = save_new_network(set_teaching(recipe, sources=(unlabelled,)))
    assert made(recipe, "soft-labels")
    assert made(recipe, "finetune")
    loaded = load_checkpoint(recipe.folder / "classifier")
    assert isinstance(loaded.model, BertForSequenceClassification)
    window = labelled(recipe).window()
    texts = labelled_window(window, trained_on(window), loaded.tokenizer, 48, 1.0)
    answers = predict_classification(loaded.model, texts)
    assert answers.figures()["accuracy"].value >= 0.9, "as the teacher says"


def test_soft_labels_without_a_teacher_is_refused(make_recipe: MakeRecipe) -> None:
    with pytest.raises(
        RunError, match=r"no \[soft_labels\]: name a classifier, soft_labels.teacher=\S+, or learn from"
    ):
        made(save_new_network(make_recipe()), "soft-labels")


def test_soft_labels_by_a_teacher_that_is_no_classifier_or_has_other_labels_is_refused(
    make_recipe: MakeRecipe, pretrained: Path, teacher: Path
) -> None:
    recipe = save_new_network(make_recipe(f"soft_labels.teacher={pretrained}"))
    with pytest.raises(RunError, match="is not a classifier"):
        made(recipe, "soft-labels")
    distilled = set_teaching(recipe, teacher=teacher)
    with pytest.raises(
        RunError,
        match=r"has the labels \['NEGATIVE', .*, but finetune.labels are .*; if they mean the same, write",
    ):
        made(changed(distilled, labels={"0": "BAD", "1": "GOOD"}), "soft-labels")


FOLDS = ("soft_labels.folds=2", "finetune.passes=0.5")


def test_soft_labels_without_a_teacher_trains_one_per_fold_and_each_labels_what_it_has_not_read(
    make_recipe: MakeRecipe,
) -> None:
    unlabelled = 'soft_labels.sources=[{name="more", path="test.jsonl"}]'
    recipe = changed(save_new_network(make_recipe(*FOLDS, unlabelled)), test=())
    assert made(recipe, "soft-labels")
    text, names = labelled(recipe), ("target_probs", "groups", "labels")
    rows = text.column("parts") == Part.TRAIN
    together, groups, labels = (text.column(name)[rows] for name in names)
    alone = []
    for teacher in Pipeline(recipe).teachers:
        by_one = set_teaching(recipe, teacher=teacher.folder / "model")
        assert made(by_one, "soft-labels")
        alone.append(labelled(by_one).column("target_probs")[rows])
    assert np.abs(alone[0] - alone[1]).max() > 1e-3
    for number, is_unread in enumerate([groups % 2 == 0, groups % 2 == 1]):
        chosen = is_unread & (labels >= 0)
        assert chosen.any()
        np.testing.assert_allclose(together[chosen], alone[number][chosen], atol=1e-6)
    assert (labels == -1).any()
    np.testing.assert_allclose(together[labels == -1], (alone[0] + alone[1])[labels == -1] / 2, atol=1e-6)


def test_teacher_reads_only_the_labelled_texts_of_the_other_folds(make_recipe: MakeRecipe) -> None:
    recipe = save_new_network(make_recipe(*FOLDS, 'soft_labels.sources=[{name="more", path="test.jsonl"}]'))
    recipe = changed(recipe, test=())
    assert made(recipe, "prepare")
    tokenizer, text = Tokenizer.load(recipe.folder / "tokenizer"), PreparedText(Pipeline(recipe).labelled.folder)
    groups, labels, trained = text.column("groups"), text.column("labels"), text.column("parts") == Part.TRAIN
    assert (labels == -1).any()
    for number in (0, 1):
        stream = LabelledStream(text, tokenizer, 48, None, 1, 256, left_out=Fold(number, 2))
        read = np.unique(next(stream.windows()).order)
        assert len(read) == stream.documents == (trained & (groups % 2 != number) & (labels >= 0)).sum()
        assert (groups[read] % 2 != number).all()
        assert (labels[read] >= 0).all()
    assert pass_size(text, 48, with_unlabelled=True)[0] == trained.sum(), "a student reads all"


def test_soft_labels_interrupted_among_the_teachers_says_so_and_continues(
    make_recipe: MakeRecipe, recipe_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = save_new_network(make_recipe())
    places = [f"data={recipe.data}", f"run={recipe.run}"]
    arguments = ["soft-labels", str(recipe_file), *places, *FOLDS, "soft_labels.weight=1"]
    real = Trainer.run
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "run", lambda self: self.config.seed == 1 and real(self))
        assert main(arguments) == STOPPED
    assert "stopped; to continue: bert-train soft-labels" in capsys.readouterr().err
    assert not list(recipe.folder.glob("stages/soft_labels-*"))
    assert main(arguments) == 0
    assert (recipe.folder / "soft_labels" / "target_probs.npy").is_file()


def test_teacher_of_another_vocabulary_is_refused(recipe: Recipe, teacher: Path, tmp_path: Path) -> None:
    loaded = load_checkpoint(teacher)
    words = [*loaded.tokenizer.vocab[:-1], "zzz"]
    save_checkpoint(tmp_path / "other", loaded.model, Tokenizer.from_vocab(words))
    with pytest.raises(RunError, match="has another vocabulary, or other model_input_names, than the prepared text"):
        made(set_teaching(recipe, teacher=tmp_path / "other"), "soft-labels")


def test_card_names_the_teachers(recipe: Recipe) -> None:
    assert recipe.soft_labels is not None
    own = set_teaching(recipe, teacher=None, folds=2, weight=0.7)
    (recipe.run / "big").mkdir()
    beside = recipe.run / "big" / "classifier"
    shutil.copytree(recipe.soft_labels.teacher or "", beside)
    for each, words in (
        (own, "2 classifiers, each on the texts that it has not read, too, with the weight 0.7."),
        (set_teaching(recipe, teacher=beside, weight=0.9), "`runs/big/classifier` too, with the weight 0.9."),
    ):
        assert made(each, "soft-labels", "finetune")
        *_, target = export(Pipeline(each))
        assert f"It learned from the labels of {words}" in (target / "README.md").read_text()
