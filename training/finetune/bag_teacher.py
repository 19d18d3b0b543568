"""Soft labels from a bag of words, written beside the prepared texts as `distill` writes those of networks.

A bag learns from a few hundred texts which words speak for a label, where a network needs thousands. Each text is
labelled by a bag that was not fitted to it or to others of its group (stacked generalisation, Wolpert 1992). A bag only
repeats the labels of the texts that it was fitted to, also for a text that is a part of one of them.
"""

from __future__ import annotations

import logging
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.model_selection import StratifiedKFold

from training.corpus.parts import Part
from training.corpus.reader import PreparedText
from training.examples.batches import Floats
from training.examples.pairs import Ints
from training.finetune.distill import COLUMN
from training.problems.base import Problem

FOLDS = 5

STRENGTHS = (10.0, 100.0)
"""Inverse regularisation of the logistic regressions. The one with the lower loss on held-out folds is used."""

MAX_FEATURES = 400_000

logger = logging.getLogger(__name__)


def label_out_of_fold(text: PreparedText, problem: Problem) -> None:
    """Write the probabilities of the bags: (documents, labels), NaN for texts that are not trained on. Writes nothing
    if all labels but one are those of fewer than `FOLDS` groups, each counted by its first text."""
    rows = (text.column("parts") == Part.TRAIN).nonzero()[0]
    labels, groups = text.column("labels")[rows], text.column("groups")[rows]
    _, first, group = np.unique(groups, return_index=True, return_inverse=True)
    if np.sort(np.bincount(labels[first], minlength=2))[-2] < FOLDS:  # some fold would have one label only
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a rare label is not in each fold
        parts = list(StratifiedKFold(FOLDS, shuffle=True, random_state=0).split(first, labels[first]))
    folds = [np.isin(group, chosen) for _, chosen in parts]
    window = text.window(range(len(text.shards)))
    starts = window.sentence_starts[window.document_starts].tolist()
    documents = [window.tokens(starts[row], starts[row + 1]) for row in rows.tolist()]
    logger.info("labelling %s texts by bags of words that have not read them", f"{len(documents):,}")
    probabilities = np.full((text.documents, len(problem.names)), np.nan, np.float32)
    probabilities[rows] = _out_of_fold(documents, labels.astype(np.int64), folds, problem, text.vocab_size)
    np.save(text.folder / f"{COLUMN}.npy", probabilities)


def _out_of_fold(
    documents: list[Any], labels: Ints, folds: list[NDArray[np.bool_]], problem: Problem, vocab_size: int
) -> Floats:
    """(documents, labels) probabilities.

    Args:
        folds: (documents,) the documents of each fold.
    """

    def pieces_and_pairs(ids: Any) -> list[int]:
        ids = ids.astype(np.int64)
        return [*ids.tolist(), *(vocab_size + vocab_size * ids[:-1] + ids[1:]).tolist()]

    # The weights of words need no labels, so all folds share them.
    features = TfidfVectorizer(analyzer=pieces_and_pairs, sublinear_tf=True, max_features=MAX_FEATURES)
    rows = features.fit_transform(documents)
    targets = np.eye(len(problem.names), dtype=np.float32)[labels]
    found = []
    for strength in STRENGTHS:
        probabilities = np.zeros_like(targets)
        for unread in folds:
            probabilities[unread] = problem.fit(rows[~unread], targets[~unread], strength)(rows[unread])
        loss = -np.log(np.maximum(probabilities[np.arange(len(labels)), labels], 1e-9)).mean()
        found.append((float(loss), probabilities))
    loss, best = min(found, key=lambda pair: pair[0])
    accuracy = float((best.argmax(1) == labels).mean())
    logger.info("bag of words: accuracy %.4f, loss %.3f on texts that it has not read", accuracy, loss)
    return best
