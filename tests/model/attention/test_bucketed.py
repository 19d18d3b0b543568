from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial

import pytest
import torch
from torch import Tensor

from model.attention.bucketed import BucketedAttention, Matmuls
from model.attention.choose import attention_for
from model.packing import SequenceBounds
from tests.model.attention.cases import (
    CPU,
    HEADS,
    Lengths,
    MakeAttention,
    attend_with,
    cross,
    inputs_for,
    reference,
    self_only,
)

KINDS: dict[str, MakeAttention] = {
    "plain": BucketedAttention,
    "batch invariant": partial(BucketedAttention, batch_invariant=True),
}
kinds = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS.keys())


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


@kinds
def test_bucketed_attention_without_queries_computes_nothing(make: MakeAttention) -> None:
    query, key, value = inputs_for([0, 0], [3, 5])
    out = cross(make(SequenceBounds.of([0, 0]), SequenceBounds.of([3, 5])))(query, key, value)
    assert out.shape == query.shape


def test_bucketed_attention_equal_lengths_are_not_gathered() -> None:
    bounds = SequenceBounds.of([4] * 3)
    (cells,) = BucketedAttention(bounds, bounds).keys
    assert cells.pad_index is None
    assert cells.bias is None


@kinds
def test_bucketed_attention_numbers_that_are_not_finite_stay_in_their_sequence(make: MakeAttention) -> None:
    lengths = [3, 5, 4, 7]
    query, key, value = inputs_for(lengths, lengths)
    expected = reference(query, key, value, lengths, lengths)
    for x in (query, key, value):
        x[:3] = torch.nan
    out = attend_with(make, lengths, lengths)(query, key, value)
    assert out[:3].isnan().all()
    torch.testing.assert_close(out[3:], expected[3:])


def test_bucketed_attention_computes_only_long_sequences_in_another_precision() -> None:
    lengths = [20, 21, 90, 100]
    query, key, value = inputs_for(lengths, lengths, dtype=torch.float32)
    bounds = SequenceBounds.of(lengths)
    out = self_only(BucketedAttention(bounds, bounds, matmuls=Matmuls(torch.bfloat16, above=64)))(query, key, value)
    expected = reference(query, key, value, lengths, lengths)
    error = (out - expected).abs().amax((1, 2)).split(lengths)
    assert out.dtype == torch.float32
    assert max(part.max() for part in error[:2]) < 1e-5
    assert 1e-4 < min(part.max() for part in error[2:]) <= max(part.max() for part in error[2:]) < 3e-2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("outputs", [None, 1, 3])
def test_bucketed_attention_in_16_bits_is_batch_invariant(dtype: torch.dtype, outputs: int | None) -> None:
    rng = random.Random(0)
    keys = [*range(3, 130, 7), *(rng.randrange(130, 512) for _ in range(12))]
    rng.shuffle(keys)
    queries = keys if outputs is None else [outputs] * len(keys)
    generator = torch.Generator().manual_seed(0)
    rows = (sum(queries), sum(keys), sum(keys))
    query, key, value = (torch.randn(n, HEADS, 64, generator=generator).to(dtype) for n in rows)

    def attend(num_queries: Lengths, num_keys: Lengths, *inputs: Tensor) -> Tensor:
        bounds = SequenceBounds.of(num_keys)
        own = bounds if outputs is None else SequenceBounds.of(num_queries)
        return cross(attention_for(own, bounds, CPU, dtype, 4, 64))(*inputs)

    together = attend(queries, keys, query, key, value)
    parts = zip(query.split(queries), key.split(keys), value.split(keys), queries, keys, strict=True)
    alone = torch.cat([attend([q], [k], *inputs) for *inputs, q, k in parts])
    assert (together != alone).float().mean() < 1e-4  # without `batch_invariant`, 1% of the numbers differ
