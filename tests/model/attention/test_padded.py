from __future__ import annotations

import random
from functools import partial

import pytest
import torch
from torch import Tensor

from model.attention.choose import attention_for
from model.attention.padded import BucketedAttention, PaddedAttention
from model.packing import SequenceBounds
from tests.model.attention.cases import (
    CPU,
    HEADS,
    Lengths,
    MakeAttention,
    attend_with,
    cases,
    check_padding_passes_no_gradient,
    check_precision,
    check_values_and_gradients,
    cross,
    inputs_for,
    reference,
)

KINDS: dict[str, MakeAttention] = {
    "padded": PaddedAttention,
    "bucketed": partial(BucketedAttention, device=CPU),
    "bucketed, batch invariant": partial(BucketedAttention, device=CPU, batch_invariant=True),
}
kinds = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS.keys())


@kinds
@cases
def test_padded_attention_equals_its_definition(make: MakeAttention, queries: Lengths, keys: Lengths) -> None:
    check_values_and_gradients(make, queries, keys)


@kinds
def test_padded_attention_padding_passes_no_gradient(make: MakeAttention) -> None:
    check_padding_passes_no_gradient(make)


@kinds
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_padded_attention_keeps_precision(make: MakeAttention, dtype: torch.dtype) -> None:
    check_precision(make, dtype)


@kinds
@pytest.mark.parametrize(("queries", "keys"), [([2, 1, 3], [2, 1, 3]), ([0, 1, 2], [2, 1, 3])])
def test_padded_attention_gradients_agree_with_finite_differences(
    make: MakeAttention, queries: Lengths, keys: Lengths
) -> None:
    assert torch.autograd.gradcheck(attend_with(make, queries, keys), inputs_for(queries, keys))


@kinds
def test_padded_attention_rows_of_no_sequence_get_zeros(make: MakeAttention) -> None:
    query, key, value = (x.detach() for x in inputs_for([5], [7]))
    out = cross(make(SequenceBounds.of([1, 2]), SequenceBounds.of([2, 3])))(query, key, value)
    torch.testing.assert_close(out[:3], reference(query[:3], key[:5], value[:5], [1, 2], [2, 3]))
    assert not out[3:].any()


def test_padded_attention_empty_sequences_and_a_loose_bound_change_nothing() -> None:
    """As in a batch of constant shape: `cu_seqlens` with room for more sequences, `max_seqlen` a bound."""
    keys = SequenceBounds.of([3, 4], capacity=5, max_seqlen=9)
    queries = SequenceBounds.of([1, 2], capacity=5, max_seqlen=3)
    inputs = inputs_for([1, 2], [3, 4])
    out = cross(PaddedAttention(queries, keys))(*inputs)
    torch.testing.assert_close(out, reference(*inputs, [1, 2], [3, 4]))
    assert all(grad.isfinite().all() for grad in torch.autograd.grad(out.sum(), inputs))


def test_padded_attention_spare_outputs_of_the_last_sequence_get_zeros() -> None:
    keys = SequenceBounds.of([3, 4])
    queries = SequenceBounds.of([1, 40], max_seqlen=41)
    attention = PaddedAttention(queries, keys)
    assert attention.queries.real.shape == (2, 4)
    query, key, value = inputs_for([1, 40], [3, 4])
    out = cross(attention)(query, key, value)
    torch.testing.assert_close(out[:5], reference(query[:5], key, value, [1, 4], [3, 4]))
    assert not out[5:].any()
    assert all(grad.isfinite().all() for grad in torch.autograd.grad(out.sum(), (query, key, value)))


def test_bucketed_attention_equal_lengths_are_padded_without_a_copy() -> None:
    bounds = SequenceBounds.of([4] * 3)
    (bucket,) = BucketedAttention(bounds, bounds, CPU).buckets
    assert bucket.keys.pad_index is None
    assert bucket.bias is None


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

    with torch.no_grad():
        together = attend(queries, keys, query, key, value)
        parts = zip(query.split(queries), key.split(keys), value.split(keys), queries, keys, strict=True)
        alone = torch.cat([attend([q], [k], *inputs) for *inputs, q, k in parts])
    assert (together != alone).float().mean() < 1e-4  # without `batch_invariant`, 1% of the numbers differ
