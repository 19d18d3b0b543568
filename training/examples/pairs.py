"""Pairs of segments from a text: the next-sentence half of an example (Devlin et al. 2018, section 3.1).

Both segments are runs of whole sentences. False pairs from another document can be recognised by topic alone. Pairs
from the same document cannot: they are swapped (the sentence-order task of Lan et al. 2019, ALBERT, section 3.1) or not
adjacent. The second segment of a false pair has about the length of the true one, so length does not reveal the label.
Like the true one, it never begins a document unless the pair is swapped; but it ends one less often.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from model.tokenizer import truncate_longest_first
from training.recipe import NUM_SPECIAL_TOKENS, ExamplesConfig

IGNORE_INDEX = -100
IS_NEXT, NOT_NEXT = 0, 1

CANDIDATES = 16
"""Candidates drawn for the second segment of a false pair; the one whose length fits best is used."""

SHORT_FRACTION = 0.1
"""Share of examples that are filled only to a random shorter length, as callers' texts are."""

SENTENCE_PAIR_FRACTION = 0.1
"""Share of examples that pair two single sentences, as callers of next-sentence send them."""

Ints = NDArray[np.int64]
Span = tuple[int, int]
"""Sentences [first, last)."""
Closest = Callable[[Ints, Ints], tuple[Span, int]]
"""Called with the starts and limits of runs of sentences; see `PairSampler._closest_in_length`."""


class PairKind(IntEnum):
    """How the second segment of an example was chosen."""

    NEXT = 0
    RANDOM_DOCUMENT = 1
    SWAPPED = 2
    NOT_ADJACENT = 3
    SINGLE = 4

    @property
    def label(self) -> int:
        """IS_NEXT, NOT_NEXT, or IGNORE_INDEX without a second segment."""
        return IS_NEXT if self is PairKind.NEXT else IGNORE_INDEX if self is PairKind.SINGLE else NOT_NEXT


class Text(Protocol):
    """The interface of a text for sampling pairs; see `training.corpus.reader.TextWindow`."""

    sentence_starts: Ints
    """(sentences + 1,) first token of each sentence, and the end of the last."""
    document_starts: Ints
    """(documents + 1,) first sentence of each document, and the end of the last."""

    def tokens(self, first: int, last: int) -> NDArray[np.integer]:
        """Token ids [first, last)."""
        ...


@dataclass(frozen=True, slots=True)
class Pair:
    """Token ids of two segments; the second is empty for `PairKind.SINGLE`."""

    first: Ints
    second: Ints
    kind: PairKind


