"""A bag of words as a teacher: each text is labelled by one that has not read it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.training.conftest import MakeRecipe
from training.corpus.reader import PreparedText
from training.finetune.bag_teacher import label_out_of_fold
from training.finetune.distill import COLUMN
from training.problems.choose import problem_of
from training.recipe import SINGLE_LABEL, Recipe
from training.runtime.distributed import DistContext
from training.stages import Pipeline

TWO = problem_of(SINGLE_LABEL, ["NEGATIVE", "POSITIVE"])


def train_texts(recipe: Recipe) -> Path:
    pipeline = Pipeline(recipe)
    assert all(stage.ensure(DistContext()) for stage in (pipeline.texts, pipeline.labelled))
    return pipeline.labelled.folder / "train"


def read_column(folder: Path, name: str) -> np.ndarray:
    column = PreparedText.open(folder).window().column(name)
    assert column is not None
    return column


def test_bag_teacher_labels_texts_that_it_has_not_read(make_recipe: MakeRecipe) -> None:
    folder = train_texts(make_recipe())
    label_out_of_fold(folder, TWO)
    probabilities, labels = read_column(folder, COLUMN), read_column(folder, "labels")
    assert np.allclose(probabilities.sum(1), 1, atol=1e-5)
    assert (probabilities.argmax(1) == labels).mean() > 0.8, "opinions are in the words"
    np.save(folder / "000000" / "labels.npy", np.random.default_rng(1).integers(2, size=len(labels)).astype(np.int16))
    (folder / "000000" / f"{COLUMN}.npy").unlink()
    label_out_of_fold(folder, TWO)
    guesses = read_column(folder, COLUMN).argmax(1)
    assert (guesses == read_column(folder, "labels")).mean() < 0.75, "what is by chance cannot be known"


def test_bag_teacher_knows_labels_that_some_folds_lack(make_recipe: MakeRecipe) -> None:
    folder = train_texts(make_recipe())
    labels = read_column(folder, "labels")
    labels[0] = 2
    np.save(folder / "000000" / "labels.npy", labels)
    label_out_of_fold(folder, problem_of(SINGLE_LABEL, ["a", "b", "c"]))
    assert read_column(folder, COLUMN).shape == (len(labels), 3)


def test_bag_teacher_of_one_label_is_none(make_recipe: MakeRecipe) -> None:
    folder = train_texts(make_recipe())
    np.save(folder / "000000" / "labels.npy", np.zeros(len(read_column(folder, "labels")), np.int16))
    label_out_of_fold(folder, TWO)
    assert PreparedText.open(folder).window().column(COLUMN) is None
