"""Attention that pads all sequences of a batch to one length, for torch's `scaled_dot_product_attention`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from model.attention.base import Attention
from model.packing import SequenceBounds


class PaddedAttention(Attention):
    """Pads all sequences to `max_seqlen`, by indices computed on the device from `cu_seqlens`.

    For GPUs without the variable-length kernel (older than Ampere, or in float32). Nothing is copied to the
    host, so it can be traced. Padding costs time and memory where lengths differ much.
    """

    def __init__(self, queries: SequenceBounds, keys: SequenceBounds) -> None:
        self.keys = _PaddedGrid.of(keys, keys.max_seqlen)
        # A sequence has no more output positions than tokens. Batches of constant shape have spare ones in the last
        # sequence; those get zeros.
        self.queries = (
            self.keys if queries is keys else _PaddedGrid.of(queries, min(queries.max_seqlen, keys.max_seqlen))
        )
        first = torch.arange(keys.max_seqlen, device=keys.cu_seqlens.device) == 0
        # An empty sequence sees one key, because a softmax over no keys is NaN.
        self.visible = (self.keys.real | first)[:, None, None]  # (S, 1, 1, max_seqlen)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        q, k, v = self.queries.pad(query), self.keys.pad(key), self.keys.pad(value)
        with sdpa_kernel(_CUDA_BACKENDS):
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=self.visible)
        return self.queries.unpad(out, len(query))


_CUDA_BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""All but cuDNN, which compiles a plan for each new shape."""


@dataclass(frozen=True, slots=True)
class _PaddedGrid:
    """Packed rows as a padded (S, width) grid and back, without the host."""

    real: Tensor
    """Whether a cell holds a row: (S, width)"""
    rows: Tensor
    """Row of each cell; padding repeats the last row of its sequence: (S, width)"""

    @classmethod
    def of(cls, bounds: SequenceBounds, width: int) -> _PaddedGrid:
        starts, ends = bounds.cu_seqlens[:-1, None], bounds.cu_seqlens[1:, None]
        rows = starts + torch.arange(width, device=starts.device)
        return cls(rows < ends, torch.minimum(rows, ends - 1).clamp_min(0))

    def pad(self, packed: Tensor) -> Tensor:
        """(rows, N, D) -> (S, N, width, D)"""
        return packed.index_select(0, self.rows.flatten()).unflatten(0, self.rows.shape).transpose(1, 2)

    def unpad(self, padded: Tensor, total: int) -> Tensor:
        """(S, N, width, D) -> (total, N, D), 0 in rows without a cell"""
        cells = padded.transpose(1, 2).flatten(0, 1)
        target = torch.where(self.real, self.rows, total).flatten()  # padding goes to one more row, cut off
        return cells.new_zeros(total + 1, *cells.shape[1:]).index_copy(0, target, cells)[:total]
