"""The bag of words: a linear model of a text's words and letters.

It learns from a few hundred texts which words speak for a label, where a network needs thousands. So it is a teacher of
classifiers of few texts, and the model that a classifier has to beat. Each text is scored by a bag that has read no
text of its group (stacked generalisation, Wolpert 1992), because a bag repeats the targets of texts that it has read.
"""

from __future__ import annotations

import itertools
import logging
import math
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.feature_extraction.text import HashingVectorizer, TfidfTransformer
from sklearn.pipeline import FeatureUnion, make_pipeline, make_union
from sklearn.svm import LinearSVC, LinearSVR

from model.tokenizer import Tokenizer
from training.corpus.encode import NO_LABEL, ShardEncoder, target_rows
from training.corpus.parts import Part
from training.corpus.reader import PreparedText
from training.corpus.shards import ShardInput, make_shard
from training.finetune.synthetic import synthetic_texts
from training.problems.base import Floats, Problem
from training.problems.regression import Regression
from training.problems.single_label import SingleLabel

FOLDS = 5

WORD = r"\w+|[!?]"
"""A word, or a mark that tells opinions apart."""

WORD_FEATURES, LETTER_FEATURES = 2**20, 2**18
"""Features are hashed, because a dictionary of all pairs of words takes gigabytes."""

MAX_CHARACTERS = 150_000_000
"""Characters of the texts to train on, which are drawn evenly from more."""

MAX_CHARACTERS_WITH_LETTERS = 20_000_000
"""Characters of the texts to train on above which only words count: letters take six times the time and memory."""

STRENGTHS = (0.3, 1.0)
"""Inverse regularisation (`C`). Like the scale, the one with the lowest loss on held-out folds is used: 0.3 for
hundreds of thousands of texts."""

MAX_ITERATIONS = 30
"""Passes of the solver over the texts. More change no answer."""

SCALES = np.geomspace(0.1, 20, 60).tolist()
"""Factors between margins and logits. The one with the lowest loss on held-out folds is used."""

logger = logging.getLogger(__name__)


def write_bag(problem: Problem, store: PreparedText, folder: Path, tokenizer: Tokenizer | None) -> dict[str, Any]:
    """Write the bag's scores of labelled text into its column `target_probs`, NaN for texts without a label or part.

    Args:
        tokenizer: if given, synthetic texts for a network with this tokenizer follow: their shards, and their rows in
            the columns `target_probs` and `parts`.

    Returns:
        The records of the shards.

    Raises:
        MissingTextError: only token ids are in the store.
    """
    parts, labels = store.column("parts"), store.column("labels")
    targets = target_rows(labels, len(store.labels))
    rows = ((parts != Part.LEFT_OUT) & ~np.isnan(targets[:, 0])).nonzero()[0]
    documents, groups, is_train = store.read(rows), store.column("groups")[rows], parts[rows] == Part.TRAIN
    made: list[ShardInput] = []
    if tokenizer:
        read = [shard.read for shard in store.shards for _ in range(shard.documents)]
        trained = is_train.nonzero()[0].tolist()
        no_label = NO_LABEL if labels.ndim == 1 else (math.nan,) * labels.shape[1]
        made += synthetic_texts([documents[i] for i in trained], [read[rows[i]] for i in trained], no_label)
    texts = [document.text for document in itertools.chain(documents, *(each.documents for each in made))]
    found = bag_scores(texts, targets[rows], groups, is_train, problem)
    scores = np.full_like(targets, np.nan)
    scores[rows] = found[: len(rows)]
    np.save(folder / "target_probs.npy", np.concatenate([scores, found[len(rows) :]]))
    np.save(folder / "parts.npy", np.append(parts, np.full(len(texts) - len(rows), Part.TRAIN, parts.dtype)))
    encoder = tokenizer and ShardEncoder(tokenizer)
    return {"shards": [asdict(make_shard(encoder, folder, each)) for each in made if encoder]}


