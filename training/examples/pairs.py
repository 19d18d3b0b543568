"""Text to training examples: pure functions of (corpus, seed, epoch, index).

An example is `[CLS] first [SEP] second [SEP]` with some tokens masked (Devlin et al. 2018, section 3.1). Both
segments are runs of whole sentences. Negatives come from another document, which topic alone can tell, and from
the same document, swapped or not adjacent, which needs more. A second segment that does not follow is chosen to
be as long as the one that does, and like it never opens a document, so that neither length nor position gives
the label away.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from model.tokenizer import Tokenizer, truncate_longest_first
from training.recipe import ExamplesConfig

IGNORE_INDEX = -100
IS_NEXT, NOT_NEXT = 0, 1
KINDS = ("next", "random document", "swapped", "not adjacent", "alone")
NEXT, RANDOM, SWAPPED, APART, ALONE = range(len(KINDS))

CANDIDATES = 16
"""Places drawn for a second segment that does not follow; the one whose length fits best is taken."""

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
Span = tuple[int, int]
"""Sentences [first, last)."""


class Text(Protocol):
    """What examples need of `training.corpus.prepare.Corpus`."""

    sentence_starts: Ints
    """First token of each sentence, and the end of the last: (num_sentences + 1,)"""
    document_starts: Ints
    """First sentence of each document, and the end of the last: (num_documents + 1,)"""

    def tokens(self, first: int, last: int) -> NDArray[np.integer]:
        """Token ids [first, last)."""
        ...


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What masking must know of a tokenizer."""

    size: int
    cls_id: int
    sep_id: int
    mask_id: int
    unk_id: int
    ordinary: Ints
    """Ids that may stand in for a masked token: all but the special ones."""
    continues_word: NDArray[np.bool_]
    """Whether an id is a `##` piece: (size,)"""

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Vocabulary:
        ordinary = np.array(sorted(set(range(tokenizer.vocab_size)) - tokenizer.special_ids), dtype=np.int64)
        continues = np.array([token.startswith("##") for token in tokenizer.vocab])
        ids = (tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id, tokenizer.unk_id)
        return cls(tokenizer.vocab_size, *ids, ordinary, continues)


@dataclass(frozen=True, slots=True)
class Example:
    """One masked pair of segments."""

    input_ids: Ints
    """With masks: (length,)"""
    token_type_ids: Ints
    """(length,)"""
    masked_positions: Ints
    """Ascending: (num_masked,)"""
    masked_ids: Ints
    """What stood there: (num_masked,)"""
    next_label: int
    """IS_NEXT, NOT_NEXT, or IGNORE_INDEX where a document is too short to tell"""
    kind: int
    """Index into KINDS"""


def unmasked(example: Example) -> Example:
    """The same with the text as it was."""
    ids = example.input_ids.copy()
    ids[example.masked_positions] = example.masked_ids
    return replace(example, input_ids=ids)


