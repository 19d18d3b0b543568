"""A bag of words as a teacher: each text is labelled by one that has not read it."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.model_selection import GroupKFold, KFold

from tests.training.conftest import MakeRecipe
from training.corpus.parts import Part
from training.corpus.reader import PreparedText
from training.finetune import bag_teacher
from training.finetune.bag_teacher import label_out_of_fold
from training.finetune.distill import COLUMN
from training.problems.choose import problem_of
from training.recipe import SINGLE_LABEL, Recipe
from training.runtime.distributed import DistContext
from training.stages import Pipeline

TWO = problem_of(SINGLE_LABEL, ["NEGATIVE", "POSITIVE"])


def prepared(recipe: Recipe) -> PreparedText:
    """Labelled text without a bag. A copy of its labels may be changed."""
    labelled = Pipeline(recipe).labelled
    assert labelled.ensure(DistContext())
    text = PreparedText.open(labelled.folder)
    np.save(text.folder / "labels.npy", text.column("labels"))
    return text


def trained(text: PreparedText, name: str) -> np.ndarray:
    """A column of the texts to train on."""
    column: np.ndarray = text.column(name)[text.column("parts") == Part.TRAIN]
    return column


def test_bag_teacher_labels_texts_that_it_has_not_read(make_recipe: MakeRecipe) -> None:
    text = prepared(make_recipe())
    label_out_of_fold(text, TWO)
    probabilities, labels = trained(text, COLUMN), trained(text, "labels")
    assert np.allclose(probabilities.sum(1), 1, atol=1e-5)
    assert np.isnan(text.column(COLUMN)[text.column("parts") != Part.TRAIN]).all()
    assert (probabilities.argmax(1) == labels).mean() > 0.8, "opinions are in the words"
    by_chance = np.random.default_rng(1).integers(2, size=text.documents).astype(np.int16)
    np.save(text.folder / "labels.npy", by_chance)
    label_out_of_fold(text, TWO)
    guesses = trained(text, COLUMN).argmax(1)
    assert (guesses == trained(text, "labels")).mean() < 0.75, "what is by chance cannot be known"


def test_bag_teacher_is_as_right_about_texts_of_groups_as_bags_that_have_read_no_text_of_the_group(
    make_recipe: MakeRecipe, tmp_path: Path
) -> None:
    """In each group, the same words in another order."""
    rng, rows = random.Random(0), []
    for film in range(40):
        words, label = ["".join(rng.choices("aeilnorst", k=6)) for _ in range(4)], film % 2
        opinion = ["good", "bad"][label if rng.random() < 0.7 else 1 - label]
        for _ in range(5):
            text = " ".join(rng.sample([*words, opinion], k=5))
            rows.append({"film": f"film {film}", "text": text, "label": label})
    (tmp_path / "films.jsonl").write_text("\n".join(map(json.dumps, rows)))
    source = f'{{path="{tmp_path / "films.jsonl"}",label="label",group="film"}}'
    text = prepared(make_recipe(f"finetune.train=[{source}]", "finetune.dev_fraction=0"))
    label_out_of_fold(text, TWO)

    window, labels = text.window(), trained(text, "labels").astype(np.int64)
    starts = window.sentence_starts[window.document_starts].tolist()
    rows = (text.column("parts") == Part.TRAIN).nonzero()[0].tolist()
    documents = [window.tokens(starts[row], starts[row + 1]) for row in rows]

    def accuracy(probabilities: np.ndarray) -> float:
        return float((probabilities.argmax(1) == labels).mean())

    def with_folds(splitter: Any, groups: np.ndarray | None) -> float:
        parts = [part for _, part in splitter.split(documents, labels, groups)]
        folds = [np.isin(np.arange(len(labels)), part) for part in parts]
        return accuracy(bag_teacher._out_of_fold(documents, labels, folds, TWO, text.vocab_size))

    assert with_folds(KFold(5, shuffle=True, random_state=0), None) > 0.95, "the words of a group tell its label"
    assert accuracy(trained(text, COLUMN)) == pytest.approx(with_folds(GroupKFold(5), trained(text, "groups")), abs=0.1)


def test_bag_teacher_knows_labels_that_some_folds_lack(make_recipe: MakeRecipe) -> None:
    text = prepared(make_recipe())
    labels = text.column("labels")
    labels[(text.column("parts") == Part.TRAIN).argmax()] = 2
    np.save(text.folder / "labels.npy", labels)
    label_out_of_fold(text, problem_of(SINGLE_LABEL, ["a", "b", "c"]))
    assert text.column(COLUMN).shape == (len(labels), 3)


def test_bag_teacher_of_one_label_is_none(make_recipe: MakeRecipe) -> None:
    text = prepared(make_recipe())
    np.save(text.folder / "labels.npy", np.zeros(text.documents, np.int16))
    label_out_of_fold(text, TWO)
    assert not text.has(COLUMN)
