"""Attention by its definition, and batches to compare the implementations on."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from model.attention.base import Attention
from model.packing import SequenceBounds

CPU = torch.device("cpu")
HEADS, HEAD_DIM = 2, 4

Lengths = Sequence[int]
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Query, key and value, (rows, heads, head_dim) each, to the query's shape."""
MakeAttention = Callable[[SequenceBounds, SequenceBounds], Attention]


def reference(query: Tensor, key: Tensor, value: Tensor, queries: Lengths, keys: Lengths) -> Tensor:
    """The definition, one sequence at a time."""
    outs = []
    parts = zip(query.split(list(queries)), key.split(list(keys)), value.split(list(keys)), strict=True)
    for q, k, v in parts:
        scores = torch.einsum("qhd,khd->hqk", q, k) / q.shape[-1] ** 0.5
        outs.append(torch.einsum("hqk,khd->qhd", scores.softmax(-1), v))
    return torch.cat(outs)


def inputs_for(queries: Lengths, keys: Lengths, *, seed: int = 0, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Random query, key and value with gradients."""
    generator = torch.Generator().manual_seed(seed)
    rows = (sum(queries), sum(keys), sum(keys))
    return [torch.randn(n, HEADS, HEAD_DIM, generator=generator, dtype=dtype).requires_grad_() for n in rows]


def cross(attention: Attention) -> Attend:
    return lambda query, key, value: attention.cross_attention(query, torch.stack([key, value], 1))


def self_only(attention: Attention) -> Attend:
    return lambda query, key, value: attention.self_attention(torch.stack([query, key, value], 1))


def attend_with(make: MakeAttention, queries: Lengths, keys: Lengths) -> Attend:
    """`cross_attention` where there are fewer queries than keys, else `self_attention`."""
    bounds = SequenceBounds.of(keys)
    if queries == keys:
        return self_only(make(bounds, bounds))
    return cross(make(SequenceBounds.of(queries), bounds))


def random_lengths(seed: int) -> tuple[list[int], list[int]]:
    """Fewer queries than keys, in several buckets; some sequences have no query."""
    rng = random.Random(seed)
    keys = [rng.choice([1, 2, 7, 60, 61, 64, 300]) for _ in range(rng.randint(2, 16))]
    return [rng.randint(0, min(n, 3)) for n in keys], keys


CASES: dict[str, tuple[Lengths, Lengths]] = {
    "one sequence": ([5], [5]),
    "one token each": ([1, 1, 1], [1, 1, 1]),
    "equal lengths": ([6, 6, 6], [6, 6, 6]),
    "ragged": ([3, 1, 8], [3, 1, 8]),
    "several buckets": ([300, 290, 300, 5, 4, 5], [300, 290, 300, 5, 4, 5]),
    "fewer queries": ([1, 1, 2], [3, 1, 8]),
    "no query in the first": ([0, 1, 2], [3, 1, 8]),
    "no query in equal lengths": ([0, 0, 3], [4, 4, 4]),
    "fewer queries in several buckets": ([1, 0, 2, 1, 0, 1], [300, 290, 300, 5, 4, 5]),
    "no query in a bucket": ([1, 2, 1, 0, 0, 0], [300, 290, 300, 5, 4, 5]),
    **{f"random {seed}": random_lengths(seed) for seed in range(3)},
}
cases = pytest.mark.parametrize(("queries", "keys"), CASES.values(), ids=CASES.keys())
