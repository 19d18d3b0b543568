"""Encodes documents as the arrays of a shard: a pure function, which worker processes call."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.tokenizer import Tokenizer
from model.tokenizer_dir import MAX_WORD
from training.corpus.sentences import split_sentences
from training.sources.documents import Document
from training.sources.labels import Target

MAX_UNKNOWN = 0.5
"""A sentence with a larger share of [UNK] is in another script, and is left out of pretraining text."""

CACHED_WORDS = 500_000
"""Words whose token ids are remembered, about 100 MB."""

NO_LABEL = -1

Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TextCounts:
    """Counts of an encoded text."""

    documents: int
    sentences: int
    tokens: int
    unknown_sentences: int
    """Sentences that are mostly [UNK]: dropped from pretraining text, kept in labelled text."""
    cut_sentences: int
    """Sentences cut because they are too long."""
    letters: int
    """Characters of the text other than spaces."""
    lost_letters: int
    """Letters of words that become [UNK] and of sentences that are dropped."""
    long_word_letters: int
    """Letters of words that become [UNK] because they have more than `MAX_WORD` characters."""
    words: int
    """Words of letters and digits that are not [UNK]."""
    pieces: int
    """Tokens of these words."""


@dataclass(slots=True)
class EncodedShard:
    """Documents end to end. Implements `training.examples.pairs.Text`."""

    ids: NDArray[np.unsignedinteger]
    """(tokens,) uint16 or uint32."""
    sentence_starts: NDArray[np.int64]
    """(sentences + 1,) start of each sentence in `ids`. In labelled text a sentence is a text column."""
    document_starts: NDArray[np.int64]
    """(documents + 1,) start of each document in `sentence_starts`."""
    counts: TextCounts

    def tokens(self, first: int, last: int) -> NDArray[np.unsignedinteger]:
        """Ids of the tokens `first <= i < last`."""
        return self.ids[first:last]


class ShardEncoder:
    """Encodes documents as token ids."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.dtype = np.dtype(np.uint16 if tokenizer.vocab_size <= 2**16 else np.uint32)
        self._tokenizer = tokenizer
        self._continues = np.array([token.startswith("##") for token in tokenizer.vocab])  # (vocab_size,)
        self._begins = np.array([token[:1].isalnum() for token in tokenizer.vocab])  # (vocab_size,)
        self._words = tokenizer.word_ids(self.dtype.char, CACHED_WORDS)

    def encode_text(self, texts: Sequence[str], sentence_tokens: int, *, lines: bool = False) -> EncodedShard:
        """Encode pretraining text: the sentences of each document, or its lines if they are sentences already.
        Sentences without a token and documents without a sentence are left out. Sentences of more than
        `sentence_tokens` are cut."""
        sentences = [text.split("\n") if lines else split_sentences(text) for text in texts]
        every_sentence = list(itertools.chain.from_iterable(sentences))
        tokens, lengths = self._ids(every_sentence)
        document = np.repeat(np.arange(len(sentences)), [len(part) for part in sentences])  # (sentences,)

        unknown_tokens = self._unknown_tokens(tokens, lengths)
        unknown = unknown_tokens > MAX_UNKNOWN * lengths
        letters = self._letters(every_sentence, unknown_tokens, dropped=unknown)
        kept = (lengths > 0) & ~unknown
        tokens, lengths, document = tokens[np.repeat(kept, lengths)], lengths[kept], document[kept]

        starts, cut = _starts(lengths), np.flatnonzero(lengths > sentence_tokens)
        parts = [[length] for length in lengths.tolist()]
        for i in cut:
            parts[i] = even_parts(self._continues[tokens[starts[i] : starts[i + 1]]], sentence_tokens)
        document = np.repeat(document, [len(lengths_of_parts) for lengths_of_parts in parts])
        lengths = np.array(list(itertools.chain.from_iterable(parts)), np.int64)
        per_document = np.bincount(document)
        counts = int(unknown.sum()), len(cut), *letters, *self._pieces(tokens)
        return _encoded(tokens, lengths, per_document[per_document > 0], *counts)

    def encode_labelled(self, documents: Sequence[Document]) -> EncodedShard:
        """Encode labelled text: each text column is one sentence. Empty ones are included, so all documents are
        kept."""
        fields = [field for document in documents for field in document.fields]
        tokens, lengths = self._ids(fields)
        columns = np.array([len(document.fields) for document in documents], np.int64)
        unknown_tokens = self._unknown_tokens(tokens, lengths)
        letters = self._letters(fields, unknown_tokens, dropped=np.zeros(len(fields), np.bool_))
        unknown = int((unknown_tokens > MAX_UNKNOWN * lengths).sum())
        return _encoded(tokens, lengths, columns, unknown, 0, *letters, *self._pieces(tokens))

    def _unknown_tokens(self, tokens: NDArray[np.unsignedinteger], lengths: Counts) -> Counts:
        """(sentences,) number of tokens that are [UNK]."""
        sentence = np.repeat(np.arange(len(lengths)), lengths)  # (tokens,)
        return np.bincount(sentence[tokens == self._tokenizer.unk_id], minlength=len(lengths))

    def _pieces(self, tokens: NDArray[np.unsignedinteger]) -> tuple[int, int]:
        """The counts `words` and `pieces` of `TextCounts`."""
        words = int(self._begins[tokens].sum())
        return words, words + int(self._continues[tokens].sum())

    def _letters(
        self, sentences: Sequence[str], unknown_tokens: Counts, *, dropped: NDArray[np.bool_]
    ) -> tuple[int, int, int]:
        """The counts `letters`, `lost_letters` and `long_word_letters` of `TextCounts`."""
        lost = long_words = 0
        for i in np.flatnonzero(unknown_tokens).tolist():
            words = self._tokenizer.unknown_words(sentences[i])
            lost += _letters(sentences[i]) if dropped[i] else sum(map(len, words))
            long_words += sum(len(word) for word in words if len(word) > MAX_WORD)
        return sum(map(_letters, sentences)), lost, long_words

    def _ids(self, sentences: Sequence[str]) -> tuple[NDArray[np.unsignedinteger], Counts]:
        """(tokens,) ids of all sentences end to end, and (sentences,) their lengths."""
        if self._words is not None:
            ids = list(map(self._words.of_text, sentences))
        else:
            ids = [array(self.dtype.char, self._tokenizer.ids(each)).tobytes() for each in sentences]
        tokens = np.frombuffer(b"".join(ids), self.dtype)
        return tokens, np.array([len(sentence) for sentence in ids], np.int64) // self.dtype.itemsize