class ExampleMaker:
    """Examples of one corpus. Epoch e visits every stretch of text once, in an order of its own."""

    def __init__(self, corpus: Text, vocabulary: Vocabulary, config: ExamplesConfig, seed: int) -> None:
        self.corpus = corpus
        self.vocabulary = vocabulary
        self.config = config
        self.seed = seed
        self._epoch = (-1, np.empty(0, dtype=np.int64))

    @cached_property
    def _document_of(self) -> NDArray[np.int32]:
        counts = np.diff(self.corpus.document_starts)
        return np.repeat(np.arange(len(counts), dtype=np.int32), counts)

    @cached_property
    def _followers(self) -> Ints:
        """How many sentences that do not open their document come before each document: (num_documents + 1,)"""
        counts = np.diff(self.corpus.document_starts)
        return np.concatenate([[0], np.cumsum(np.maximum(counts - 1, 0))])

    def starts(self, epoch: int) -> Ints:
        """Sentences at which the examples of an epoch begin, shuffled: (examples per epoch,).

        Every document is cut into stretches of about `sequence_length` tokens, at another offset each epoch.
        """
        if self._epoch[0] != epoch:
            rng = np.random.default_rng((self.seed, epoch))
            room = self.config.sequence_length - 3
            begins = self.corpus.sentence_starts[:-1]
            documents = self._document_of
            offset = begins - begins[self.corpus.document_starts[documents]]
            stretch = (offset + int(rng.integers(room))) // room
            first = np.ones(len(begins), dtype=bool)
            first[1:] = (stretch[1:] != stretch[:-1]) | (documents[1:] != documents[:-1])
            starts = first.nonzero()[0]
            rng.shuffle(starts)
            self._epoch = (epoch, starts)
        return self._epoch[1]

    def __call__(self, epoch: int, index: int) -> Example:
        """Example `index` of an epoch, always the same one."""
        rng = np.random.default_rng((self.seed, epoch, index))
        first, second, kind = self.segments(int(self.starts(epoch)[index]), rng)
        label = IGNORE_INDEX if kind == ALONE else IS_NEXT if kind == NEXT else NOT_NEXT
        return self.mask(first, second, label, kind, rng)

    def segments(self, start: int, rng: np.random.Generator) -> tuple[Ints, Ints, int]:
        """Token ids of both segments, and the kind of pair; `start` is the sentence to begin at."""
        room, single = self._room(rng)
        document = int(self._document_of[start])
        begin, end = self._sentences(document)
        kind = self._kind(end - begin, rng)
        if kind == ALONE:
            stop = start + 1 if single else self._stop(start, end, room)
            return self._ids((start, stop))[:room], np.empty(0, np.int64), kind
        start = min(start, end - 2)  # leave a sentence to follow
        stop = start + 2 if single else max(start + 2, self._stop(start, end, room))
        cut = int(rng.integers(start + 1, stop))
        first, second = (start, cut), (cut, stop)
        if kind == RANDOM:
            second = self._elsewhere(document, first, second, room, single, rng)
        elif kind == APART:
            second, kind = self._apart((begin, end), first, second, room, single, rng)
        if kind == SWAPPED:
            first, second = second, first
        return *self._fitted(self._ids(first), self._ids(second), room), kind

    def mask(self, first: Ints, second: Ints, label: int, kind: int, rng: np.random.Generator) -> Example:
        """Assemble a pair and mask it: of the chosen tokens 80% become [MASK], 10% any token, 10% stay."""
        v = self.vocabulary
        separator = np.array([v.sep_id])
        parts = [np.array([v.cls_id]), first, separator, *([second, separator] if len(second) else [])]
        ids = np.concatenate(parts)
        types = np.zeros(len(ids), dtype=np.int64)
        types[len(first) + 2 :] = 1
        candidates = np.arange(1, len(first) + len(second) + 1)
        candidates[len(first) :] += 1  # past the first [SEP]
        known = candidates[ids[candidates] != v.unk_id]  # an unknown word is nothing to be learned, or guessed
        positions = self._choose(ids, known if len(known) else candidates, rng)
        originals = ids[positions]
        lot = rng.random(len(positions))
        replaced = np.where(lot < 0.8, v.mask_id, originals)
        anything = v.ordinary[rng.integers(len(v.ordinary), size=len(positions))]
        ids[positions] = np.where(lot >= 0.9, anything, replaced)
        return Example(ids, types, positions, originals, label, kind)

    def _choose(self, ids: Ints, candidates: Ints, rng: np.random.Generator) -> Ints:
        """Ascending positions to mask."""
        wanted = max(1, round(self.config.mask_fraction * len(candidates)))
        if not self.config.whole_word:
            return np.sort(candidates[rng.random(len(candidates)).argsort()[:wanted]])
        word = np.cumsum(~self.vocabulary.continues_word[ids[candidates]])
        order = rng.permutation(word.max() + 1)  # a rank for each word; whole words by rank until enough
        ranked = np.argsort(order[word], kind="stable")
        sizes = np.cumsum(np.bincount(order[word], minlength=len(order)))
        taken = int(sizes[sizes <= wanted].max(initial=0)) or int(sizes[sizes > 0][0])
        return np.sort(candidates[ranked[:taken]])

    def _room(self, rng: np.random.Generator) -> tuple[int, bool]:
        """Tokens for both segments, and whether each is to be one single sentence."""
        room = self.config.sequence_length - 3
        lot = rng.random()
        if lot < self.config.sentence_pair_fraction:
            return room, True
        if lot < self.config.sentence_pair_fraction + self.config.short_fraction:
            return int(rng.integers(min(5, room), room + 1)), False
        return room, False

    def _kind(self, sentences: int, rng: np.random.Generator) -> int:
        lot = rng.random()
        if sentences < 2:
            return ALONE
        if lot < self.config.next_fraction:
            return NEXT
        if lot < self.config.next_fraction + self.config.random_fraction:
            return RANDOM if self._followers[-1] > sentences - 1 else APART
        return SWAPPED if rng.random() < 0.5 else APART

    def _elsewhere(
        self, document: int, first: Span, follower: Span, room: int, single: bool, rng: np.random.Generator
    ) -> Span:
        """Sentences of another document, drawn by length as first segments are, so that no document is more
        often second than first."""
        own, until = self._followers[document : document + 2]
        lots = rng.integers(self._followers[-1] - (until - own), size=CANDIDATES)
        lots[lots >= own] += until - own
        documents = np.searchsorted(self._followers, lots, side="right") - 1
        starts = self.corpus.document_starts
        after = starts[documents] + 1 + lots - self._followers[documents]
        return self._like(follower, first, room, single, after, starts[documents + 1])[0]

    def _apart(
        self, document: Span, first: Span, follower: Span, room: int, single: bool, rng: np.random.Generator
    ) -> tuple[Span, int]:
        """Sentences of the same document that neither follow nor overlap; where none are of like length, the
        true pair to be swapped."""
        before = max(0, first[0] - document[0] - 1)
        behind = document[1] - first[1] - 1
        if before + behind < 1:
            return follower, SWAPPED
        lots = rng.integers(before + behind, size=CANDIDATES)
        after = np.where(lots < before, document[0] + 1 + lots, first[1] + 1 + lots - before)
        until = np.where(lots < before, first[0], document[1])
        found, gap = self._like(follower, first, room, single, after, until)
        return (found, APART) if gap <= 2 + self._length(follower) // 8 else (follower, SWAPPED)

    def _like(
        self, model: Span, first: Span, room: int, single: bool, after: Ints, until: Ints
    ) -> tuple[Span, int]:
        """Of the runs of sentences that begin at `after` and end by `until`, the one whose length is nearest to
        `model`'s, and the difference in tokens."""
        begins = self.corpus.sentence_starts
        wanted = self._length(model)
        stops = after + 1 if single else np.searchsorted(begins, begins[after] + wanted, side="right")
        after, until = np.tile(after, 2), np.tile(until, 2)
        stops = np.clip(
            np.concatenate([stops - 1, stops]), after + 1, until
        )  # the last that fits, and one more
        lengths = begins[stops] - begins[after]
        gaps = np.abs(lengths - wanted)
        fits = lengths <= max(wanted, room - self._length(first))
        best = int(np.argmin(np.where(fits, gaps, gaps + room)))
        return (int(after[best]), int(stops[best])), int(gaps[best])

    def _sentences(self, document: int) -> Span:
        starts = self.corpus.document_starts
        return int(starts[document]), int(starts[document + 1])

    def _stop(self, start: int, end: int, budget: int) -> int:
        """End of the longest run of whole sentences that fits the budget; at least one sentence."""
        begins = self.corpus.sentence_starts
        last = min(end, start + budget)  # no sentence is empty
        fits = int(np.searchsorted(begins[start : last + 1], begins[start] + budget, side="right")) - 1
        return start + max(1, fits)

    def _length(self, span: Span) -> int:
        begins = self.corpus.sentence_starts
        return int(begins[span[1]] - begins[span[0]])

    def _ids(self, span: Span) -> Ints:
        begins = self.corpus.sentence_starts
        return self.corpus.tokens(int(begins[span[0]]), int(begins[span[1]])).astype(np.int64)

    @staticmethod
    def _fitted(first: Ints, second: Ints, room: int) -> tuple[Ints, Ints]:
        """Cut the longer at its outer end, so that the tokens on both sides of the [SEP] stay neighbours."""
        keep, keep_second = truncate_longest_first([len(first), len(second)], room)
        return first[len(first) - keep :], second[:keep_second]
