"""Int8 layers compute exact products, close results, and the same for a row in any batch."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from model import BertConfig, BertForPreTraining, PackedBatch
from model.bert import BertLayer
from model.errors import UnsupportedInt8Error
from model.inference import quantization
from model.inference.quantization import (
    InputQuantization,
    QuantizedLinear,
    find_input_quantization,
    quantize_encoder,
    quantize_rows,
    weight_limit,
)

SHAPES = [(1024, 256), (256, 1024), (31, 257), (7, 33)]
ROWS = (1, 8, 17, 64, 200, 512)


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


def network(hidden: int, layers: int = 2) -> BertForPreTraining:
    config = BertConfig(
        vocab_size=64, hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=hidden // 32,
        intermediate_size=4 * hidden,
    )  # fmt: skip
    with torch.inference_mode(False):
        made = BertForPreTraining(config)
        made.initialise(torch.Generator().manual_seed(0))
        return made.eval().requires_grad_(False)


def worst_product(shape: tuple[int, int], rows: int, zero_point: int = 128) -> tuple[Tensor, Tensor, Tensor]:
    """A product of extreme values with random signs as the layer computes it, the same by 64-bit integers, and the sums
    that still contain the zero point."""
    generator = torch.Generator().manual_seed(rows)
    x = torch.randint(0, 2, (rows, shape[1]), generator=generator) * 255
    weight = (torch.randint(0, 2, shape, generator=generator) * 2 - 1) * weight_limit(*shape)
    x[0], weight[0] = 255, weight_limit(*shape)
    scales, zeros = torch.ones(shape[0]), torch.zeros(shape[0], dtype=torch.int64)
    packed = quantization._pack(weight.to(torch.int8))
    product = quantization._multiply(x.to(torch.uint8), zero_point, packed, scales, zeros)
    return product, (x - zero_point) @ weight.T, x @ weight.T


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", SHAPES)
def test_int8_product_of_extreme_values_is_exact(shape: tuple[int, int], threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for rows, zero_point in zip(ROWS, (1, 254, 128, 20, 128, 200), strict=True):
            product, expected, sums = worst_product(shape, rows, zero_point)
            # With AMX, sums become float32 before the zero point's part is subtracted.
            is_exact = sums.abs() <= 2**24
            assert is_exact.float().mean() > 0.99
            assert torch.equal(product[is_exact], expected[is_exact].float())
            torch.testing.assert_close(product.double(), expected.double(), rtol=1e-7, atol=2)
    finally:
        torch.set_num_threads(before)


ISAS = ("SSE41", "AVX2", "AVX512_CORE", "AVX512_CORE_VNNI")
IN_FORKS = """
import os, sys
from tests.model.inference.test_quantization import worst_product
for isa in sys.argv[1:]:
    if (child := os.fork()) == 0:
        os.environ["ONEDNN_MAX_CPU_ISA"] = isa  # read by the first product
        products = (worst_product((64, 256), rows)[:2] for rows in (1, 8, 200))
        os._exit(not all(product.equal(expected.float()) for product, expected in products))
    print(isa, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.fixture(scope="module")
def exit_codes() -> dict[str, str]:
    """0 for each instruction set with exact products. One process loads torch for all of them."""
    command = [sys.executable, "-c", IN_FORKS, *ISAS]
    printed = subprocess.check_output(command, cwd=Path(__file__).parents[3], text=True)
    return dict(line.split() for line in printed.splitlines())


@pytest.mark.parametrize("isa", ISAS)
def test_int8_product_is_exact_with_the_instructions_of_older_processors(isa: str, exit_codes: dict[str, str]) -> None:
    """oneDNN uses the best instructions up to these."""
    if isa.startswith("AVX512") and not torch.backends.cpu.get_cpu_capability().startswith("AVX512"):
        pytest.skip("no AVX-512 here: the same as AVX2")
    assert exit_codes[isa] == "0"


def test_weight_limit_refuses_a_product_that_saturates(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = quantization._multiply
    monkeypatch.setattr(quantization, "_multiply", lambda *arguments: exact(*arguments).clamp(max=2**15))
    with pytest.raises(UnsupportedInt8Error, match="no exact int8 product"):
        weight_limit.__wrapped__(64, 256)


@pytest.mark.parametrize("zero_point", [1, 30, 128, 254])
def test_quantize_rows_is_within_half_a_step(zero_point: int) -> None:
    x = torch.randn(9, 64, generator=torch.Generator().manual_seed(0)) * torch.logspace(-3, 3, 9)[:, None]
    quantized, scales = quantize_rows(x, zero_point)
    assert quantized.dtype == torch.uint8
    assert ((quantized.float() - zero_point) * scales - x).abs().le(scales * 0.501).all()
    zeros, _ = quantize_rows(torch.zeros(2, 4), zero_point)
    assert torch.equal(zeros, torch.full((2, 4), zero_point, dtype=torch.uint8))


def test_zero_points_follow_what_the_layers_read() -> None:
    """GELU reaches 0.17 below 0; a norm's bias lets one channel reach far below."""
    encoder = network(64, layers=3).encoder
    layers = [layer for layer in encoder.layers if isinstance(layer, BertLayer)]
    with torch.inference_mode(False):
        layers[1].output_norm.bias[7] = -20.0
    found = find_input_quantization(encoder)
    first, _, last = layers
    assert found[first.output].zero_point < 100
    assert 100 < found[first.intermediate].zero_point < 156
    assert found[last.query_key_value].zero_point > 170
    assert len(found) == 12
    assert not any(module._forward_pre_hooks for module in encoder.modules())


def test_channels_of_norms_that_reach_far_are_divided() -> None:
    encoder = network(64, layers=2).encoder
    layers = [layer for layer in encoder.layers if isinstance(layer, BertLayer)]
    with torch.inference_mode(False):
        encoder.embeddings.norm.weight[5] = 100.0
    found = find_input_quantization(encoder)
    factors = found[layers[0].query_key_value].factors
    assert factors is not None
    assert 0.08 < factors[5] < 0.12  # the root of 1 / 100
    assert factors.median() > 0.9
    assert found[layers[0].output].factors is None  # GELU would give something else


def test_factors_of_channels_change_nothing_but_the_rounding() -> None:
    generator = torch.Generator().manual_seed(0)
    x, weight, bias = (torch.randn(*size, generator=generator) for size in ((64, 128), (96, 128), (96,)))
    x[:, 3] *= 50
    expected = x @ weight.T + bias
    reach = x.abs().amax(0)
    factors = (reach.median() / reach).clamp_max(1).sqrt()
    plain, divided = (QuantizedLinear(weight, bias, InputQuantization(128, given))(x) for given in (None, factors))
    assert (divided - expected).norm() < 0.5 * (plain - expected).norm()


def test_quantized_linear_is_close_to_the_plain_layer() -> None:
    generator = torch.Generator().manual_seed(0)
    x, weight, bias = (torch.randn(*size, generator=generator) for size in ((200, 256), (1024, 256), (1024,)))
    expected = torch.nn.functional.linear(x, weight, bias)
    error = (QuantizedLinear(weight, bias)(x) - expected).norm() / expected.norm()
    assert error < 0.02


def test_quantized_linear_row_without_a_finite_number_keeps_to_itself() -> None:
    x = torch.ones(4, 64)
    x[1, 3], x[2, 5] = float("nan"), float("inf")
    out = QuantizedLinear(torch.ones(32, 64), torch.zeros(32))(x)
    assert out.isfinite().all(1).tolist() == [True, False, False, True]
    assert torch.equal(out[0], out[3])


@pytest.mark.parametrize("shape", SHAPES)
def test_quantized_linear_does_not_depend_on_batch_or_threads(shape: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(0)
    linear = QuantizedLinear(torch.randn(shape, generator=generator), torch.randn(shape[0], generator=generator))
    rows = torch.randn(513, shape[1], generator=generator)
    before, expected = torch.get_num_threads(), torch.cat([linear(row) for row in rows.split(1)])
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            for count in (1, 3, 8, 40, 256, 513):
                assert torch.equal(linear(rows[-count:]), expected[-count:])
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("hidden", [64, 256])
def test_quantized_encoder_is_batch_invariant(hidden: int) -> None:
    """Up to a rounding error of the last layer in float32: a step of quantization would be a thousand times that."""
    encoder = network(hidden).encoder
    quantize_encoder(encoder)
    generator = torch.Generator().manual_seed(0)
    lengths = [3, 9, 20, 33, 49, 68, 75, 90, 100, 130, 200, 300]
    texts = [torch.randint(4, 64, (length,), generator=generator).tolist() for length in lengths]
    outputs = [(0, 1, 2) if i % 4 == 1 else (0,) for i in range(len(texts))]
    together = encoder(PackedBatch.pack(texts, outputs=outputs)).split([len(own) for own in outputs])
    for text, own, rows in zip(texts, outputs, together, strict=True):
        torch.testing.assert_close(encoder(PackedBatch.pack([text], outputs=[own])), rows, rtol=0, atol=2e-6)


def test_quantized_encoder_computes_nearly_as_in_float32() -> None:
    """All positions, or some."""
    made, exact = network(64, layers=3), network(64, layers=3)
    quantize_encoder(made.encoder)
    for outputs in (None, [(0,), (1, 4)]):
        batch = PackedBatch.pack([[2, 5, 6, 7, 3], [2, 9, 10, 11, 12, 13, 3]], outputs=outputs)
        error = (made(batch) - exact(batch)).norm() / exact(batch).norm()
        assert 0 < error < 0.03
