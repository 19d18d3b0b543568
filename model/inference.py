"""An encoder that will only be asked, never trained: weights laid out for the processor beforehand.

oneDNN multiplies fastest by a weight in a blocked layout of its own, and adds bias and activation while the
product is still in registers. `torch.compile` uses the same operators; here they cost no compiler.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.bert import BertEncoder, BertLayer

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
    """`activation(x @ weight.T + bias)` by one oneDNN kernel; but GELU in float32 takes torch less time."""

    def __init__(self, linear: nn.Linear, activation: str | None = None) -> None:
        super().__init__()
        weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach().contiguous(), _ROWS)
        self.register_buffer("weight", weight, persistent=False)
        self.register_buffer("bias", linear.bias.detach(), persistent=False)
        self.epilogue, self.algorithm = ("none", "") if activation is None else _EPILOGUES[activation]
        self.gelu_apart = self.epilogue == "gelu" and linear.weight.dtype == torch.float32
        if self.gelu_apart:
            self.epilogue = "none"

    def forward(self, x: Tensor) -> Tensor:
        """(rows, in_features) -> (rows, out_features)"""
        out: Tensor = torch.ops.mkldnn._linear_pointwise(
            x, self.weight, self.bias, self.epilogue, [], self.algorithm
        )
        return torch.ops.aten.gelu_(out, approximate=self.algorithm) if self.gelu_apart else out


def prepack(encoder: BertEncoder) -> bool:
    """Lay the weights of a CPU encoder out for oneDNN, in place. False, and nothing is changed, where this
    build of torch or this processor does not compute with them what plain layers compute.

    The last layer's fused projection stays: it is cut up by row (`BertLayer.forward` with `read`).
    """
    layers = [layer for layer in encoder.layers if isinstance(layer, BertLayer)]
    act = encoder.config.hidden_act
    if act not in _EPILOGUES or not _agrees(layers[0], act):
        return False
    for layer in layers:
        if layer is not layers[-1]:
            _replace(layer, "query_key_value")
        _replace(layer, "attention_output")
        _replace(layer, "output")
        _replace(layer, "intermediate", act)
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
    last.project_reads(hidden, torch.arange(rows))


def _replace(layer: BertLayer, name: str, activation: str | None = None) -> None:
    setattr(layer, name, PrepackedLinear(getattr(layer, name), activation))


@torch.inference_mode()
def _agrees(layer: BertLayer, activation: str) -> bool:
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
        ours = PrepackedLinear(layer.intermediate, activation)(x)
    except (AttributeError, NotImplementedError, RuntimeError, TypeError):
        return False
    theirs = layer.activation(F.linear(x, weight, layer.intermediate.bias))
    tolerance = _TOLERANCE[weight.dtype]
    return torch.allclose(ours, theirs, rtol=tolerance, atol=tolerance)
