"""Prepacked weights compute what the plain layers compute."""

from __future__ import annotations

import copy

import pytest
import torch

from model import BertConfig, BertForPreTraining, PackedBatch
from model.inference import PrepackedLinear, compute_once, prepack

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
@pytest.mark.parametrize("hidden_act", ["gelu", "gelu_new", "relu"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 5e-2)])
def test_prepacked_encoder_gives_the_same_hidden_states(
    hidden_act: str, dtype: torch.dtype, tolerance: float, reads: list[tuple[int, ...]] | None
) -> None:
    plain = network(hidden_act).encoder.to(dtype)
    packed = copy.deepcopy(plain)
    if not prepack(packed):
        pytest.skip(f"oneDNN does not compute {dtype} here")
    batch = PackedBatch.pack(IDS, reads=reads)
    with torch.inference_mode():
        torch.testing.assert_close(packed(batch), plain(batch), rtol=tolerance, atol=tolerance)


def test_activation_that_no_kernel_has_leaves_the_encoder_alone() -> None:
    encoder = network("silu").encoder
    assert not prepack(encoder)
    assert not any(isinstance(module, PrepackedLinear) for module in encoder.modules())


def test_precision_that_was_not_checked_leaves_the_encoder_alone() -> None:
    encoder = network().encoder.to(torch.float16)
    assert not prepack(encoder)
    assert not any(isinstance(module, PrepackedLinear) for module in encoder.modules())


@pytest.mark.parametrize("rows", [1, 5, 513])
def test_any_number_of_rows_can_be_computed_once(rows: int) -> None:
    encoder = network().encoder
    prepack(encoder)
    compute_once(encoder, rows)
