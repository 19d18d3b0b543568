"""A bag of words for one kind of text: logistic regression over what naive Bayes makes of words, pairs and
triples (Wang & Manning 2012, https://aclanthology.org/P12-2018).

Where it has thousands of long texts of that kind, it judges them better than TF-IDF that has read all kinds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from training.errors import RunError
from training.examples.batches import Floats
from training.report.bag_of_words import NEVER, word_and_punctuation_pattern
from training.sources.documents import Document

_LENGTHS = (1, 2, 3)
"""Words of a feature"""
_STRENGTHS = (10.0, 30.0, 100.0)
"""Inverse regularisation; dev decides."""


@dataclass(frozen=True, slots=True)
class NaiveBayesBag:
    """One regression per label, over whether a word, pair or triple is there, times its log-count ratio."""

    words: Any
    ratios: tuple[Floats, ...]
    """Per regression: log of how much more often each feature stands in texts of the label, (features,)"""
    models: tuple[Any, ...]
    values: tuple[str, ...]
    """Of the label column, in the order of the regressions; of two labels the second has one, for both"""
    strength: float
    """Inverse regularisation"""

    @classmethod
    def fit(
        cls, train: Sequence[Document], dev: Sequence[Document], strengths: Sequence[float] = _STRENGTHS
    ) -> NaiveBayesBag:
        """Learn `train`; `dev` decides between the strengths of regularisation, or the first is taken.

        Raises:
            RunError: no word occurs in two texts.
        """
        from sklearn.feature_extraction.text import CountVectorizer  # seconds to import
        from sklearn.linear_model import LogisticRegression

        words = CountVectorizer(
            ngram_range=(_LENGTHS[0], _LENGTHS[-1]),
            token_pattern=word_and_punctuation_pattern(),
            binary=True,
            min_df=2,
            dtype=np.float32,
        )
        try:
            there = words.fit_transform(document.text for document in train)
        except ValueError as error:  # an empty vocabulary
            raise RunError(f"none of {len(train)} texts has a word that another has, too") from error
        labels = np.array([str(document.label) for document in train])
        values = tuple(sorted(set(labels)))
        asked = values[1:] if len(values) == 2 else values
        ratios = tuple(_log_count_ratio(there, labels == value) for value in asked)

        def fitted(strength: float) -> NaiveBayesBag:
            models = tuple(
                LogisticRegression(C=strength, max_iter=1000).fit(_weighted(there, ratio), labels == value)
                for value, ratio in zip(asked, ratios, strict=True)
            )
            return cls(words, ratios, models, values, strength)

        candidates = [fitted(strength) for strength in (strengths if dev else strengths[:1])]
        return min(candidates, key=lambda candidate: candidate._loss(dev)) if dev else candidates[0]

    def log_probabilities(self, documents: Sequence[Document], labels: Sequence[str]) -> Floats:
        """Of labels by their value in the label column: (documents, labels)."""
        there = self.words.transform(document.text for document in documents)
        odds = [m.decision_function(_weighted(there, r)) for m, r in zip(self.models, self.ratios, strict=True)]
        known = np.stack(odds if len(odds) > 1 else [-odds[0], odds[0]], 1)
        share = 1 / (1 + np.exp(-known))  # (documents, len(self.values))
        share /= share.sum(1, keepdims=True)
        out = np.zeros((len(documents), len(labels)), dtype=np.float32)
        for i, label in enumerate(labels):
            if label in self.values:
                out[:, i] = share[:, self.values.index(label)]
        return np.log(np.maximum(out, NEVER))

    def _loss(self, documents: Sequence[Document]) -> float:
        """Mean cross-entropy in nats."""
        given = self.log_probabilities(documents, self.values)
        unknown = np.log(NEVER)
        rows = [
            given[i, self.values.index(str(d.label))] if str(d.label) in self.values else unknown
            for i, d in enumerate(documents)
        ]
        return -float(np.mean(rows))


def _log_count_ratio(there: Any, chosen: Any) -> Floats:
    """Log of how much more often each feature stands in the chosen texts, one added to each: (features,)"""
    ours, theirs = (np.asarray(there[rows].sum(0)).ravel() + 1 for rows in (chosen, ~chosen))
    ratio: Floats = np.log(ours / ours.sum()) - np.log(theirs / theirs.sum())
    return ratio.astype(np.float32)


def _weighted(there: Any, ratio: Floats) -> Any:
    """Each feature by its ratio, each text of length 1: (texts, features), sparse."""
    from sklearn.preprocessing import normalize

    return normalize(there.multiply(ratio[None]).tocsr())
