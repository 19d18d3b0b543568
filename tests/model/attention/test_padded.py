from __future__ import annotations

import torch

from model.attention.padded import PaddedAttention
from model.packing import SequenceBounds
from tests.model.attention.cases import cross, inputs_for, reference


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
