"""Pairs of segments from a text: the next-sentence half of pretraining examples (Devlin et al. 2018, section 3.1).

Both segments are runs of whole sentences. False pairs from another document can be recognised by topic alone. Pairs
from the same document cannot: they are swapped (the sentence-order task of Lan et al. 2019, ALBERT, section 3.1) or not
adjacent. The second segment of a false pair has about the length of the true one, so length does not reveal the label.
Like the true one, it never begins a document unless the pair is swapped.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from training.recipe import NUM_SPECIAL_TOKENS, ExamplesConfig

IGNORE_INDEX = -100
IS_NEXT, NOT_NEXT = 0, 1

CANDIDATES = 16
"""Candidates drawn for a second segment from the same document; the one whose length fits best is used."""

SHORT_FRACTION = 0.1
"""Share of examples that are filled only to a random shorter length, as callers' texts are."""

SENTENCE_PAIR_FRACTION = 0.1
"""Share of examples that pair two single sentences, as callers of next-sentence send them."""

Ints = NDArray[np.int64]


class PairKind(IntEnum):
    """How the second segment of an example was chosen."""

    NEXT = 0
    RANDOM_DOCUMENT = 1
    SWAPPED = 2
    NOT_ADJACENT = 3
    SINGLE = 4


LABELS = np.array([IS_NEXT, NOT_NEXT, NOT_NEXT, NOT_NEXT, IGNORE_INDEX])
"""(kinds,) label of each kind of pair."""


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
class Pairs:
    """Places of two segments each in a text; the second is empty for `PairKind.SINGLE`."""

    starts: Ints
    """(pairs, 2) first token of each segment."""
    sizes: Ints
    """(pairs, 2) tokens of each segment."""
    kinds: Ints
    """(pairs,) PairKind"""

    def __len__(self) -> int:
        return len(self.kinds)

    def __getitem__(self, chosen: slice | Ints) -> Pairs:
        return Pairs(self.starts[chosen], self.sizes[chosen], self.kinds[chosen])

    @property
    def lengths(self) -> Ints:
        """(pairs,) tokens of each example, special tokens included."""
        return self.sizes.sum(1) + self._special_tokens

    @property
    def _special_tokens(self) -> Ints:
        return NUM_SPECIAL_TOKENS - (self.kinds == PairKind.SINGLE)

    def cut(self, lengths: Ints | int) -> Pairs:
        """The pairs with at most `lengths` (pairs,) tokens, special tokens included. The longer segment is cut first,
        at its outer end, so that the tokens on both sides of the [SEP] stay adjacent."""
        first, second = self.sizes.T
        kept = np.minimum(first + second, lengths - self._special_tokens)
        half = np.where(first > second, kept // 2, kept - kept // 2)  # of two equal segments, the second is longer
        second = np.minimum(second, np.maximum(half, kept - first))
        sizes = np.stack([kept - second, second], 1)
        starts = self.starts + np.stack([first - sizes[:, 0], np.zeros_like(first)], 1)
        return Pairs(starts, sizes, self.kinds)


def sample_pairs(text: Text, config: ExamplesConfig, rng: np.random.Generator) -> Pairs:
    """The pairs of one pass over a text, shuffled."""
    begins, bounds = text.sentence_starts, text.document_starts
    start = _starts(text, config, rng)
    document = np.searchsorted(bounds, start, side="right") - 1
    begin, end = bounds[document], bounds[document + 1]
    single = end - begin < 2
    lengths, of_sentences = _lengths(len(start), config, rng)
    budget = lengths - NUM_SPECIAL_TOKENS

    # The second segment runs from sentence `cut` to `stop`.
    start = np.where(single, start, np.minimum(start, end - 2))
    least = start + np.where(single, 1, 2)
    fits = np.searchsorted(begins, begins[start] + budget, side="right") - 1
    stop = np.where(of_sentences, least, np.clip(fits, least, end))
    cut = np.where(single, stop, rng.integers(start + 1, np.maximum(stop, start + 2)))
    segments = np.stack([start, cut, cut, stop], 1).reshape(-1, 2, 2)  # (pairs, 2 segments, first and last sentence)

    draw, share = rng.random(len(start)), config.random_fraction
    kinds = np.select(
        [single, draw < 0.5, draw < 0.5 + share, draw < 0.75 + share / 2],
        [PairKind.SINGLE, PairKind.NEXT, PairKind.RANDOM_DOCUMENT, PairKind.SWAPPED],
        PairKind.NOT_ADJACENT,
    )
    wanted = begins[stop] - begins[cut]
    room = np.maximum(wanted, begins[start] + budget - begins[cut])  # for a second segment

    # Pairs of different documents exchange second segments of about the same length.
    chosen = (kinds == PairKind.RANDOM_DOCUMENT).nonzero()[0]
    order = np.lexsort((rng.random(len(chosen)), wanted[chosen], of_sentences[chosen]))
    one, other = chosen[order[: len(order) // 2 * 2]].reshape(-1, 2).T
    fits = (document[one] != document[other]) & (of_sentences[one] == of_sentences[other])
    fits &= (wanted[other] <= room[one]) & (wanted[one] <= room[other])
    one, other = one[fits], other[fits]
    segments[one, 1], segments[other, 1] = segments[other, 1], segments[one, 1]
    kinds[chosen] = PairKind.SWAPPED
    kinds[one] = kinds[other] = PairKind.RANDOM_DOCUMENT

    chosen = (kinds == PairKind.NOT_ADJACENT).nonzero()[0]
    found, gap = _sample_same_document(
        begins, segments[chosen], begin[chosen], end[chosen], room[chosen], of_sentences[chosen], rng
    )
    fits = gap <= 2 + wanted[chosen] // 8
    segments[chosen[fits], 1] = found[fits]
    kinds[chosen[~fits]] = PairKind.SWAPPED

    swapped = kinds == PairKind.SWAPPED
    segments[swapped] = segments[swapped, ::-1]
    tokens = begins[segments]
    pairs = Pairs(tokens[:, :, 0], tokens[:, :, 1] - tokens[:, :, 0], kinds)
    return pairs.cut(lengths)[rng.permutation(len(pairs))]


def _starts(text: Text, config: ExamplesConfig, rng: np.random.Generator) -> Ints:
    """(pairs,) sentences at which the pairs of one pass begin.

    Every document is cut into pieces of the length of a short example, at another offset in each pass. So all text is
    seen about once."""
    piece_tokens = config.short_length - NUM_SPECIAL_TOKENS
    begins, counts = text.sentence_starts[:-1], np.diff(text.document_starts)
    piece = begins - np.repeat(begins[text.document_starts[:-1]], counts) + int(rng.integers(piece_tokens))
    piece //= piece_tokens
    first = np.append(True, piece[1:] != piece[:-1])
    first[text.document_starts[:-1]] = True
    return first.nonzero()[0]


def _lengths(count: int, config: ExamplesConfig, rng: np.random.Generator) -> tuple[Ints, NDArray[np.bool_]]:
    """(count,) maximum tokens of each example, special tokens included, and whether its segments are one sentence
    each."""
    full = np.where(rng.random(count) < config.long_probability, config.long_length, config.short_length)
    shorter = rng.integers(np.minimum(5 + NUM_SPECIAL_TOKENS, full), full + 1)
    draw = rng.random(count)
    is_short = draw < SHORT_FRACTION
    return np.where(is_short, shorter, full), ~is_short & (draw < SHORT_FRACTION + SENTENCE_PAIR_FRACTION)


def _sample_same_document(
    begins: Ints,
    segments: Ints,
    begin: Ints,
    end: Ints,
    room: Ints,
    of_sentences: NDArray[np.bool_],
    rng: np.random.Generator,
) -> tuple[Ints, Ints]:
    """(pairs, 2) second segments from the same documents that neither follow nor overlap, and (pairs,) by how many
    tokens their length differs from that of the true ones.

    Args:
        begins: (sentences + 1,) first token of each sentence.
        segments: (pairs, 2, 2) first and last sentence of the true pairs.
        begin, end: (pairs,) first and last sentence of their documents.
        room: (pairs,) maximum tokens of a second segment.
    """
    start, cut, stop = segments[:, 0, 0], segments[:, 1, 0], segments[:, 1, 1]
    wanted = begins[stop] - begins[cut]
    before = np.maximum(0, start - begin - 1)
    choices = before + end - cut - 1
    # The arrays from here on are (candidates, pairs).
    draws = (rng.random((CANDIDATES, len(segments))) * choices).astype(np.int64)
    after = np.where(draws < before, begin + 1 + draws, cut + 1 + draws - before)
    until = np.where(draws < before, start, end)
    nearest = np.searchsorted((begins[1:] + begins[:-1]) // 2, begins[after] + wanted)
    stops = np.clip(np.where(of_sentences, after + 1, nearest), after + 1, until)
    lengths = begins[stops] - begins[after]
    fits = (choices > 0) & (lengths <= room)
    gaps = np.where(fits, np.abs(lengths - wanted), np.iinfo(np.int64).max)
    best = gaps.argmin(0), np.arange(len(segments))
    return np.stack([after[best], stops[best]], 1), gaps[best]
