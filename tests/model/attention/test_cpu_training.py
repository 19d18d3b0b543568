from __future__ import annotations

import random

import pytest
import torch

from model.attention.cpu_training import MAX_BUCKET_TOKENS, MatmulAttention, _CellLayout, round_up_batch
from model.attention.length_buckets import length_buckets
from model.packing import SequenceBounds
from tests.model.attention.cases import (
    HEADS,
    Lengths,
    attend_with,
    cases,
    check_padding_passes_no_gradient,
    check_precision,
    check_values_and_gradients,
    cross,
    inputs_for,
    reference,
)


@cases
def test_matmul_attention_equals_its_definition(queries: Lengths, keys: Lengths) -> None:
    check_values_and_gradients(MatmulAttention, queries, keys)


def test_matmul_attention_padding_passes_no_gradient() -> None:
    check_padding_passes_no_gradient(MatmulAttention)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_matmul_attention_keeps_precision(dtype: torch.dtype) -> None:
    check_precision(MatmulAttention, dtype)


@pytest.mark.parametrize(("queries", "keys"), [([2, 1, 3], [2, 1, 3]), ([0, 1, 2], [2, 1, 3])])
def test_matmul_attention_gradients_agree_with_finite_differences(queries: Lengths, keys: Lengths) -> None:
    assert torch.autograd.gradcheck(attend_with(MatmulAttention, queries, keys), inputs_for(queries, keys))


def test_matmul_attention_rows_of_no_sequence_get_zeros_and_no_gradient() -> None:
    inputs = inputs_for([5], [7])
    query, key, value = inputs
    out = cross(MatmulAttention(SequenceBounds.of([1, 2]), SequenceBounds.of([2, 3])))(*inputs)
    torch.testing.assert_close(out[:3], reference(query[:3], key[:5], value[:5], [1, 2], [2, 3]))
    assert not out[3:].any()
    gradients = torch.autograd.grad(out.sum(), inputs)
    assert [grad.shape for grad in gradients] == [x.shape for x in inputs]
    assert not any(grad[rows:].any() for grad, rows in zip(gradients, (3, 5, 5), strict=True))


def test_matmul_attention_meets_few_shapes() -> None:
    """Over a hundred different batches; each shape means two oneDNN kernels forward and four backward."""
    assert all(n <= round_up_batch(n) <= 1.5 * n for n in range(1, 2000))
    rng = random.Random(0)
    shapes = set()
    for _ in range(100):
        keys = tuple(sorted((rng.randint(1, 128) for _ in range(16)), reverse=True))
        queries = tuple(rng.randint(1, 20) for _ in keys)
        grids = [_CellLayout.make(keys, keys, HEADS, 3), _CellLayout.make(queries, keys, HEADS, 2)]
        shapes |= {(b.batch, b.num_queries, b.bias.shape[2]) for grid in grids for b in grid.buckets}
    assert len(shapes) < 100


def test_matmul_attention_buckets_stay_small_or_hold_one_sequence() -> None:
    rng = random.Random(0)
    for _ in range(50):
        lengths = tuple(rng.randint(1, 512) for _ in range(rng.randint(1, 80)))
        for bucket in length_buckets(lengths, max_tokens=MAX_BUCKET_TOKENS):
            assert max(lengths[i] for i in bucket) * len(bucket) <= MAX_BUCKET_TOKENS or len(bucket) == 1
