"""An encoder that will only be asked, never trained: weights laid out for the processor beforehand.

oneDNN multiplies fastest by a weight in a blocked layout of its own, and adds bias and activation while the
product is still in registers. `torch.compile` uses the same operators; here they cost no compiler.
"""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.attention import cpu_inference
from model.bert import BertEncoder, BertLayer, FusedProjection
from model.inference.batch_invariance import Sizes, cancelling, multiply_in_portions, portion_sizes

_EPILOGUES = {
    "gelu": ("gelu", "none"),
    "gelu_new": ("gelu", "tanh"),
    "gelu_pytorch_tanh": ("gelu", "tanh"),
    "gelu_fast": ("gelu", "tanh"),
    "relu": ("relu", ""),
}
_ROWS = 1024  # the layout is chosen for so many; it serves any number
_TOLERANCE = {torch.bfloat16: 3e-2, torch.float32: 1e-4}


class PrepackedLinear(nn.Module):
    """`activation(x @ weight.T + bias)` by one oneDNN kernel; but GELU in float32 takes torch less time.

    In 16 bits, a row is the same to the last bit whatever the number of rows, and with each of the numbers of
    threads (`model.inference.batch_invariance`).
    """

    weight: Tensor
    bias: Tensor

    def __init__(
        self, weight: Tensor, bias: Tensor, activation: str | None = None, threads: tuple[int, ...] = ()
    ) -> None:
        super().__init__()
        self.out_features, inner = weight.shape
        packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), _ROWS)
        self.register_buffer("weight", packed, persistent=False)
        self.register_buffer("bias", bias.detach(), persistent=False)
        self.epilogue, self.algorithm = ("none", "") if activation is None else _EPILOGUES[activation]
        self.gelu_apart = self.epilogue == "gelu" and weight.dtype == torch.float32
        if self.gelu_apart:
            self.epilogue = "none"
        self.sizes: dict[int, Sizes] | None = None
        if weight.dtype == torch.bfloat16:
            threads = threads or (torch.get_num_threads(),)
            self.sizes = _portion_sizes(inner, self.out_features, self.epilogue, self.algorithm, threads)

    def forward(self, x: Tensor) -> Tensor:
        """(rows, in_features) -> (rows, out_features)"""
        if self.sizes is None:
            out = self._multiply(x)
        else:
            sizes = self.sizes[torch.get_num_threads()]
            out = multiply_in_portions(self._multiply, x, sizes, self.out_features)
        return torch.ops.aten.gelu_(out, approximate=self.algorithm) if self.gelu_apart else out

    def _multiply(self, x: Tensor) -> Tensor:
        return _linear_pointwise(x, self.weight, self.bias, self.epilogue, self.algorithm)


class PrepackedProjection(nn.Module):
    """`FusedProjection` of a layer of which only some rows are read: its parts are never computed together."""

    def __init__(self, projection: FusedProjection, threads: tuple[int, ...]) -> None:
        super().__init__()
        width = projection.in_features
        weight, bias = projection.weight, projection.bias
        self.query = PrepackedLinear(weight[:width], bias[:width], threads=threads)
        self.key_value = PrepackedLinear(weight[width:], bias[width:], threads=threads)

    def forward(self, x: Tensor) -> Tensor:
        """(rows, width) -> (rows, 3 * width)"""
        return torch.cat([self.query(x), self.key_value(x)], -1)


def prepack(encoder: BertEncoder, threads: tuple[int, ...] = ()) -> bool:
    """Lay the weights of a CPU encoder out for oneDNN, in place. False, and nothing is changed, where this
    build of torch or this processor does not compute with them what plain layers compute.

    Args:
        threads: the numbers of threads that torch will have; the present one if none is given.
    """
    layers = [layer for layer in encoder.layers if isinstance(layer, BertLayer)]
    activation = encoder.config.hidden_act if encoder.config.hidden_act in _EPILOGUES else None
    if not _agrees(layers[0], activation, threads):
        return False
    for layer in layers:
        if layer is layers[-1]:
            layer.query_key_value = PrepackedProjection(layer.query_key_value, threads)  # type: ignore[assignment]
        else:
            _replace(layer, "query_key_value", None, threads)
        _replace(layer, "attention_output", None, threads)
        _replace(layer, "output", None, threads)
        _replace(layer, "intermediate", activation, threads)
        if activation is not None:
            layer.activation = nn.Identity()  # type: ignore[assignment]
    return True


