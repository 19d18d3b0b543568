"""Prepacked weights compute what the plain layers compute."""

from __future__ import annotations

import copy

import pytest
import torch

from model import BertConfig, BertForPreTraining, PackedBatch
from model.inference.prepack import PrepackedLinear, prepack, warm_up_linear

IDS = [[2, 5, 6, 7, 3], [2, 8, 3], [2, 9, 10, 11, 12, 13, 3]]


def network(hidden_act: str = "gelu") -> BertForPreTraining:
    config = BertConfig(
        vocab_size=32, hidden_size=32, num_hidden_layers=3, num_attention_heads=2, intermediate_size=64,
        hidden_act=hidden_act,
    )  # fmt: skip
    made = BertForPreTraining(config)
    made.initialise(torch.Generator().manual_seed(0))
    return made.eval().requires_grad_(False)


@pytest.mark.parametrize("outputs", [None, [(0,), (0, 2), ()]], ids=["all outputs", "some outputs"])
@pytest.mark.parametrize("hidden_act", ["gelu", "gelu_new", "relu", "silu"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 5e-2)])
def test_prepack_keeps_the_hidden_states(
    hidden_act: str, dtype: torch.dtype, tolerance: float, outputs: list[tuple[int, ...]] | None
) -> None:
    plain = network(hidden_act).encoder.to(dtype)
    packed = copy.deepcopy(plain)
    if not prepack(packed):
        pytest.skip(f"oneDNN does not compute {dtype} here")
    batch = PackedBatch.pack(IDS, outputs=outputs)
    with torch.inference_mode():
        torch.testing.assert_close(packed(batch), plain(batch), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("hidden", [256, 512])
def test_prepack_in_bfloat16_is_batch_invariant(hidden: int) -> None:
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
    outputs = [(0, 1, 2) if i % 4 == 1 else (0,) for i in range(len(texts))]
    with torch.inference_mode():
        together = encoder(PackedBatch.pack(texts, outputs=outputs)).split([len(own) for own in outputs])
        for text, own, rows in zip(texts, outputs, together, strict=True):
            assert torch.equal(encoder(PackedBatch.pack([text], outputs=[own])), rows)
            assert torch.equal(encoder(PackedBatch.pack([text], outputs=[(0,)])), rows[:1])


def test_prepack_unsupported_precision_changes_nothing() -> None:
    encoder = network().encoder.to(torch.float16)
    assert not prepack(encoder)
    assert not any(isinstance(module, PrepackedLinear) for module in encoder.modules())


@pytest.mark.parametrize("rows", [1, 5, 513])
def test_warm_up_linear_takes_any_number_of_rows(rows: int) -> None:
    encoder = network().encoder
    prepack(encoder)
    warm_up_linear(encoder, rows)
