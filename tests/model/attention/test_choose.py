from __future__ import annotations

import pytest
import torch

from model.attention import cpu_inference
from model.attention.choose import attention_for
from model.attention.cpu_training import MatmulAttention
from model.attention.padded import BucketedAttention, PaddedAttention
from model.packing import SequenceBounds
from tests.model.attention.cases import CPU


def test_attention_for_a_cpu_trains_by_matmuls_and_serves_by_buckets() -> None:
    bounds = SequenceBounds.of([3])
    assert isinstance(attention_for(bounds, bounds, CPU, torch.bfloat16, 64), MatmulAttention)
    with torch.no_grad():
        assert isinstance(attention_for(bounds, bounds, CPU, torch.bfloat16, 64), BucketedAttention)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_attention_for_bounds_without_lengths_pads_on_the_device(dtype: torch.dtype) -> None:
    bounds = SequenceBounds(None, torch.tensor([0, 3], dtype=torch.int32), 8)
    assert isinstance(attention_for(bounds, bounds, CPU, dtype, 64), PaddedAttention)


@torch.no_grad()
def test_attention_for_16_bits_uses_matmuls_where_they_are_faster_and_every_token_is_a_query() -> None:
    bounds, outputs = SequenceBounds.of([5, 8]), SequenceBounds.of([1, 1])
    faster = cpu_inference.is_faster(torch.bfloat16, 64)
    for queries, dtype, matmuls in (
        (bounds, torch.bfloat16, faster),
        (outputs, torch.bfloat16, False),
        (bounds, torch.float32, False),
    ):
        attention = attention_for(queries, bounds, CPU, dtype, 64)
        assert isinstance(attention, BucketedAttention)
        assert attention.matmuls is matmuls
