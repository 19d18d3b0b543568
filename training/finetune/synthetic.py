"""Synthetic texts: labelled texts without some of their words.

A bag of words labels them. So a network learns what the bag knows of each word, and does not just learn the bag's
answers to a few texts by heart (function matching, Beyer et al. 2021, https://arxiv.org/abs/2106.05237).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np

from training.corpus.shards import SYNTHETIC, ShardInput
from training.sources.documents import Document
from training.sources.labels import Target

CHARACTERS, COPIES = 8_000_000, 20
"""Maximum characters of the synthetic texts, and maximum number of copies of a text. A pass reads one copy."""

KEPT = 0.4, 1.0
"""Smallest and largest share of the words of a text that a copy has."""

_WORD = re.compile(r"\s*(?:\w{1,12}|\S)")
"""A word or a mark, with the blanks before it. Scripts without blanks have words of 12 letters."""


def synthetic_texts(documents: Sequence[Document], reads: Sequence[str], no_label: Target) -> Iterator[ShardInput]:
    """Copies of texts without some of their words: a shard for each way to read them. Copies of a text follow each
    other; the shard's `source` is their number.

    Args:
        reads: How each text is read; see `ShardInput.read`.
        no_label: The target of a text without a label.
    """
    rng, copies = np.random.default_rng(1), min(COPIES, CHARACTERS // max(1, sum(len(each.text) for each in documents)))
    for number, read in enumerate(sorted(set(reads)) if copies else ()):
        chosen = [document for document, each in zip(documents, reads, strict=True) if each == read]
        made = [_without_words(document, rng) for document in chosen for _ in range(copies)]
        yield ShardInput(number, SYNTHETIC, str(copies), made, [no_label] * len(made), read)


def _without_words(document: Document, rng: np.random.Generator) -> Document:
    kept = rng.uniform(*KEPT)
    words = (_WORD.findall(field) for field in document.fields)
    return Document(tuple("".join(word for word in each if rng.random() < kept).strip() for each in words))