def _encoded(tokens: NDArray[np.unsignedinteger], lengths: Counts, per_document: Counts, *more: int) -> EncodedShard:
    """An encoded shard.

    Args:
        lengths: (sentences,) tokens of each.
        per_document: (documents,) sentences of each.
        more: the fields of `TextCounts` after the first three.
    """
    counts = TextCounts(len(per_document), len(lengths), len(tokens), *more)
    return EncodedShard(tokens, _starts(lengths), _starts(per_document), counts)


def label_column(labels: Sequence[Target]) -> NDArray[Any]:
    """(documents,) int16 index of the one label, `NO_LABEL` without one; for other targets (documents, outputs)
    float32."""
    column = np.array(labels)
    return column.astype(np.int16 if column.ndim == 1 else np.float32)


def target_rows(column: NDArray[Any], outputs: int) -> NDArray[np.float32]:
    """(documents, outputs) scores of a perfect model, NaN without a label.

    >>> target_rows(label_column([1, NO_LABEL]), 2).tolist()
    [[0.0, 1.0], [nan, nan]]
    """
    if column.ndim == 2:
        return column
    rows = np.eye(outputs, dtype=np.float32)[column]
    rows[column == NO_LABEL] = np.nan
    return rows


def even_parts(continues: NDArray[np.bool_], most: int) -> list[int]:
    """Lengths of about equal parts of a sentence: each at most `most`, and no word that fits is split.

    Args:
        continues: (tokens,) whether a token continues the word before it.
    """
    total = len(continues)
    ends = [0]
    while ends[-1] < total:
        left = total - ends[-1]
        end = ends[-1] + -(-left // -(-left // most))
        begins = np.flatnonzero(~continues[ends[-1] + 1 : end + 1])
        ends.append(ends[-1] + 1 + int(begins[-1]) if end < total and len(begins) else end)
    return [int(length) for length in np.diff(ends)]


def _letters(text: str) -> int:
    return len(text) - text.count(" ")  # ten times as fast as a split at all white space


def _starts(lengths: Counts) -> Counts:
    """(n,) lengths to (n + 1,) offsets."""
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
