"""Scores of a bag of words on the same labelled text, which a classifier has to beat."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.feature_extraction.text import TfidfVectorizer
from torch import Tensor

from training.corpus.encode import label_column, target_rows
from training.corpus.parts import Part
from training.corpus.reader import PreparedText
from training.evaluate.texts import reported_texts
from training.examples.labelled import is_unlabelled
from training.examples.pairs import Ints
from training.problems.base import Floats, Problem
from training.problems.choose import problem_of
from training.recipe import FinetuneConfig
from training.sources.documents import Document
from training.sources.labels import Target

MAX_TEXTS = 400_000
"""Maximum number of texts that a bag learns from, drawn evenly: 360,000 take 5 GB of memory."""

STRENGTHS = (1.0, 10.0, 100.0)
"""Inverse regularisation of the linear models, chosen on dev."""

_UNSPACED = r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]"
"""A letter of a script without spaces. It is a token by itself, so that pairs stand for words."""
WORD = rf"(?u){_UNSPACED}|(?:(?!{_UNSPACED})[\w'\u0300-\u036f\u0591-\u05c7\u064b-\u065f\u0900-\u0dff])+|[!?]"
"""A token of a bag: a word with its accents and vowel signs, or a mark that tells opinions apart."""

logger = logging.getLogger(__name__)

Labelled = list[tuple[Document, Target]]


def write_baseline(config: FinetuneConfig, store: PreparedText, folder: Path) -> None:
    """Fit a bag of words, and write its (texts, outputs) scores by name of the test set into `bag.npz`. Writes nothing
    if there is nothing to learn.

    Raises:
        MissingTextError: only token ids are in the store.
    """
    problem = problem_of(config.problem_type, store.labels)
    (train, dev), test = _parts(store), reported_texts(store, config)
    if not train or not test:
        return
    logger.info("%s on %d texts", problem.bag, len(train))
    try:
        bag = fit_bag(problem, train, dev)
    except ValueError as error:  # no word occurs often enough, or all labels are equal
        logger.warning("the report has no %s: %s", problem.bag, error)
        return
    scores = {name: bag([document.text for document in part.documents()]) for name, part in test.items()}
    np.savez(folder / "bag.npz", allow_pickle=False, **scores)


def read_baseline(folder: Path) -> dict[str, Tensor]:
    """The scores that `write_baseline` wrote; empty if there was nothing to learn."""
    if not (folder / "bag.npz").is_file():
        return {}
    with np.load(folder / "bag.npz") as arrays:
        return {name: torch.from_numpy(arrays[name]) for name in arrays.files}


def fit_bag(problem: Problem, train: Labelled, dev: Labelled) -> Callable[[Sequence[str]], Floats]:
    """A linear model over TF-IDF of words and word pairs: texts to scores (texts, outputs).

    Raises:
        ValueError: there is nothing to learn.
    """
    words = TfidfVectorizer(
        ngram_range=(1, 2), token_pattern=WORD, max_features=400_000, sublinear_tf=True, dtype=np.float32
    )
    features, targets = words.fit_transform(texts_of(train)), targets_of(problem, train)
    bags = [problem.fit(features, targets, strength) for strength in (STRENGTHS if dev else STRENGTHS[1:2])]
    if len(bags) == 1:
        return lambda texts: bags[0](words.transform(texts))
    held_out, wanted = words.transform(texts_of(dev)), torch.from_numpy(targets_of(problem, dev))
    figures = [problem.figures(torch.from_numpy(bag(held_out)), wanted)[problem.compared] for bag in bags]
    best = bags[int(np.argmax([problem.merit(figure) for figure in figures]))]
    return lambda texts: best(words.transform(texts))


def texts_of(part: Labelled) -> list[str]:
    """The text of each document."""
    return [document.text for document, _ in part]


def targets_of(problem: Problem, part: Labelled) -> Floats:
    """(texts, outputs) the targets of labelled documents."""
    return target_rows(label_column([target for _, target in part]), len(problem.names))


def _parts(store: PreparedText) -> tuple[Labelled, Labelled]:
    """Training and dev documents that have a label."""
    parts, labels = store.column("parts"), store.column("labels")
    train, dev = (((parts == part) & ~is_unlabelled(labels)).nonzero()[0] for part in (Part.TRAIN, Part.DEV))
    train = train[np.linspace(0, len(train), min(len(train), MAX_TEXTS), endpoint=False, dtype=int)]
    return _labelled(store, labels, train), _labelled(store, labels, dev)


def _labelled(store: PreparedText, labels: NDArray[Any], rows: Ints) -> Labelled:
    return list(zip(store.read(rows), labels[rows].tolist(), strict=True))
