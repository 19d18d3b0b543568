"""Prepacked weights compute what the plain layers compute."""

from __future__ import annotations

import copy

import pytest
import torch

from model import BertConfig, BertForPreTraining, PackedBatch
from model.inference.prepack import PrepackedLinear, compute_once, prepack

IDS = [[2, 5, 6, 7, 3], [2, 8, 3], [2, 9, 10, 11, 12, 13, 3]]


def network(hidden_act: str = "gelu") -> BertForPreTraining:
    config = BertConfig(
        vocab_size=32, hidden_size=32, num_hidden_layers=3, num_attention_heads=2, intermediate_size=64,
        hidden_act=hidden_act,
    )  # fmt: skip
    made = BertForPreTraining(config)
    made.initialise(torch.Generator().manual_seed(0))
    return made.eval().requires_grad_(False)


@pytest.mark.parametrize("reads", [None, [(0,), (0, 2), ()]], ids=["all read", "some read"])
@pytest.mark.parametrize("hidden_act", ["gelu", "gelu_new", "relu", "silu"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 5e-2)])
def test_prepacked_encoder_gives_the_same_hidden_states(
    hidden_act: str, dtype: torch.dtype, tolerance: float, reads: list[tuple[int, ...]] | None
) -> None:
    plain = network(hidden_act).encoder.to(dtype)
    packed = copy.deepcopy(plain)
    if not prepack(packed):
        pytest.skip(f"oneDNN does not compute {dtype} here")
    batch = PackedBatch.pack(IDS, outputs=reads)
    with torch.inference_mode():
        torch.testing.assert_close(packed(batch), plain(batch), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("hidden", [256, 512])
def test_bfloat16_encoder_gives_a_text_the_same_numbers_among_any_neighbours(hidden: int) -> None:
    config = BertConfig(
        vocab_size=32, hidden_size=hidden, num_hidden_layers=2, num_attention_heads=hidden // 64,
        intermediate_size=4 * hidden,
    )  # fmt: skip
    made = BertForPreTraining(config)
    made.initialise(torch.Generator().manual_seed(0))
    encoder = made.eval().requires_grad_(False).encoder.to(torch.bfloat16)
    if not prepack(encoder):
        pytest.skip("oneDNN does not compute bfloat16 here")
    generator = torch.Generator().manual_seed(0)
    lengths = [3, 9, 20, 33, 49, 68, 75, 90, 100, 130, 200, 300]
    texts = [torch.randint(4, 32, (length,), generator=generator).tolist() for length in lengths]
    reads = [(0, 1, 2) if i % 4 == 1 else (0,) for i in range(len(texts))]
    with torch.inference_mode():
        among = encoder(PackedBatch.pack(texts, outputs=reads)).split([len(read) for read in reads])
        for text, read, rows in zip(texts, reads, among, strict=True):
            assert torch.equal(encoder(PackedBatch.pack([text], outputs=[read])), rows)
            assert torch.equal(encoder(PackedBatch.pack([text], outputs=[(0,)])), rows[:1])


def test_precision_that_was_not_checked_leaves_the_encoder_alone() -> None:
    encoder = network().encoder.to(torch.float16)
    assert not prepack(encoder)
    assert not any(isinstance(module, PrepackedLinear) for module in encoder.modules())


@pytest.mark.parametrize("rows", [1, 5, 513])
def test_any_number_of_rows_can_be_computed_once(rows: int) -> None:
    encoder = network().encoder
    prepack(encoder)
    compute_once(encoder, rows)
