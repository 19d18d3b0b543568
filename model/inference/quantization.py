"""Linear layers in 8-bit integers, for an encoder that only serves on a CPU.

- Scales: weights have one per output channel, activations one per row ("vector-wise quantization", Dettmers et
  al. 2022, section 2.1, https://arxiv.org/abs/2208.07339). Weights are quantized when a checkpoint is loaded,
  activations in each call.
- Zero points: activations reach further above 0 than below it, or the reverse. So each layer has the zero point that
  fits its inputs, found when a checkpoint is loaded, as are the factors below.
- Factors: a few channels of a norm's output reach far beyond the others. Channels above the median are divided by a
  factor, and their weights multiplied by it ("SmoothQuant", Xiao et al. 2023, section 4,
  https://arxiv.org/abs/2211.10438).
- Batch invariance: a row's scale depends on the row alone, and sums of integers have no rounding. So a row's product is
  the same to the last bit in any batch.
- Float32: norms, heads, attention, and the part of the last layer that is computed for output positions only. Longer
  texts attend in bfloat16 if that is faster on the processor.

The product is oneDNN's, of unsigned activations and signed weights. `torch._int_mm` is a plain loop without VNNI, and
`quantized::linear_dynamic` has one scale for the whole batch (experiments/LOG.md).
"""

from __future__ import annotations

from functools import cache, partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from model.bert import BertEncoder, BertLayer
from model.errors import UnsupportedInt8Error
from model.inference.cpu_features import bfloat16_is_fast
from model.inference.prepack import LAYOUT_ROWS, PrepackedLinear, SplitProjection
from model.packing import PackedBatch

_MAX_ACTIVATION = 255
"""Maximum activation, because the product takes unsigned 8-bit activations."""
_CENTER = 128
"""The zero point of activations that reach equally far above and below 0."""
_SAMPLE_TEXTS, _SAMPLE_TOKENS = 8, 64
"""Texts of random words that the network reads to find `InputQuantization`, and the tokens of each."""
_WEIGHT_LIMITS = (127, 64)
"""Largest magnitudes of quantized weights. Without VNNI, processors add pairs of products in 16 bits, which holds
2 * 255 * 64 and saturates above."""
_PROBED_ROWS = (1, 8, 64, 512)
_FEED_FORWARD_ROWS = 512
"""Rows that pass through both feed-forward layers together. The intermediate result stays in the processor's cache,
which takes a fifth to a third less time than layer by layer (Zen 3, widths 768 to 256)."""
_ROUNDING_OFFSET = 1.5 * 2**23
"""Adding it rounds a small float32 number to an integer, which is then the lowest byte of the sum's bits."""
_SMALLEST = 1e-30
"""Keeps the scale of a row or a channel of zeros above 0."""


class InputQuantization(NamedTuple):
    """The zero point and factors that quantize the inputs of a layer."""

    zero_point: int
    """The quantized value that stands for 0: 1 to 254"""
    factors: Tensor | None = None
    """The factor of each channel, applied before quantizing: (in_features,)"""


_SYMMETRIC = InputQuantization(_CENTER)