def bag_scores(
    texts: Sequence[str], targets: Floats, groups: NDArray[Any], is_train: NDArray[np.bool_], problem: Problem
) -> Floats:
    """The bag's scores of all texts: (texts, outputs). The texts to train on are scored by bags of the other folds, all
    others by a bag of all texts to train on.

    Args:
        targets: (labelled, outputs) of the first texts; those of texts to train on are used.
        groups: (labelled,) a group is in one fold.
        is_train: (labelled,) whether to train on each of them; at least one.

    Returns:
        The scores. NaN for texts to train on if there is one group, and for those beyond `MAX_CHARACTERS`.
    """
    train = is_train.nonzero()[0].tolist()
    others = [*(~is_train).nonzero()[0].tolist(), *range(len(targets), len(texts))]
    characters = sum(len(texts[i]) for i in train)
    train = train[:: -(-characters // MAX_CHARACTERS)]
    problem, wanted = problem.fitted(targets[train]), targets[train]
    features = _features(with_letters=characters <= MAX_CHARACTERS_WITH_LETTERS)
    rows = features.fit_transform([texts[i] for i in train])  # (train, features) sparse
    names, group = np.unique(groups[train], return_inverse=True)
    margins = {strength: np.full_like(wanted, np.nan) for strength in STRENGTHS}  # (train, outputs) out of fold
    for fold in range(FOLDS if len(names) > 1 else 0):
        unread = group % FOLDS == fold
        for strength, found in margins.items():
            found[unread] = _margins(problem, strength, rows[~unread], wanted[~unread], rows[unread])

    def loss(choice: tuple[float, float]) -> float:
        strength, scale = choice
        return problem.losses(torch.from_numpy(scale * margins[strength]), torch.from_numpy(wanted)).mean().item()

    strength, scale = best = min(itertools.product(STRENGTHS, SCALES), key=loss)
    logger.info(f"bag of words: loss {loss(best):.3f} on {len(train):,} texts that it has not read")
    logits = np.full((len(texts), targets.shape[1]), np.nan, np.float32)
    logits[train] = scale * margins[strength]
    if len(others):
        unread = features.transform([texts[i] for i in others])
        logits[others] = scale * _margins(problem, strength, rows, wanted, unread)
    return problem.scores(torch.from_numpy(logits)).numpy()


def _features(*, with_letters: bool) -> FeatureUnion:
    """TF-IDF of words and pairs of words, and of 2 to 5 letters of a word: texts to (texts, features) sparse."""
    words = HashingVectorizer(
        n_features=WORD_FEATURES, token_pattern=WORD, ngram_range=(1, 2), alternate_sign=False, norm=None
    )
    letters = HashingVectorizer(
        n_features=LETTER_FEATURES, analyzer="char_wb", ngram_range=(2, 5), alternate_sign=False, norm=None
    )
    chosen = [words, letters] if with_letters else [words]
    return make_union(*(make_pipeline(each, TfidfTransformer(sublinear_tf=True)) for each in chosen))


def _margins(problem: Problem, strength: float, rows: Any, targets: Floats, unread: Any) -> Floats:
    """(unread, outputs) margins of linear models, one for each output, fitted to the rows, one after another, because
    each model has a weight for each feature."""
    columns = targets.T
    # Without random_state, the operating system chooses the order in which the solver visits the texts.
    settings: dict[str, Any] = {"C": strength, "max_iter": MAX_ITERATIONS, "random_state": 0}
    model: Any = LinearSVC(**settings)
    if isinstance(problem, Regression):
        columns = (columns - problem.offset) / problem.scale
        model = LinearSVR(loss="squared_epsilon_insensitive", **settings)
    elif isinstance(problem, SingleLabel) and len(columns) == 2:
        columns = columns[1:]  # the margin of the other label is the opposite
    margins = np.empty((unread.shape[0], len(columns)), np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it need not converge
        for output, column in enumerate(columns):
            if column.min() == column.max():  # a rare label is not in each fold
                margins[:, output] = 2 * column[0] - 1
            else:
                model.fit(rows, column)
                margins[:, output] = unread @ model.coef_.ravel() + model.intercept_
    return margins if len(columns) == targets.shape[1] else np.concatenate([-margins, margins], 1)