class PairSampler:
    """Samples pairs from one text."""

    def __init__(self, text: Text, config: ExamplesConfig) -> None:
        self.text = text
        self.config = config
        counts = np.diff(text.document_starts)
        self._document_of = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        """(sentences,) document of each sentence."""
        self._followers_before = np.concatenate([[0], np.cumsum(np.maximum(counts - 1, 0))])
        """(documents + 1,) number of sentences before each document that do not open a document."""

    def starts(self, rng: np.random.Generator) -> Ints:
        """(examples,) sentences at which the examples of one pass begin, shuffled.

        Every document is cut into pieces of the length of a short example, at another offset in each pass. So all text
        is seen about once."""
        piece_tokens = self.config.short_length - NUM_SPECIAL_TOKENS
        begins = self.text.sentence_starts[:-1]
        documents = self._document_of
        offset = begins - begins[self.text.document_starts[documents]]
        piece = (offset + int(rng.integers(piece_tokens))) // piece_tokens
        first = np.ones(len(begins), dtype=bool)
        first[1:] = (piece[1:] != piece[:-1]) | (documents[1:] != documents[:-1])
        starts = first.nonzero()[0]
        rng.shuffle(starts)
        return starts

    def sample(
        self, start: int, rng: np.random.Generator, max_tokens: int | None = None, *, is_long: bool = False
    ) -> Pair:
        """The pair that begins at sentence `start`, with at most `max_tokens` tokens, special tokens included.

        Args:
            is_long: Whether to fill it up to `long_length`.
        """
        budget, one_sentence_each = self._segment_budget(rng, is_long)
        if max_tokens is not None:
            budget = min(budget, max_tokens - NUM_SPECIAL_TOKENS)
        document = int(self._document_of[start])
        begin, end = self.text.document_starts[document : document + 2].tolist()
        kind = self._kind(end - begin, rng)
        if kind is PairKind.SINGLE:
            stop = start + 1 if one_sentence_each else self._stop(start, end, budget)
            return Pair(self._ids((start, stop))[:budget], np.empty(0, np.int64), kind)
        start = min(start, end - 2)  # leave a sentence for the second segment
        stop = start + 2 if one_sentence_each else max(start + 2, self._stop(start, end, budget))
        cut = int(rng.integers(start + 1, stop))
        first, second = (start, cut), (cut, stop)
        closest = partial(self._closest_in_length, second, first, budget, one_sentence_each)
        if kind is PairKind.RANDOM_DOCUMENT:
            second = self._sample_other_document(document, closest, rng)
        elif kind is PairKind.NOT_ADJACENT:
            second, kind = self._sample_same_document((begin, end), first, second, closest, rng)
        if kind is PairKind.SWAPPED:
            first, second = second, first
        return Pair(*_truncate(self._ids(first), self._ids(second), budget), kind)

    def _segment_budget(self, rng: np.random.Generator, is_long: bool) -> tuple[int, bool]:
        """Tokens for both segments, and whether each is one sentence."""
        config = self.config
        budget = (config.long_length if is_long else config.short_length) - NUM_SPECIAL_TOKENS
        length_draw = rng.random()
        if length_draw >= SENTENCE_PAIR_FRACTION + SHORT_FRACTION:
            return budget, False
        if length_draw < SENTENCE_PAIR_FRACTION:
            return budget, True
        return int(rng.integers(min(5, budget), budget + 1)), False

    def _kind(self, sentences: int, rng: np.random.Generator) -> PairKind:
        single_draw, kind_draw = rng.random(), rng.random()
        if sentences < 2 or single_draw < self.config.single_fraction:
            return PairKind.SINGLE
        if kind_draw < 0.5:
            return PairKind.NEXT
        if kind_draw < 0.5 + self.config.random_fraction and self._followers_before[-1] > sentences - 1:
            return PairKind.RANDOM_DOCUMENT
        return PairKind.SWAPPED if rng.random() < 0.5 else PairKind.NOT_ADJACENT

    def _sample_other_document(self, document: int, closest: Closest, rng: np.random.Generator) -> Span:
        """Sentences of another document. It is drawn in proportion to its length, so that no document is second more
        often than first."""
        own, until = self._followers_before[document : document + 2]
        draws = rng.integers(self._followers_before[-1] - (until - own), size=CANDIDATES)
        draws[draws >= own] += until - own
        documents = np.searchsorted(self._followers_before, draws, side="right") - 1
        starts = self.text.document_starts
        after = starts[documents] + 1 + draws - self._followers_before[documents]
        return closest(after, starts[documents + 1])[0]

    def _sample_same_document(
        self, document_span: Span, first: Span, follower: Span, closest: Closest, rng: np.random.Generator
    ) -> tuple[Span, PairKind]:
        """Sentences of the same document that neither follow nor overlap. If none has a similar length, the true pair,
        to be swapped."""
        before = max(0, first[0] - document_span[0] - 1)
        behind = document_span[1] - first[1] - 1
        if before + behind < 1:
            return follower, PairKind.SWAPPED
        draws = rng.integers(before + behind, size=CANDIDATES)
        after = np.where(draws < before, document_span[0] + 1 + draws, first[1] + 1 + draws - before)
        until = np.where(draws < before, first[0], document_span[1])
        found, gap = closest(after, until)
        is_similar = gap <= 2 + self._length(follower) // 8
        return (found, PairKind.NOT_ADJACENT) if is_similar else (follower, PairKind.SWAPPED)

    def _closest_in_length(
        self, target: Span, first: Span, budget: int, one_sentence_each: bool, after: Ints, until: Ints
    ) -> tuple[Span, int]:
        """The run of sentences, beginning at one of `after` and ending by `until`, whose length is nearest to that of
        `target`; and the difference in tokens."""
        begins = self.text.sentence_starts
        wanted = self._length(target)
        stops = after + 1 if one_sentence_each else np.searchsorted(begins, begins[after] + wanted, side="right")
        after, until = np.tile(after, 2), np.tile(until, 2)
        stops = np.clip(np.concatenate([stops - 1, stops]), after + 1, until)  # the last run that fits, and one more
        lengths = begins[stops] - begins[after]
        gaps = np.abs(lengths - wanted)
        fits = lengths <= max(wanted, budget - self._length(first))
        best = int(np.argmin(np.where(fits, gaps, gaps + budget)))
        return (int(after[best]), int(stops[best])), int(gaps[best])

    def _stop(self, start: int, end: int, budget: int) -> int:
        """End of the longest run of whole sentences that fits the budget; at least one sentence."""
        begins = self.text.sentence_starts
        last = min(end, start + budget)  # no sentence is empty
        fits = int(np.searchsorted(begins[start : last + 1], begins[start] + budget, side="right")) - 1
        return start + max(1, fits)

    def _length(self, span: Span) -> int:
        begins = self.text.sentence_starts
        return int(begins[span[1]] - begins[span[0]])

    def _ids(self, span: Span) -> Ints:
        begins = self.text.sentence_starts
        return self.text.tokens(int(begins[span[0]]), int(begins[span[1]])).astype(np.int64)


def _truncate(first: Ints, second: Ints, budget: int) -> tuple[Ints, Ints]:
    """Cut the longer segment at its outer end, so that the tokens on both sides of the [SEP] stay adjacent."""
    keep, keep_second = truncate_longest_first([len(first), len(second)], budget)
    return first[len(first) - keep :], second[:keep_second]