class QuantizedLinear(nn.Module):
    """`x @ weight.T + bias` by an int8 product."""

    factors: Tensor | None
    weight: Tensor
    scales: Tensor
    weight_zero_points: Tensor
    bias: Tensor

    def __init__(self, weight: Tensor, bias: Tensor, inputs: InputQuantization = _SYMMETRIC) -> None:
        """
        Args:
            weight: (out_features, in_features) float32
            bias: (out_features,) float32
            inputs: zero point and factors of the layer's inputs

        Raises:
            UnsupportedInt8Error: torch has no exact int8 product for this processor.
        """
        super().__init__()
        self.zero_point = inputs.zero_point
        limit = weight_limit(*weight.shape)
        weight = weight.detach() if inputs.factors is None else weight.detach() / inputs.factors
        scales = weight.abs().amax(1, keepdim=True).clamp_min(_SMALLEST) / limit  # (out_features, 1)
        quantized = (weight / scales).round_().to(torch.int8)
        self.register_buffer("factors", inputs.factors, persistent=False)
        self.register_buffer("weight", _pack(quantized), persistent=False)
        self.register_buffer("scales", scales.flatten(), persistent=False)
        self.register_buffer("weight_zero_points", torch.zeros(len(weight), dtype=torch.int64), persistent=False)
        self.register_buffer("bias", bias.detach().clone(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """(rows, in_features) -> (rows, out_features), float32"""
        quantized, row_scales = quantize_rows(x if self.factors is None else x * self.factors, self.zero_point)
        out = _multiply(quantized, self.zero_point, self.weight, self.scales, self.weight_zero_points)
        # Two operations, each rounded once, instead of a fused one that may round differently at the end of a tensor.
        return out.mul_(row_scales).add_(self.bias)


class QuantizedFeedForward(nn.Module):
    """The feed-forward part of a layer in int8, a few hundred rows at a time."""

    def __init__(self, intermediate: QuantizedLinear, activation: nn.Module, output: QuantizedLinear) -> None:
        super().__init__()
        self.intermediate, self.activation, self.output = intermediate, activation, output

    def forward(self, x: Tensor) -> Tensor:
        """(rows, H) -> (rows, H)"""
        chunks = [self.output(self.activation(self.intermediate(rows))) for rows in x.split(_FEED_FORWARD_ROWS)]
        return chunks[0] if len(chunks) == 1 else torch.cat(chunks)


def quantize_rows(x: Tensor, zero_point: int) -> tuple[Tensor, Tensor]:
    """(rows, width) float32 -> uint8 of the same shape, and scales (rows, 1) float32 that let no value saturate.

    A row with a value that is not finite gets a scale that is not finite.
    """
    scales = _row_scales(x, zero_point)
    # Torch narrows integers in a fraction of the time in which it rounds and converts numbers.
    return (x * (1 / scales)).add_(_ROUNDING_OFFSET + zero_point).view(torch.int32).to(torch.uint8), scales


def _row_scales(x: Tensor, zero_point: int | Tensor) -> Tensor:
    """(rows, width) -> (rows, 1) the smallest scale with which no value of a row saturates; for n zero points (n,), one
    column each: (rows, n)."""
    above, below = x.amax(1, keepdim=True), x.amin(1, keepdim=True)
    return torch.maximum(above / (_MAX_ACTIVATION - zero_point), below / -zero_point).clamp_min_(_SMALLEST)


def quantize_encoder(encoder: BertEncoder) -> None:
    """Replace the linear layers of an encoder in float32 on a CPU by int8 ones, in place.

    In the last layer, only the projection to keys and values is replaced. The rest has few rows, and stays in float32.

    Raises:
        UnsupportedInt8Error: torch has no exact int8 product for this processor.
    """
    inputs = find_input_quantization(encoder)

    def quantized(linear: nn.Linear) -> QuantizedLinear:
        return QuantizedLinear(linear.weight, linear.bias, inputs[linear])

    *layers, last = (layer for layer in encoder.layers if isinstance(layer, BertLayer))
    for layer in layers:
        layer.query_key_value = quantized(layer.query_key_value)  # type: ignore[assignment]
        layer.attention_output = quantized(layer.attention_output)  # type: ignore[assignment]
        parts = quantized(layer.intermediate), layer.activation, quantized(layer.output)
        layer.intermediate = QuantizedFeedForward(*parts)  # type: ignore[assignment]
        layer.activation = layer.output = nn.Identity()  # type: ignore[assignment]
    make_key_value = partial(QuantizedLinear, inputs=inputs[last.query_key_value])
    last.query_key_value = SplitProjection(last.query_key_value, PrepackedLinear, make_key_value)  # type: ignore[assignment]
    for name in ("attention_output", "intermediate", "output"):
        linear = getattr(last, name)
        setattr(last, name, PrepackedLinear(linear.weight, linear.bias))
    encoder.batch_invariant = True  # a rounding error of attention may become a step of quantization
    encoder.long_attention_in_bfloat16 = bfloat16_is_fast()


@torch.inference_mode()
def find_input_quantization(encoder: BertEncoder) -> dict[nn.Module, InputQuantization]:
    """The zero point and factors that fit the inputs of each linear layer, from a forward pass over random words.

    Random words are enough, because the range of each channel depends little on the words (Kovaleva et al. 2021,
    https://arxiv.org/abs/2105.06990). A channel of a norm's output whose largest magnitude, its reach, is above the
    median is multiplied by `sqrt(median / reach)`. The zero point is the one with the smallest steps (mean square over
    the rows).
    """
    found: dict[nn.Module, InputQuantization] = {}

    def record(linear: nn.Module, inputs: tuple[Tensor, ...], *, normed: bool = False) -> None:
        x, factors = inputs[0], None
        if normed:
            reach = x.abs().amax(0).clamp_min_(_SMALLEST)  # (in_features,)
            factors = (reach.median() / reach).clamp_max_(1).sqrt_()
            x = x * factors
        steps = _row_scales(x, torch.arange(1, _MAX_ACTIVATION))  # (rows, zero points)
        found[linear] = InputQuantization(1 + int(steps.square().mean(0).argmin()), factors)

    def record_layer(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        assert isinstance(layer, BertLayer)
        record(layer.query_key_value, inputs, normed=True)  # the last layer does not call it as a whole

    layers = [layer for layer in encoder.layers if isinstance(layer, BertLayer)]
    hooks = [layer.register_forward_pre_hook(record_layer) for layer in layers]
    for layer in layers:
        hooks.append(layer.intermediate.register_forward_pre_hook(partial(record, normed=True)))
        hooks += [linear.register_forward_pre_hook(record) for linear in (layer.attention_output, layer.output)]
    config, generator = encoder.config, torch.Generator().manual_seed(0)
    size = (_SAMPLE_TEXTS, min(_SAMPLE_TOKENS, config.max_position_embeddings))
    try:
        encoder(PackedBatch.pack(torch.randint(config.vocab_size, size, generator=generator).tolist()))
    finally:
        for hook in hooks:
            hook.remove()
    return found


@cache
@torch.inference_mode()
def weight_limit(out_features: int, in_features: int) -> int:
    """Largest magnitude of quantized weights with which this processor computes exact products: 127, or 64 if
    intermediate sums saturate.

    Raises:
        UnsupportedInt8Error: torch has no exact int8 product for this processor.
    """
    for limit in _WEIGHT_LIMITS:
        weight = torch.full((out_features, in_features), limit, dtype=torch.int8)
        weight[1::2] = -limit
        expected = weight[:, 0].float() * (in_features * (_MAX_ACTIVATION - _CENTER))  # (out_features,)
        ones, zeros = torch.ones(out_features), torch.zeros(out_features, dtype=torch.int64)
        try:
            packed = _pack(weight)
            full = [torch.full((rows, in_features), _MAX_ACTIVATION, dtype=torch.uint8) for rows in _PROBED_ROWS]
            products = [_multiply(x, _CENTER, packed, ones, zeros) for x in full]
        except (AttributeError, NotImplementedError, RuntimeError, TypeError) as error:
            raise UnsupportedInt8Error(f"torch {torch.__version__} has no int8 product here: {error}") from error
        if all(torch.equal(product, expected.expand_as(product)) for product in products):
            return limit
    raise UnsupportedInt8Error(f"torch {torch.__version__} computes no exact int8 product on this processor")


def _pack(weight: Tensor) -> Tensor:
    """int8 (out_features, in_features) -> oneDNN's layout"""
    packed: Tensor = torch.ops.onednn.qlinear_prepack(weight, [LAYOUT_ROWS, weight.shape[1]])
    return packed


def _multiply(x: Tensor, zero_point: int, weight: Tensor, scales: Tensor, weight_zero_points: Tensor) -> Tensor:
    """uint8 (rows, in_features) -> float32 (rows, out_features): sums times the scales of the weights.

    With AMX, a sum becomes float32 before the zero point's part is subtracted, so it is exact up to 2^24. Only rows
    with more than 500 inputs, nearly all of them extreme, exceed that.
    """
    out: Tensor = torch.ops.onednn.qlinear_pointwise(
        x, 1.0, zero_point, weight, scales, weight_zero_points, None, 1.0, 0, torch.float32, "none", [], ""
    )
    return out
