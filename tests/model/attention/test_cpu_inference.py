"""Attention by batched products: what serves in 16 bits on a CPU whose fused kernel is slow."""

from __future__ import annotations

import random

import pytest
import torch

from model.attention import cpu_inference as product_attention
from model.attention.dispatch import PaddedAttention, attention_for
from model.packing import Segments
from tests.model.attention.test_dispatch import CPU, reference, tensors

LENGTHS = [5, 16, 17, 1, 64, 130, 16, 16, 5, 300, 3]


@torch.no_grad()
@pytest.mark.parametrize("lengths", [LENGTHS, [16] * 3, [7]], ids=["ragged", "equal", "one"])
def test_products_are_the_attention_of_each_sequence_alone(lengths: list[int]) -> None:
    inputs = tensors(lengths, lengths)
    segments = Segments.of(lengths)
    attend = PaddedAttention(segments, segments, CPU, products=True)
    torch.testing.assert_close(attend.within(torch.stack(inputs, 1)), reference(*inputs, lengths, lengths))


@torch.no_grad()
@pytest.mark.parametrize("heads", [1, 3, 12])
def test_products_in_16_bits_round_as_they_should(heads: int) -> None:
    generator = torch.Generator().manual_seed(0)
    segments = Segments.of(LENGTHS)
    qkv = torch.randn(sum(LENGTHS), 3, heads, 64, generator=generator).bfloat16()
    attend = PaddedAttention(segments, segments, CPU, products=True)
    expected = reference(*qkv.double().unbind(1), LENGTHS, LENGTHS)
    torch.testing.assert_close(attend.within(qkv).double(), expected, atol=3e-2, rtol=3e-2)


@torch.no_grad()
def test_products_are_the_same_with_any_number_of_threads() -> None:
    generator, before = torch.Generator().manual_seed(0), torch.get_num_threads()
    inputs = [torch.randn(2, 4, n, 64, generator=generator).bfloat16() for n in product_attention.LENGTHS]
    answers = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            answers.append([product_attention.attend(x, x, x, None) for x in inputs])
    finally:
        torch.set_num_threads(before)
    if product_attention.pays(torch.bfloat16, 64):
        assert all(map(torch.equal, *answers))
    for one, other in zip(*answers, strict=True):
        torch.testing.assert_close(one, other)


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
