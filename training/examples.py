"""Text to training examples: pure functions of (corpus, seed, epoch, index).

An example is `[CLS] first [SEP] second [SEP]` with some tokens masked (Devlin et al. 2018, section 3.1). Both
segments are runs of whole sentences, cut the same way whatever the label is, so that neither length nor
position gives the label away. Negatives come from another document, which topic alone can tell, and from the
same document, swapped or not adjacent, which needs more.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from model.tokenizer import Tokenizer
from training.config import ExamplesConfig

IGNORE_INDEX = -100
IS_NEXT, NOT_NEXT = 0, 1
KINDS = ("next", "random document", "swapped", "not adjacent", "alone")
NEXT, RANDOM, SWAPPED, APART, ALONE = range(len(KINDS))

Ints = NDArray[np.int64]


class Text(Protocol):
    """What examples need of `training.corpus.Corpus`."""

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
    ordinary: Ints
    """Ids that may stand in for a masked token: all but the special ones."""
    continues_word: NDArray[np.bool_]
    """Whether an id is a `##` piece: (size,)"""

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Vocabulary:
        ordinary = np.array(sorted(set(range(tokenizer.vocab_size)) - tokenizer.special_ids), dtype=np.int64)
        continues = np.array([token.startswith("##") for token in tokenizer.vocab])
        ids = (tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id)
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
        share = int(rng.integers(room // 4, room - room // 4 + 1))
        if kind == ALONE:
            return self._ids(start, self._run(start, end, room, single), room), np.empty(0, np.int64), kind
        start = min(start, end - 2)  # leave a sentence to follow
        first_end = self._run(start, end - 1, share, single)
        first = self._ids(start, first_end, max(room // 2, share))
        after, until = first_end, end
        if kind == RANDOM:
            begin, until = self._sentences(self._other_document(document, rng))
            after = int(rng.integers(begin, until))
        elif kind == APART:
            after, kind = self._apart(start, first_end, begin, end, rng)
            until = start if after < start else end  # it may touch the first segment, never overlap it
        second_end = self._run(after, until, room - share, single)
        second = self._ids(after, second_end, min(room - len(first), max(room // 2, room - share)))
        return (second, first, kind) if kind == SWAPPED else (first, second, kind)

    def mask(self, first: Ints, second: Ints, label: int, kind: int, rng: np.random.Generator) -> Example:
        """Assemble a pair and mask it: of the chosen tokens 80% become [MASK], 10% any token, 10% stay."""
        v = self.vocabulary
        separator = np.array([v.sep_id])
        parts = [np.array([v.cls_id]), first, separator, *([second, separator] if len(second) else [])]
        ids = np.concatenate(parts)
        types = np.zeros(len(ids), dtype=np.int64)
        types[len(first) + 2 :] = 1
        candidates = np.concatenate([np.arange(1, len(first) + 1), np.arange(len(first) + 2, len(ids) - 1)])
        positions = self._choose(ids, candidates[: len(first) + len(second)], rng)
        originals = ids[positions]
        lot = rng.random(len(positions))
        replaced = np.where(lot < 0.8, v.mask_id, originals)
        anything = v.ordinary[rng.integers(len(v.ordinary), size=len(positions))]
        ids[positions] = np.where(lot >= 0.9, anything, replaced)
        return Example(ids, types, positions, originals, label, kind)

    def _choose(self, ids: Ints, candidates: Ints, rng: np.random.Generator) -> Ints:
        wanted = max(1, round(self.config.mask_fraction * len(candidates)))
        if not self.config.whole_word:
            return np.sort(rng.choice(candidates, wanted, replace=False))
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
            return RANDOM if len(self.corpus.document_starts) > 2 else APART
        return SWAPPED if rng.random() < 0.5 else APART

    def _apart(
        self, start: int, first_end: int, begin: int, end: int, rng: np.random.Generator
    ) -> tuple[int, int]:
        """A sentence of the same document that does not follow the first segment; else swap the two."""
        before, behind = start - begin, end - first_end - 1
        if before + behind < 1:
            return first_end, SWAPPED
        lot = int(rng.integers(before + behind))
        return (begin + lot if lot < before else first_end + 1 + lot - before), APART

    def _other_document(self, document: int, rng: np.random.Generator) -> int:
        """Drawn by length, as the first segments are, so that no document is more often second than first."""
        starts = self.corpus.document_starts
        total = int(starts[-1] - (starts[document + 1] - starts[document]))
        lot = int(rng.integers(total))
        lot += int(starts[document + 1] - starts[document]) if lot >= starts[document] else 0
        return int(self._document_of[lot])

    def _sentences(self, document: int) -> tuple[int, int]:
        starts = self.corpus.document_starts
        return int(starts[document]), int(starts[document + 1])

    def _run(self, start: int, end: int, budget: int, single: bool) -> int:
        """End of a run of whole sentences that fits the budget; at least one sentence."""
        if single:
            return start + 1
        begins = self.corpus.sentence_starts
        fits = int(np.searchsorted(begins[start : end + 1], begins[start] + budget, side="right")) - 1
        return min(end, start + max(1, fits))

    def _ids(self, start: int, end: int, budget: int) -> Ints:
        """Ids of sentences [start, end), cut to the budget."""
        begins = self.corpus.sentence_starts
        first = int(begins[start])
        return self.corpus.tokens(first, min(int(begins[end]), first + max(budget, 1))).astype(np.int64)
