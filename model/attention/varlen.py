"""Attention on CUDA by torch's variable-length flash attention kernel."""

from __future__ import annotations

import torch
from torch import Tensor

from model.attention.base import Attention
from model.packing import SequenceBounds


def can_use_varlen(device: torch.device, dtype: torch.dtype, head_dim: int) -> bool:
    """Whether the kernel takes such tensors: 16 bits, on a GPU of compute capability 8.0 (Ampere) or newer."""
    return (
        device.type == "cuda"
        and dtype in (torch.float16, torch.bfloat16)
        and head_dim % 8 == 0
        and head_dim <= 256
        and torch.cuda.get_device_capability(device) >= (8, 0)
    )


class VarlenAttention(Attention):
    """Reads the bounds of sequences from `cu_seqlens` on the device: no padding, no synchronization."""

    def __init__(self, queries: SequenceBounds, keys: SequenceBounds) -> None:
        self.queries = queries
        self.keys = keys

    def _attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        from torch.nn.attention import varlen  # takes two seconds, and only a process with a GPU needs it

        out = varlen.varlen_attn(
            query,
            key,
            value,
            self.queries.cu_seqlens,
            self.keys.cu_seqlens,
            self.queries.max_seqlen,
            self.keys.max_seqlen,
        )
        assert isinstance(out, Tensor)  # a tuple only where `return_aux` is given
        return out
