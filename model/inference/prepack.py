"""Weights in oneDNN's blocked layout, for an encoder that only serves.

oneDNN multiplies fastest by a weight in its blocked layout, and adds bias and activation before it writes the product
to memory. `torch.compile` uses the same operators; without it they need no compiler.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.attention.cpu_inference import LONG_TOKENS, attend_matrices, chunks, is_faster, padded_length
from model.bert import BertEncoder, BertLayer, FusedProjection
from model.config import EXACT_GELU, TANH_GELU
from model.inference.batch_invariance import (
    ChunkSizes,
    cancelling_operands,
    find_chunk_sizes,
    multiply_in_chunks,
)

# name: the operator's activation and its variant
_FUSED_ACTIVATIONS = dict.fromkeys(EXACT_GELU, ("gelu", "none")) | dict.fromkeys(TANH_GELU, ("gelu", "tanh"))
_FUSED_ACTIVATIONS["relu"] = ("relu", "")
LAYOUT_ROWS = 1024  # oneDNN chooses the layout for a number of rows; this one is fast for any
_TOLERANCE = {torch.bfloat16: 3e-2, torch.float32: 1e-4}


class PrepackedLinear(nn.Module):
    """`activation(x @ weight.T + bias)` in one oneDNN kernel.

    In bfloat16, a row's result is bit-identical for any number of rows and for all given numbers of threads, as far as
    `model.inference.batch_invariance.find_chunk_sizes` finds suitable sizes of chunks.
    """

    weight: Tensor
    bias: Tensor

    def __init__(
        self, weight: Tensor, bias: Tensor, activation: str | None = None, threads: tuple[int, ...] = ()
    ) -> None:
        """Prepack a layer. `threads`: numbers of threads that torch will use; by default the current one."""
        super().__init__()
        self.out_features, in_features = weight.shape
        packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), LAYOUT_ROWS)
        self.register_buffer("weight", packed, persistent=False)
        self.register_buffer("bias", bias.detach(), persistent=False)
        self.activation, self.variant = ("none", "") if activation is None else _FUSED_ACTIVATIONS[activation]
        self.separate_gelu = self.activation == "gelu" and weight.dtype == torch.float32  # torch's GELU is faster
        if self.separate_gelu:
            self.activation = "none"
        self.chunk_sizes: dict[int, ChunkSizes] | None = None
        if weight.dtype == torch.bfloat16:
            threads = threads or (torch.get_num_threads(),)
            self.chunk_sizes = _chunk_sizes(in_features, self.out_features, self.activation, self.variant, threads)

    def forward(self, x: Tensor) -> Tensor:
        """(rows, in_features) -> (rows, out_features)"""
        if self.chunk_sizes is None:
            out = self._multiply(x)
        else:
            out = multiply_in_chunks(self._multiply, x, self.chunk_sizes[torch.get_num_threads()], self.out_features)
        return torch.ops.aten.gelu_(out, approximate=self.variant) if self.separate_gelu else out

    def _multiply(self, x: Tensor) -> Tensor:
        return _linear_pointwise(x, self.weight, self.bias, self.activation, self.variant)


MakeLinear = Callable[[Tensor, Tensor], nn.Module]
"""A linear layer from its weight and bias"""


class SplitProjection(nn.Module):
    """`FusedProjection` of the last layer, which computes keys and values for all tokens, and queries for some."""

    def __init__(self, projection: FusedProjection, make_query: MakeLinear, make_key_value: MakeLinear) -> None:
        super().__init__()
        width = projection.in_features
        weight, bias = projection.weight, projection.bias
        self.query = make_query(weight[:width], bias[:width])
        self.key_value = make_key_value(weight[width:], bias[width:])

    def forward(self, x: Tensor) -> Tensor:
        """(rows, width) -> (rows, 3 * width)"""
        return torch.cat([self.query(x), self.key_value(x)], -1)


def prepack(encoder: BertEncoder, threads: tuple[int, ...] = ()) -> bool:
    """Replace the linear layers of a CPU encoder by prepacked ones, in place.

    Args:
        encoder: in float32 or bfloat16, in evaluation mode.
        threads: numbers of threads that torch will use; by default the current one.

    Returns:
        Whether they were replaced. False if this build of torch or this processor has no such operators, or if their
        results differ from those of plain layers.
    """
    layers = [layer for layer in encoder.layers if isinstance(layer, BertLayer)]
    activation = encoder.config.hidden_act if encoder.config.hidden_act in _FUSED_ACTIVATIONS else None
    if not _agrees(layers[0], activation, threads):
        return False
    for layer in layers:
        if layer is layers[-1]:
            make = partial(PrepackedLinear, threads=threads)
            layer.query_key_value = SplitProjection(layer.query_key_value, make, make)  # type: ignore[assignment]
        else:
            _replace(layer, "query_key_value", None, threads)
        _replace(layer, "attention_output", None, threads)
        _replace(layer, "output", None, threads)
        _replace(layer, "intermediate", activation, threads)
        if activation is not None:
            layer.activation = nn.Identity()  # type: ignore[assignment]
    return True


@torch.inference_mode()
def warm_up_linear(encoder: BertEncoder, rows: int) -> None:
    """Let oneDNN compile the kernels of all products of a layer with `rows` rows.

    A kernel belongs to shapes, not to a layer, so one layer is enough.
    """
    first, last = encoder.layers[0], encoder.layers[-1]
    assert isinstance(first, BertLayer)
    assert isinstance(last, BertLayer)
    hidden = encoder.embeddings.norm.weight.new_zeros(rows, encoder.config.hidden_size)
    first.query_key_value(hidden)
    first.attention_output(hidden)
    first.output(first.activation(first.intermediate(hidden)))
    last.project_outputs(hidden, torch.arange(rows))


@torch.inference_mode()
def warm_up_attention(encoder: BertEncoder, tokens: int, shortest: int = 1) -> None:
    """Let oneDNN compile the attention kernels for up to `tokens` tokens in texts of at least `shortest` tokens."""
    config, weight = encoder.config, encoder.embeddings.norm.weight
    heads = config.num_attention_heads
    dtype = weight.dtype
    if encoder.long_attention_in_bfloat16:
        dtype, shortest = torch.bfloat16, max(shortest, LONG_TOKENS + 1)
    if dtype.itemsize != 2 or not is_faster(dtype, heads, config.head_dim, weight.dtype):
        return
    lengths = {padded_length(n) for n in range(shortest, config.max_position_embeddings + 1)}
    shapes = {
        (size, longest)
        for longest in lengths
        for texts in range(1, tokens // longest + 1)
        for size in chunks(texts, heads, longest)
    }
    for size, longest in sorted(shapes):
        x = torch.zeros(size, longest, config.head_dim, dtype=dtype)
        attend_matrices(x, x, x, x.new_zeros(size, 1, longest), torch.empty_like(x))


def _replace(layer: BertLayer, name: str, activation: str | None, threads: tuple[int, ...]) -> None:
    linear = getattr(layer, name)
    setattr(layer, name, PrepackedLinear(linear.weight, linear.bias, activation, threads))


def _linear_pointwise(x: Tensor, weight: Tensor, bias: Tensor, activation: str, variant: str) -> Tensor:
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, activation, [], variant)
    return out


@cache
@torch.inference_mode()
def _chunk_sizes(
    in_features: int, out_features: int, activation: str, variant: str, threads: tuple[int, ...]
) -> dict[int, ChunkSizes] | None:
    """`find_chunk_sizes` for bfloat16 on this processor, once for all layers of a shape."""
    row, weight = cancelling_operands(in_features, out_features, torch.bfloat16)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, LAYOUT_ROWS)
    bias = weight.new_zeros(out_features)

    def multiply(rows: Tensor) -> Tensor:
        return _linear_pointwise(rows, packed, bias, activation, variant)

    return find_chunk_sizes(multiply, row, out_features, threads)


@torch.inference_mode()
def _agrees(layer: BertLayer, activation: str | None, threads: tuple[int, ...]) -> bool:
    """Whether the widest product of a layer is computed correctly. The operators are internal to torch."""
    weight = layer.intermediate.weight
    if weight.device.type != "cpu" or weight.dtype not in _TOLERANCE or not torch.backends.mkldnn.is_available():
        return False
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(5, weight.shape[1], generator=generator).to(weight.dtype)
    try:
        ours = PrepackedLinear(weight, layer.intermediate.bias, activation, threads)(x)
    except (AttributeError, NotImplementedError, RuntimeError, TypeError):
        return False
    expected = F.linear(x, weight, layer.intermediate.bias)
    if activation is not None:
        expected = layer.activation(expected)
    tolerance = _TOLERANCE[weight.dtype]
    return torch.allclose(ours, expected, rtol=tolerance, atol=tolerance)
