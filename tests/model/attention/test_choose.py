from __future__ import annotations

import pytest
import torch

from model.attention import cpu_inference
from model.attention.bucketed import BucketedAttention
from model.attention.choose import attention_for
from model.attention.cpu_training import MatmulAttention
from model.attention.padded import PaddedAttention
from model.packing import SequenceBounds
from tests.model.attention.cases import CPU


def test_attention_for_a_cpu_trains_by_matmuls_and_serves_by_buckets() -> None:
    bounds = SequenceBounds.of([3])
    assert isinstance(attention_for(bounds, bounds, CPU, torch.bfloat16, 4, 64), MatmulAttention)
    with torch.no_grad():
        assert isinstance(attention_for(bounds, bounds, CPU, torch.bfloat16, 4, 64), BucketedAttention)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_attention_for_bounds_without_lengths_pads_on_the_device(dtype: torch.dtype) -> None:
    bounds = SequenceBounds(None, torch.tensor([0, 3], dtype=torch.int32), 8)
    assert isinstance(attention_for(bounds, bounds, CPU, dtype, 4, 64), PaddedAttention)


@torch.no_grad()
def test_attention_uses_matmuls_where_they_are_faster_and_every_token_is_a_query() -> None:
    bounds, outputs = SequenceBounds.of([100, 8]), SequenceBounds.of([1, 1])
    fast, fast_if_long = (
        torch.bfloat16 if cpu_inference.is_faster(torch.bfloat16, 4, 64, dtype) else None
        for dtype in (torch.bfloat16, torch.float32)
    )
    for queries, dtype, long_in_bfloat16, expected in (
        (bounds, torch.bfloat16, False, {fast}),
        (outputs, torch.bfloat16, False, {None}),
        (bounds, torch.float32, False, {None}),
        (bounds, torch.float32, True, {fast_if_long, None}),
        (outputs, torch.float32, True, {None}),
    ):
        options = {"batch_invariant": True, "long_in_bfloat16": long_in_bfloat16}
        attention = attention_for(queries, bounds, CPU, dtype, 4, 64, **options)
        assert isinstance(attention, BucketedAttention)
        assert {matmuls and matmuls.dtype for matmuls in attention.matmuls} == expected
