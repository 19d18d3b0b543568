"""Attention by batched products: what serves in 16 bits on a CPU whose fused kernel is slow."""

from __future__ import annotations

import random

import pytest
import torch

from model import product_attention
from model.attention import PaddedAttention, attention_for
from model.packing import Segments
from tests.model.test_attention import CPU, reference, tensors

LENGTHS = [5, 16, 17, 1, 64, 130, 16, 16, 5, 300, 3]


@torch.no_grad()
@pytest.mark.parametrize("lengths", [LENGTHS, [16] * 3, [7]], ids=["ragged", "equal", "one"])
def test_products_are_the_attention_of_each_sequence_alone(lengths: list[int]) -> None:
    inputs = tensors(lengths, lengths)
    segments = Segments.of(lengths)
    attend = PaddedAttention(segments, segments, CPU, invariant=True, products=True)
    torch.testing.assert_close(attend.within(torch.stack(inputs, 1)), reference(*inputs, lengths, lengths))


@torch.no_grad()
def test_products_serve_where_they_pay_and_every_token_asks() -> None:
    segments, reads = Segments.of([5, 8]), Segments.of([1, 1])
    pays = product_attention.pays(torch.bfloat16, 64)
    for queries, dtype, products in (
        (segments, torch.bfloat16, pays),
        (reads, torch.bfloat16, False),
        (segments, torch.float32, False),
    ):
        attention = attention_for(queries, segments, CPU, dtype, 64)
        assert isinstance(attention, PaddedAttention)
        assert attention.products is products


def test_few_shapes_are_met() -> None:
    rng = random.Random(0)
    shapes = set()
    for _ in range(300):
        longest = product_attention.padded_length(rng.randint(1, 512))
        cut = product_attention.portions(4 * rng.randint(1, 2048 // longest), longest)
        shapes |= {(size, longest) for size in cut}
    assert len(shapes) <= 30


@pytest.mark.parametrize("matrices", [1, 3, 90, 511])
@pytest.mark.parametrize("longest", [16, 512, 4096, 10_000])
def test_portions_are_all_there_is(matrices: int, longest: int) -> None:
    cut = product_attention.portions(matrices, longest)
    assert sum(cut) == matrices
    assert set(cut) <= set(product_attention.sizes(longest))
