"""Linear layers in 8-bit integers, for an encoder that only serves on a CPU.

A weight has a scale per output channel and an activation one per row, both symmetric ("vector-wise quantization",
Dettmers et al. 2022, section 2.1, https://arxiv.org/abs/2208.07339). Weights are quantized when a checkpoint is
loaded, activations in each call. A row's scale follows from the row alone, and sums of integers have no rounding, so a
row's result is the same to the last bit in any batch. Norms, softmax, attention, heads and what the last layer computes
for output positions alone stay in float32.

The product is oneDNN's, of unsigned activations and signed weights. `torch._int_mm` is a plain loop without VNNI, and
`quantized::linear_dynamic` has one scale for the whole batch (experiments/LOG.md).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor, nn

from model.bert import BertEncoder, BertLayer
from model.errors import BertError
from model.inference.prepack import LAYOUT_ROWS, PrepackedLinear, SplitProjection

_MAX_ACTIVATION = 127
_ZERO_POINT = 128
"""Of activations: the product takes unsigned ones."""
_WEIGHT_LIMITS = (127, 64)
"""Largest magnitudes of quantized weights. Without VNNI, processors add pairs of products in 16 bits, which holds
2 * 255 * 64 and saturates above."""
_PROBED_ROWS = (1, 8, 64, 512)
_LINEAR_LAYERS = ("query_key_value", "attention_output", "intermediate", "output")
_SMALLEST = 1e-30
"""Keeps the scale of a row or a channel of zeros above 0."""


class UnsupportedInt8Error(BertError):
    """Torch has no exact int8 product on this processor."""


class QuantizedLinear(nn.Module):
    """`x @ weight.T + bias` by an int8 product."""

    weight: Tensor
    scales: Tensor
    zero_points: Tensor
    bias: Tensor

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        """
        Args:
            weight: (out_features, in_features) float32
            bias: (out_features,) float32

        Raises:
            UnsupportedInt8Error: see there.
        """
        super().__init__()
        limit = weight_limit(*weight.shape)
        scales = weight.detach().abs().amax(1, keepdim=True).clamp_min(_SMALLEST) / limit  # (out_features, 1)
        quantized = (weight.detach() / scales).round_().to(torch.int8)
        self.register_buffer("weight", _pack(quantized), persistent=False)
        self.register_buffer("scales", scales.flatten(), persistent=False)
        self.register_buffer("zero_points", torch.zeros(len(weight), dtype=torch.int64), persistent=False)
        self.register_buffer("bias", bias.detach().clone(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """(rows, in_features) -> (rows, out_features), float32"""
        quantized, row_scales = quantize_rows(x)
        out = _multiply(quantized, self.weight, self.scales, self.zero_points)
        # Two operations, each rounded once, instead of a fused one that may round differently at the end of a tensor.
        return out.mul_(row_scales).add_(self.bias)


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """(rows, width) float32 -> uint8 of the same shape with the zero point 128, and scales (rows, 1) float32.

    A row with a value that is not finite gets a scale that is not finite.
    """
    largest = torch.maximum(x.amax(1, keepdim=True), x.amin(1, keepdim=True).neg_()).clamp_min_(_SMALLEST)
    signed = (x * (_MAX_ACTIVATION / largest)).round_().to(torch.int8)
    return signed.view(torch.uint8).bitwise_xor_(_ZERO_POINT), largest / _MAX_ACTIVATION


def quantize_encoder(encoder: BertEncoder) -> None:
    """Replace the linear layers of an encoder in float32 on a CPU by int8 ones, in place.

    Of the last layer, only keys and values are computed for all tokens. The rest stays in float32: its rows are few.

    Raises:
        UnsupportedInt8Error: see there.
    """
    *layers, last = encoder.layers
    for layer in layers:
        for name in _LINEAR_LAYERS:
            linear = getattr(layer, name)
            setattr(layer, name, QuantizedLinear(linear.weight, linear.bias))
    assert isinstance(last, BertLayer)
    last.query_key_value = SplitProjection(last.query_key_value, PrepackedLinear, QuantizedLinear)  # type: ignore[assignment]
    for name in _LINEAR_LAYERS[1:]:
        linear = getattr(last, name)
        setattr(last, name, PrepackedLinear(linear.weight, linear.bias))
    encoder.batch_invariant = True  # a rounding error of attention may become a step of quantization


@cache
@torch.inference_mode()
def weight_limit(out_features: int, in_features: int) -> int:
    """Largest magnitude of quantized weights with which this processor computes exact products: 127, or 64 if
    intermediate sums saturate.

    Raises:
        UnsupportedInt8Error: see there.
    """
    for limit in _WEIGHT_LIMITS:
        weight = torch.full((out_features, in_features), limit, dtype=torch.int8)
        weight[1::2] = -limit
        expected = weight[:, 0].float() * (in_features * _MAX_ACTIVATION)  # (out_features,)
        ones, zeros = torch.ones(out_features), torch.zeros(out_features, dtype=torch.int64)
        try:
            packed = _pack(weight)
            products = [
                _multiply(torch.full((rows, in_features), 255, dtype=torch.uint8), packed, ones, zeros)
                for rows in _PROBED_ROWS
            ]
        except (AttributeError, NotImplementedError, RuntimeError, TypeError) as error:
            raise UnsupportedInt8Error(f"torch {torch.__version__} has no int8 product here: {error}") from error
        if all(torch.equal(product, expected.expand_as(product)) for product in products):
            return limit
    raise UnsupportedInt8Error(f"torch {torch.__version__} computes no exact int8 product on this processor")


@torch.inference_mode()
def speedup(in_features: int, out_features: int, dtype: torch.dtype) -> float:
    """Time of a prepacked linear layer in `dtype` divided by that in int8, for 512 rows: the best of interleaved calls.

    CPU time is compared, so that other processes do not influence the result.
    """
    generator = torch.Generator().manual_seed(0)
    weight, x = (torch.randn(rows, in_features, generator=generator) for rows in (out_features, 512))
    bias = weight.new_zeros(out_features)
    layers: tuple[tuple[Callable[[Tensor], Tensor], Tensor], ...] = (
        (PrepackedLinear(weight.to(dtype), bias.to(dtype)), x.to(dtype)),
        (QuantizedLinear(weight, bias), x),
    )
    best = [math.inf, math.inf]
    for _ in range(8):
        for i, (layer, rows) in enumerate(layers):
            started = time.process_time()
            layer(rows)
            best[i] = min(best[i], time.process_time() - started)
    return best[0] / best[1]


def _pack(weight: Tensor) -> Tensor:
    """int8 (out_features, in_features) -> oneDNN's layout"""
    packed: Tensor = torch.ops.onednn.qlinear_prepack(weight, [LAYOUT_ROWS, weight.shape[1]])
    return packed


def _multiply(x: Tensor, weight: Tensor, scales: Tensor, zero_points: Tensor) -> Tensor:
    """uint8 (rows, in_features) -> float32 (rows, out_features): exact sums times the scales of the weights."""
    out: Tensor = torch.ops.onednn.qlinear_pointwise(
        x, 1.0, _ZERO_POINT, weight, scales, zero_points, None, 1.0, 0, torch.float32, "none", [], ""
    )
    return out
