"""Texts for the tests of training: English for the commands, token ids in memory for examples."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from model.tokenizer import Tokenizer

SUBJECTS = [
    "the old sailor",
    "a young doctor",
    "my neighbour",
    "her teacher",
    "the quiet king",
    "an angry farmer",
]
VERBS = ["found", "painted", "sold", "followed", "remembered", "lost", "bought", "carried"]
OBJECTS = [
    "a green boat",
    "the broken clock",
    "some fresh bread",
    "his last letter",
    "a small dog",
    "the red house",
]
PLACES = ["in the market", "near the river", "after the war", "on a cold morning", "without a word"]
PRAISE = ["wonderful", "brilliant", "moving", "superb"]
BLAME = ["dreadful", "boring", "clumsy", "awful"]


class MemoryText:
    """Documents of sentences of token ids. Implements `training.examples.pairs.Text`."""

    def __init__(self, documents: Sequence[Sequence[Sequence[int]]]) -> None:
        sentences = [sentence for document in documents for sentence in document]
        self.sentence_starts = np.cumsum([0, *map(len, sentences)])
        self.document_starts = np.cumsum([0, *map(len, documents)])
        self.ids = np.array([token for sentence in sentences for token in sentence], dtype=np.uint32)

    def tokens(self, first: int, last: int) -> NDArray[np.integer]:
        return self.ids[first:last]

    def token_counts(self) -> NDArray[np.int64]:
        return np.bincount(self.ids)


def sentence(rng: random.Random) -> str:
    words = [rng.choice(SUBJECTS), rng.choice(VERBS), rng.choice(OBJECTS)]
    return " ".join([*words, rng.choice(PLACES)] if rng.random() < 0.5 else words).capitalize() + "."


def story(rng: random.Random) -> str:
    return " ".join(sentence(rng) for _ in range(rng.randint(2, 12)))


def review(rng: random.Random, good: bool) -> str:
    return f"{sentence(rng)} It was {rng.choice(PRAISE if good else BLAME)}. {sentence(rng)}"


def random_text(tokenizer: Tokenizer, documents: int = 30, sentences: int = 8) -> MemoryText:
    """Documents of up to `sentences` sentences of random tokens, special ones excluded."""
    rng = np.random.default_rng(0)
    ordinary = sorted(set(range(tokenizer.vocab_size)) - tokenizer.special_ids)
    return MemoryText(
        [
            [rng.choice(ordinary, rng.integers(2, 9)).tolist() for _ in range(rng.integers(2, sentences + 1))]
            for _ in range(documents)
        ]
    )


def squeezed(markdown: str) -> str:
    """Markdown without what aligns the columns of its tables."""
    return re.sub(" +", " ", markdown)
