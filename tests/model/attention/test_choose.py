from __future__ import annotations

import pytest
import torch

from model.attention import choose
from model.attention.bucketed import BucketedAttention
from model.attention.choose import attention_for
from model.attention.cpu_training import MatmulAttention
from model.attention.padded import PaddedAttention
from model.packing import SequenceBounds
from tests.model.attention.cases import CPU


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_attention_for_a_cpu_trains_by_matmuls_and_serves_by_buckets(dtype: torch.dtype) -> None:
    bounds = SequenceBounds.of([3])
    assert isinstance(attention_for(bounds, bounds, CPU, dtype, 4, 64), MatmulAttention)
    with torch.inference_mode():
        assert isinstance(attention_for(bounds, bounds, CPU, dtype, 4, 64), BucketedAttention)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_attention_for_a_cpu_measures_no_speed_outside_of_serving(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    monkeypatch.setattr(choose, "is_faster", None)
    bounds = SequenceBounds.of([100, 8])
    with torch.no_grad():  # training evaluates so
        attention_for(bounds, bounds, CPU, dtype, 4, 64)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_attention_for_bounds_without_lengths_pads_on_the_device(dtype: torch.dtype) -> None:
    bounds = SequenceBounds(None, torch.tensor([0, 3], dtype=torch.int32), 8)
    assert isinstance(attention_for(bounds, bounds, CPU, dtype, 4, 64), PaddedAttention)


@pytest.mark.parametrize("is_faster", [True, False])
@torch.inference_mode()
def test_attention_uses_matmuls_where_they_are_faster_and_every_token_is_a_query(
    monkeypatch: pytest.MonkeyPatch, is_faster: bool
) -> None:
    monkeypatch.setattr(choose, "is_faster", lambda *_: is_faster)
    bounds, outputs = SequenceBounds.of([100, 8]), SequenceBounds.of([1, 1])
    fast = torch.bfloat16 if is_faster else None
    for queries, dtype, long_in_bfloat16, expected in (
        (bounds, torch.bfloat16, False, {fast}),
        (outputs, torch.bfloat16, False, {None}),
        (bounds, torch.float32, False, {None}),
        (bounds, torch.float32, True, {fast, None}),
        (outputs, torch.float32, True, {None}),
    ):
        options = {"batch_invariant": True, "long_in_bfloat16": long_in_bfloat16}
        attention = attention_for(queries, bounds, CPU, dtype, 4, 64, **options)
        assert isinstance(attention, BucketedAttention)
        assert {matmuls and matmuls.dtype for matmuls in attention.matmuls} == expected
