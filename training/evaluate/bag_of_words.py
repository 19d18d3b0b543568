"""A bag of words: TF-IDF of words and word pairs, and what a word is in scripts without spaces."""

from __future__ import annotations

import functools
import logging
import re
import sys
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from training.errors import RunError
from training.examples.pairs import Floats
from training.sources.documents import Document

logger = logging.getLogger(__name__)

MAX_FEATURES = 400_000

_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
"""Thai, Lao, Burmese, Khmer, Kana and Han: scripts that put no spaces between words"""
_UNSPACED_LETTER = re.compile(f"[{_UNSPACED}]")

NEVER = 1e-9
"""Probability of a label that no text of the training part has; none is less probable."""

STRENGTHS = (1.0, 10.0)
"""Inverse regularisation; dev decides between them."""


def word_pattern() -> str:
    """A pattern of words of two letters or more, as scikit-learn has them; but each letter by itself in a
    script without spaces: their pairs stand for words there."""
    letter, mark = rf"[^\W{_UNSPACED}]", _marks()
    return rf"(?u)[{_UNSPACED}]|{letter}(?:{letter}|[{mark}])+"


def word_and_punctuation_pattern() -> str:
    """A pattern of words, also of one letter, and of marks that end or part sentences."""
    return rf"(?u)[{_UNSPACED}]|(?:[^\W{_UNSPACED}]|[{_marks()}'])+|[!?.,;:()]"


def num_words(text: str) -> int:
    """About how many words a text has; in a script without spaces, two letters count as one."""
    return len(text.split()) + len(_UNSPACED_LETTER.findall(text)) // 2


@functools.cache
def _marks() -> str:
    """What continues a word and is no letter to `re`: vowels of Indian scripts, points of Arabic and Hebrew
    ones, other accents, and the joiners between them."""
    marks = [c for c in map(chr, range(sys.maxunicode)) if unicodedata.category(c) in ("Mn", "Mc")]
    return "".join(c for c in marks if not _UNSPACED_LETTER.match(c)) + "\u200c\u200d"


@dataclass(frozen=True, slots=True)
class BagOfWords:
    """TF-IDF of words and word pairs under a logistic regression."""

    words: Any
    model: Any
    strength: float

    @classmethod
    def fit(
        cls, train: Sequence[Document], dev: Sequence[Document], strengths: Sequence[float] = STRENGTHS
    ) -> BagOfWords:
        """Learn `train`; `dev` decides between the strengths of regularisation, or the first is taken.

        Raises:
            RunError: no two texts differ in their labels, or none has a word.
        """
        from sklearn.feature_extraction.text import TfidfVectorizer  # seconds to import
        from sklearn.linear_model import LogisticRegression

        logger.info("bag of words: %d texts", len(train))
        labels = [str(document.label) for document in train]
        if len(set(labels)) < 2:
            raise RunError(f"all {len(train)} texts that it may read have the same label")
        words = TfidfVectorizer(
            ngram_range=(1, 2),
            token_pattern=word_pattern(),
            max_features=MAX_FEATURES,
            sublinear_tf=True,
            dtype=np.float32,
        )
        try:
            features = words.fit_transform(document.text for document in train)
        except ValueError as error:  # an empty vocabulary
            raise RunError(f"none of {len(train)} texts has a word of two letters") from error

        def fitted(strength: float) -> BagOfWords:
            return cls(words, LogisticRegression(C=strength, max_iter=1000).fit(features, labels), strength)

        candidates = [fitted(strength) for strength in (strengths if dev else strengths[:1])]
        return max(candidates, key=lambda c: c.accuracy(dev)) if dev else candidates[0]

    def accuracy(self, documents: Sequence[Document]) -> float:
        """Share of labels that it guesses."""
        guesses = self.model.predict(self._features(documents))
        return float(np.mean(guesses == [str(document.label) for document in documents]))

    def log_probabilities(self, documents: Sequence[Document], labels: Sequence[str]) -> Floats:
        """Of labels by their value in the label column: (documents, labels)."""
        known = {value: column for column, value in enumerate(self.model.classes_)}
        given = self.model.predict_proba(self._features(documents))
        out = np.zeros((len(documents), len(labels)), dtype=np.float32)
        for i, label in enumerate(labels):
            if label in known:
                out[:, i] = given[:, known[label]]
        return np.log(np.maximum(out, NEVER))

    def _features(self, documents: Sequence[Document]) -> Any:
        return self.words.transform(document.text for document in documents)
