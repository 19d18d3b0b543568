"""Masks pairs of segments: the masked-LM half of pretraining examples (Devlin et al. 2018, section 3.1)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from model.tokenizer import Tokenizer
from training.examples.pairs import Ints, Pairs, Text


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The parts of a tokenizer that masking needs."""

    cls_id: int
    sep_id: int
    mask_id: int
    unk_id: int
    ordinary: Ints
    """Ids that may replace a masked token: all but the special ones."""
    second_type_id: int = 1
    """Token type of the second text."""

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Vocabulary:
        ordinary = np.array(sorted(set(range(tokenizer.vocab_size)) - tokenizer.special_ids), dtype=np.int64)
        t = tokenizer
        return cls(t.cls_id, t.sep_id, t.mask_id, t.unk_id, ordinary, t.second_type_id)


@dataclass(frozen=True, slots=True)
class Examples:
    """`[CLS] first [SEP] second [SEP]` with some tokens masked, end to end."""

    input_ids: Ints
    """(tokens,) with masks."""
    token_type_ids: Ints
    """(tokens,)"""
    lengths: Ints
    """(examples,) tokens of each."""
    masked_positions: Ints
    """(masked,) ascending."""
    masked_ids: Ints
    """(masked,) the original tokens."""
    kinds: Ints
    """(examples,) PairKind"""

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def masked(self) -> Ints:
        """(examples,) masked tokens of each."""
        ends = np.searchsorted(self.masked_positions, self.lengths.cumsum())
        return np.diff(ends, prepend=0)

    def shown_as(self, masked: Ints | int) -> Examples:
        """The examples with these ids at the masked positions, such as [MASK] or the original tokens."""
        ids = self.input_ids.copy()
        ids[self.masked_positions] = masked
        return replace(self, input_ids=ids)


def mask(
    text: Text,
    pairs: Pairs,
    fraction: float,
    vocabulary: Vocabulary,
    rng: np.random.Generator,
    most: int | None = None,
) -> Examples:
    """Assemble pairs, the longest first, and mask about `fraction` of the tokens of each: 80% of these become [MASK],
    10% another token, 10% stay. [UNK] is masked only in examples without other tokens, because an unknown word cannot
    be learned.

    Args:
        most: maximum number of masked tokens of all examples. Above it, the shortest have none.
    """
    v, pairs = vocabulary, pairs[np.argsort(-pairs.lengths, kind="stable")]
    first, lengths = pairs.sizes[:, 0], pairs.lengths
    ends = lengths.cumsum()
    begins = ends - lengths
    separators = np.append(begins + first + 1, ends - 1)  # the same in an example of one segment
    is_text = np.ones(ends[-1], bool)
    is_text[begins] = is_text[separators] = False
    ids = np.empty(ends[-1], np.int64)
    ids[begins], ids[separators] = v.cls_id, v.sep_id
    spans = zip(pairs.starts.ravel().tolist(), (pairs.starts + pairs.sizes).ravel().tolist(), strict=True)
    ids[is_text] = np.concatenate([text.tokens(start, end) for start, end in spans])
    types = np.repeat(np.tile([0, v.second_type_id], len(pairs)), np.stack([first + 2, lengths - first - 2], 1).ravel())

    is_candidate = is_text & (ids != v.unk_id)
    counts = np.add.reduceat(is_candidate, begins, dtype=np.int64)
    if not counts.all():
        is_candidate |= is_text & np.repeat(counts == 0, lengths)
        counts = np.add.reduceat(is_candidate, begins, dtype=np.int64)
    wanted = np.maximum(1, np.rint(fraction * counts)).astype(np.int64)
    if most is not None:
        wanted = np.diff(np.minimum(wanted.cumsum(), most), prepend=0)
    # The candidates of each example in random order, of which the first are masked.
    candidates = is_candidate.nonzero()[0]
    order = np.argsort(np.repeat(np.arange(len(pairs)), counts) + rng.random(len(candidates)))
    rank = np.arange(len(order)) - np.repeat(counts.cumsum() - counts, counts)
    positions = np.sort(candidates[order[rank < np.repeat(wanted, counts)]])

    originals, lot = ids[positions], rng.random(len(positions))
    random_ids = v.ordinary[rng.integers(len(v.ordinary), size=len(positions))]
    ids[positions] = np.where(lot < 0.8, v.mask_id, np.where(lot < 0.9, random_ids, originals))
    return Examples(ids, types, lengths, positions, originals, pairs.kinds)
