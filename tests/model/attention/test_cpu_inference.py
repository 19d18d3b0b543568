from __future__ import annotations

import random

import pytest
import torch

from model.attention import cpu_inference
from model.attention.bucketed import BucketedAttention, Matmuls
from model.packing import SequenceBounds
from tests.model.attention.cases import inputs_for, reference, self_only

LENGTHS = [5, 16, 17, 1, 64, 130, 16, 16, 5, 300, 3]


@torch.no_grad()
@pytest.mark.parametrize("lengths", [LENGTHS, [16] * 3, [7]], ids=["ragged", "equal", "one"])
def test_matmuls_equal_the_definition_of_attention(lengths: list[int]) -> None:
    inputs = inputs_for(lengths, lengths)
    bounds = SequenceBounds.of(lengths)
    out = self_only(BucketedAttention(bounds, bounds, matmuls=Matmuls(inputs[0].dtype)))(*inputs)
    torch.testing.assert_close(out, reference(*inputs, lengths, lengths))


@torch.no_grad()
@pytest.mark.parametrize("heads", [1, 3, 12])
def test_matmuls_in_16_bits_are_within_rounding(heads: int) -> None:
    generator = torch.Generator().manual_seed(0)
    bounds = SequenceBounds.of(LENGTHS)
    qkv = torch.randn(sum(LENGTHS), 3, heads, 64, generator=generator).bfloat16()
    out = BucketedAttention(bounds, bounds, matmuls=Matmuls(torch.bfloat16)).self_attention(qkv)
    expected = reference(*qkv.double().unbind(1), LENGTHS, LENGTHS)
    torch.testing.assert_close(out.double(), expected, atol=3e-2, rtol=3e-2)


@torch.no_grad()
def test_matmuls_do_not_depend_on_the_number_of_threads() -> None:
    generator, before = torch.Generator().manual_seed(0), torch.get_num_threads()
    inputs = [torch.randn(2, 4, n, 64, generator=generator).bfloat16() for n in cpu_inference.PADDED_LENGTHS]
    results = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            results.append([cpu_inference.attend(x, x, x, None, torch.bfloat16) for x in inputs])
    finally:
        torch.set_num_threads(before)
    if cpu_inference.is_faster(torch.bfloat16, 4, 64):
        assert all(map(torch.equal, *results))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("heads", [4, 6, 12])
def test_matmuls_meet_few_shapes(heads: int) -> None:
    rng = random.Random(0)
    shapes = set()
    for _ in range(300):
        longest = cpu_inference.padded_length(rng.randint(1, 512))
        cut = cpu_inference.chunks(rng.randint(1, 2048 // longest), heads, longest)
        shapes |= {(size, longest) for size in cut}
    assert len(shapes) <= 40


@pytest.mark.parametrize("texts", [1, 3, 90, 511])
@pytest.mark.parametrize("heads", [1, 6, 12])
@pytest.mark.parametrize("longest", [16, 512, 4096, 10_000])
def test_chunks_add_up_to_all_matrices(texts: int, heads: int, longest: int) -> None:
    cut = cpu_inference.chunks(texts, heads, longest)
    assert sum(cut) == texts * heads
    assert set(cut) <= set(cpu_inference.chunk_sizes(heads, longest))


@pytest.mark.parametrize("heads", [2, 6, 12, 16])
def test_heads_of_a_short_text_are_one_product(heads: int) -> None:
    assert cpu_inference.chunks(1, heads, longest=64) == [heads]
