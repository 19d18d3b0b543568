"""Masks a pair of segments: the masked-LM half of an example (Devlin et al. 2018, section 3.1)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from model.tokenizer import Tokenizer
from training.examples.pairs import Ints, Pair, PairKind


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
class Example:
    """`[CLS] first [SEP] second [SEP]` with some tokens masked."""

    input_ids: Ints
    """(length,) with masks."""
    token_type_ids: Ints
    """(length,)"""
    masked_positions: Ints
    """(masked,) ascending."""
    masked_ids: Ints
    """(masked,) the original tokens."""
    kind: PairKind

    def __len__(self) -> int:
        return len(self.input_ids)

    def unmasked(self) -> Example:
        """The example with the original tokens."""
        return self._with(self.masked_ids)

    def only_masks(self, mask_id: int) -> Example:
        """The example with [MASK] at all masked positions."""
        return self._with(mask_id)

    def _with(self, masked: Ints | int) -> Example:
        ids = self.input_ids.copy()
        ids[self.masked_positions] = masked
        return replace(self, input_ids=ids)


def mask(pair: Pair, fraction: float, vocabulary: Vocabulary, rng: np.random.Generator) -> Example:
    """Assemble a pair and mask about `fraction` of its tokens: 80% of these become [MASK], 10% another token, 10% stay.
    [UNK] is masked only if there are no other tokens, because an unknown word cannot be learned."""
    v, first, second = vocabulary, pair.first, pair.second
    separator = np.array([v.sep_id])
    parts = [np.array([v.cls_id]), first, separator, *([second, separator] if len(second) else [])]
    ids = np.concatenate(parts)
    types = np.zeros(len(ids), dtype=np.int64)
    types[len(first) + 2 :] = v.second_type_id
    candidates = np.arange(1, len(first) + len(second) + 1)
    candidates[len(first) :] += 1  # skip the first [SEP]
    known = candidates[ids[candidates] != v.unk_id]
    candidates = known if len(known) else candidates
    wanted = max(1, round(fraction * len(candidates)))
    positions = np.sort(candidates[rng.random(len(candidates)).argsort()[:wanted]])
    originals = ids[positions]
    lot = rng.random(len(positions))
    replaced = np.where(lot < 0.8, v.mask_id, originals)
    random_ids = v.ordinary[rng.integers(len(v.ordinary), size=len(positions))]
    ids[positions] = np.where(lot >= 0.9, random_ids, replaced)
    return Example(ids, types, positions, originals, pair.kind)
