from __future__ import annotations

import pytest
import torch

from model.attention.padded import PaddedAttention
from model.packing import SequenceBounds
from tests.model.attention.cases import (
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
def test_padded_attention_equals_its_definition(queries: Lengths, keys: Lengths) -> None:
    check_values_and_gradients(PaddedAttention, queries, keys)


def test_padded_attention_padding_passes_no_gradient() -> None:
    check_padding_passes_no_gradient(PaddedAttention)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_padded_attention_keeps_precision(dtype: torch.dtype) -> None:
    check_precision(PaddedAttention, dtype)


@pytest.mark.parametrize(("queries", "keys"), [([2, 1, 3], [2, 1, 3]), ([0, 1, 2], [2, 1, 3])])
def test_padded_attention_gradients_agree_with_finite_differences(queries: Lengths, keys: Lengths) -> None:
    assert torch.autograd.gradcheck(attend_with(PaddedAttention, queries, keys), inputs_for(queries, keys))


def test_padded_attention_rows_of_no_sequence_get_zeros() -> None:
    query, key, value = (x.detach() for x in inputs_for([5], [7]))
    out = cross(PaddedAttention(SequenceBounds.of([1, 2]), SequenceBounds.of([2, 3])))(query, key, value)
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
