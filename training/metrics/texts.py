"""The labelled texts that are evaluated: those of each source in dev or test."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from model.tokenizer import Tokenizer
from training.corpus.encode import target_rows
from training.corpus.fingerprint import tokenizer_hash
from training.corpus.parts import Part
from training.corpus.reader import PreparedText
from training.examples.batches import Floats
from training.examples.labelled import LabelledTexts, encode_texts, labelled_window
from training.examples.pairs import Ints
from training.recipe import FinetuneConfig
from training.sources.documents import Document

DEV = " (dev)"
"""Marks figures on dev texts in a report."""

PAIR = " (pair)"
"""Marks figures on texts that are read as pairs in a report."""


@dataclass(frozen=True, eq=False)
class EvaluatedTexts:
    """Texts of one source that are all read in the same way."""

    store: PreparedText
    rows: Ints
    """(texts,) their documents in the store, ascending."""
    shards: Sequence[int]
    """Numbers of the shards of the source, which follow each other."""
    read: str
    repeats: int = 0
    """Further rows of the same texts, which are left out."""
    relabelled: int = 0
    """Those of them that have another label than the first row."""

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def targets(self) -> Floats:
        """(texts, outputs) the scores of a perfect model."""
        return target_rows(self.store.column("labels")[self.rows], len(self.store.labels))

    @property
    def domains(self) -> list[str]:
        """Domain of each text, "" without one."""
        return [domain.decode() for domain in self.store.column("domains")[self.rows].tolist()]

    def documents(self, chosen: Sequence[int] | slice = slice(None)) -> list[Document]:
        """All texts, or chosen ones; see `PreparedText.read`."""
        return self.store.read(self.rows[chosen].tolist())

    def examples(self, tokenizer: Tokenizer, max_length: int) -> LabelledTexts:
        """The texts as token ids. They are in the store, unless the tokenizer is another one.

        Raises:
            MissingTextError: the tokenizer is another one, and only token ids are here.
        """
        if tokenizer_hash(tokenizer) != self.store.tokenizer_hash:
            return encode_texts(self.documents(), self.targets, self.read, tokenizer, max_length)
        window, first = self.store.window(self.shards), self.store.first_documents[self.shards[0]]
        texts = labelled_window(window, self.rows - first, tokenizer, max_length)
        return replace(texts, read=[self.read] * len(texts.read))

    def distinct(self) -> EvaluatedTexts:
        """The first row of each text: repeats of a text are not independent, so they would make errors too small."""
        hashes, labels = (self.store.column(name)[self.rows] for name in ("texts", "labels"))
        _, first, text = np.unique(hashes, return_index=True, return_inverse=True)
        differs = (labels != labels[first[text]]).reshape(len(self), -1).any(1)
        repeats, relabelled = len(self) - len(first), int(differs.sum())
        return replace(self, rows=self.rows[np.sort(first)], repeats=repeats, relabelled=relabelled)

    def readings(self) -> list[EvaluatedTexts]:
        """The texts in each reading of the recipe; for `both`, the pairs are those where both columns have tokens."""
        if self.read != "both":
            return [self]
        return [replace(self, read="text"), replace(self, rows=self._with_both_texts(), read="pair")]

    def _with_both_texts(self) -> Ints:
        """The rows of documents whose text columns all have tokens."""
        window, first = self.store.window(self.shards), self.store.first_documents[self.shards[0]]
        shortest = np.minimum.reduceat(np.diff(window.sentence_starts), window.document_starts[:-1])  # (documents,)
        return self.rows[shortest[self.rows - first] > 0]


def evaluated_texts(store: PreparedText, part: Part) -> dict[str, EvaluatedTexts]:
    """The texts of a part by the name of their source, read as the recipe says."""
    parts, found = store.column("parts"), {}
    numbers = range(len(store.shards))
    for (_, source), group in itertools.groupby(numbers, lambda i: (store.shards[i].use, store.shards[i].source)):
        shards = list(group)
        first, end = store.first_documents[shards[0]], store.first_documents[shards[-1] + 1]
        rows = first + (parts[first:end] == part).nonzero()[0]
        if len(rows):
            found[source] = EvaluatedTexts(store, rows, shards, store.shards[shards[0]].read)
    return found


def reported_texts(store: PreparedText, config: FinetuneConfig) -> dict[str, EvaluatedTexts]:
    """The distinct texts for the report, by their source. Without test texts, they are the dev texts of each source,
    under the name with `DEV`. If a source is read as one text and as a pair, documents with both texts are included
    again, under the name with `PAIR`."""
    part, mark = (Part.TEST, "") if config.tested else (Part.DEV, DEV)
    return {
        source + mark + reading: each.distinct()
        for source, texts in evaluated_texts(store, part).items()
        for reading, each in zip(("", PAIR), texts.readings(), strict=False)
        if len(each)
    }