@torch.inference_mode()
def compute_once(encoder: BertEncoder, rows: int) -> None:
    """Let so many rows pass all that a layer multiplies by a weight: oneDNN then has its kernels, which belong
    to a shape and not to a layer."""
    first, last = encoder.layers[0], encoder.layers[-1]
    assert isinstance(first, BertLayer)
    assert isinstance(last, BertLayer)
    hidden = encoder.embeddings.norm.weight.new_zeros(rows, encoder.config.hidden_size)
    first.query_key_value(hidden)
    first.attention_output(hidden)
    first.output(first.activation(first.intermediate(hidden)))
    last.project_outputs(hidden, torch.arange(rows))


@torch.inference_mode()
def attend_once(encoder: BertEncoder, tokens: int, shortest: int = 1) -> None:
    """Let batches of up to so many tokens, in texts of at least `shortest`, pass attention's products: as
    `compute_once`."""
    config, weight = encoder.config, encoder.embeddings.norm.weight
    if weight.dtype.itemsize != 2 or not cpu_inference.is_faster(weight.dtype, config.head_dim):
        return
    heads = config.num_attention_heads
    lengths = {cpu_inference.padded_length(n) for n in range(shortest, config.max_position_embeddings + 1)}
    shapes = {
        (size, longest)
        for longest in lengths
        for texts in range(1, tokens // longest + 1)
        for size in cpu_inference.chunks(texts * heads, longest)
    }
    for size, longest in sorted(shapes):
        x = weight.new_zeros(size, 1, longest, config.head_dim)
        cpu_inference.attend(x, x, x, bias=None)


def _replace(layer: BertLayer, name: str, activation: str | None, threads: tuple[int, ...]) -> None:
    linear = getattr(layer, name)
    setattr(layer, name, PrepackedLinear(linear.weight, linear.bias, activation, threads))


def _linear_pointwise(x: Tensor, weight: Tensor, bias: Tensor, epilogue: str, algorithm: str) -> Tensor:
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, epilogue, [], algorithm)
    return out


@cache
@torch.inference_mode()
def _portion_sizes(
    inner: int, outer: int, epilogue: str, algorithm: str, threads: tuple[int, ...]
) -> dict[int, Sizes] | None:
    """What this processor wants in bfloat16: the same for all layers of a shape."""
    row, weight = cancelling(inner, outer, torch.bfloat16)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS)
    bias = weight.new_zeros(outer)
    return portion_sizes(
        lambda rows: _linear_pointwise(rows, packed, bias, epilogue, algorithm), row, outer, threads
    )


@torch.inference_mode()
def _agrees(layer: BertLayer, activation: str | None, threads: tuple[int, ...]) -> bool:
    """Whether one layer's widest product comes out the same. The operators are not torch's public interface."""
    weight = layer.intermediate.weight
    if (
        weight.device.type != "cpu"
        or weight.dtype not in _TOLERANCE
        or not torch.backends.mkldnn.is_available()
    ):
        return False
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(5, weight.shape[1], generator=generator).to(weight.dtype)
    try:
        ours = PrepackedLinear(weight, layer.intermediate.bias, activation, threads)(x)
    except (AttributeError, NotImplementedError, RuntimeError, TypeError):
        return False
    theirs = F.linear(x, weight, layer.intermediate.bias)
    if activation is not None:
        theirs = layer.activation(theirs)
    tolerance = _TOLERANCE[weight.dtype]
    return torch.allclose(ours, theirs, rtol=tolerance, atol=tolerance)
