"""A bag of words as a teacher: each text is labelled by one that has not read it."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.model_selection import GroupKFold, KFold

from tests.training.conftest import MakeRecipe
from training.corpus.reader import PreparedText
from training.finetune import bag_teacher
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
    folder = train_texts(make_recipe(f"finetune.train=[{source}]", "finetune.dev_fraction=0"))
    label_out_of_fold(folder, TWO)

    text = PreparedText.open(folder)
    window, labels = text.window(), read_column(folder, "labels").astype(np.int64)
    starts = window.sentence_starts[window.document_starts].tolist()
    documents = [window.tokens(first, end) for first, end in itertools.pairwise(starts)]

    def accuracy(probabilities: np.ndarray) -> float:
        return float((probabilities.argmax(1) == labels).mean())

    def with_folds(splitter: Any, groups: np.ndarray | None) -> float:
        parts = [part for _, part in splitter.split(documents, labels, groups)]
        folds = [np.isin(np.arange(len(labels)), part) for part in parts]
        return accuracy(bag_teacher._out_of_fold(documents, labels, folds, TWO, text.vocab_size))

    assert with_folds(KFold(5, shuffle=True, random_state=0), None) > 0.95, "the words of a group tell its label"
    assert accuracy(read_column(folder, COLUMN)) == pytest.approx(
        with_folds(GroupKFold(5), read_column(folder, "groups")), abs=0.1
    )


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
