"""Attention that pads sequences to a common length, for torch's `scaled_dot_product_attention`."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from model.attention.cpu_inference import attend, padded_length
from model.attention.gather import gather_rows
from model.attention.length_buckets import length_buckets
from model.packing import SequenceBounds


class PaddedAttention:
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

    def self_attention(self, qkv: Tensor) -> Tensor:
        """See `Attention.self_attention`."""
        return self._attend(*qkv.unbind(1))

    def cross_attention(self, query: Tensor, key_value: Tensor) -> Tensor:
        """See `Attention.cross_attention`."""
        return self._attend(query, *key_value.unbind(1))

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


@dataclass(frozen=True, slots=True)
class Matmuls:
    """Which sequences `BucketedAttention` computes by `model.attention.cpu_inference`."""

    dtype: torch.dtype
    """Precision, also where the input has another"""
    above: int = 0
    """Sequences longer than this; torch's fused kernel, in the input's precision, takes less time for a single short
    one. At most `_SUMS_DEPEND_ON_LENGTH_ABOVE`."""


class BucketedAttention:
    """Pads sequences in buckets of neighbours of similar length, which it forms on the host from `lengths`.

    For inference on a CPU. Sequences of equal length are padded without a copy, so a batch sorted by length
    needs next to no padding.
    """

    def __init__(
        self,
        queries: SequenceBounds,
        keys: SequenceBounds,
        device: torch.device,
        *,
        batch_invariant: bool = False,
        matmuls: Matmuls | None = None,
    ) -> None:
        """
        Args:
            batch_invariant: let the padded length follow from a sequence's own length, as far as sums in the
                kernel depend on it. A sequence then gets the same result in any batch. In 16 bits another order
                of summation changes results by a rounding error that grows from layer to layer; in float32 the
                change is in the seventh digit.
            matmuls: what to compute by `model.attention.cpu_inference`, batch invariantly; every token must be a
                query.
        """
        assert queries.lengths is not None
        assert keys.lengths is not None
        self.num_queries = sum(queries.lengths)
        lengths, equal_above, min_queries = keys.lengths, None, 0
        if batch_invariant or matmuls is not None:
            lengths = tuple(map(_invariant_length, lengths))
            equal_above, min_queries = _SUMS_DEPEND_ON_LENGTH_ABOVE, _MIN_QUERIES
        if matmuls is not None:
            lengths = tuple(padded_length(n) if n > matmuls.above else n for n in lengths)
            equal_above = matmuls.above
        self.buckets = [
            _PaddedBucket.make(bucket, max(lengths[i] for i in bucket), queries, keys, device, min_queries, matmuls)
            for bucket in length_buckets(lengths, equal_above=equal_above)
        ]

    def self_attention(self, qkv: Tensor) -> Tensor:
        """See `Attention.self_attention`."""
        return self._attend(*qkv.unbind(1))

    def cross_attention(self, query: Tensor, key_value: Tensor) -> Tensor:
        """See `Attention.cross_attention`."""
        return self._attend(query, *key_value.unbind(1))

    def _attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        outs = [bucket.attend(query, key, value) for bucket in self.buckets]
        if surplus := query.shape[0] - self.num_queries:
            outs.append(query.new_zeros(surplus, *query.shape[1:]))
        return outs[0] if len(outs) == 1 else torch.cat(outs)


# Torch's CPU kernel in 16 bits, as measured. It takes 16 keys at a time and the rest one by one, with another
# exponential function. It multiplies by the values in blocks whose size depends on the number of keys: above
# 128, or with AMX at 80 and 112. It sums for a single query in another order than for several.
_SUMS_DEPEND_ON_LENGTH_ABOVE = 128
_MIN_QUERIES = 2


def _invariant_length(length: int) -> int:
    """Keys that a sequence is padded to. Up to `_SUMS_DEPEND_ON_LENGTH_ABOVE`, padding further adds only 0."""
    step = 16 if length <= 64 else 32
    return -(-length // step) * step


@dataclass(frozen=True, slots=True)
class _Side:
    """The queries or the keys of a bucket: packed rows [first, last) as (batch, longest) cells and back."""

    first: int
    last: int
    batch: int
    added: int
    """Cells added to each sequence where all are equally long; else 0."""
    pad_index: Tensor | None
    """Row (from `first`) of each cell, 0 for padding: (batch * longest,). None if equally long."""
    unpad_index: Tensor | None
    """Cell of each row: (last - first,). None if equally long."""

    @classmethod
    def make(cls, bucket: range, longest: int, lengths: tuple[int, ...], device: torch.device) -> _Side:
        own = lengths[bucket.start : bucket.stop]
        first = sum(lengths[: bucket.start])
        total = sum(own)
        if min(own) == max(own):
            return cls(first, first + total, len(own), longest - own[0], None, None)
        counts = torch.tensor(own)
        real = (torch.arange(longest) < counts[:, None]).flatten()  # (batch * longest,)
        unpad = real.nonzero().squeeze(1)
        pad = torch.zeros(len(own) * longest, dtype=torch.int64)
        pad[unpad] = torch.arange(total)
        return cls(first, first + total, len(own), 0, pad.to(device), unpad.to(device))

    def pad(self, packed: Tensor, dtype: torch.dtype) -> Tensor:
        """(rows, N, D) -> (batch, N, longest, D)"""
        rows = packed[self.first : self.last].to(dtype)
        if self.pad_index is not None and self.unpad_index is not None:
            rows = gather_rows(rows, self.pad_index, self.unpad_index)
        padded = rows.unflatten(0, (self.batch, -1)).transpose(1, 2)
        return F.pad(padded, (0, 0, 0, self.added)) if self.added else padded

    def unpad(self, padded: Tensor) -> Tensor:
        """(batch, N, longest, D) -> (rows of the bucket, N, D)"""
        rows = padded[:, :, : padded.shape[2] - self.added].transpose(1, 2).flatten(0, 1)
        if self.unpad_index is not None:
            rows = gather_rows(rows, self.unpad_index)
        return rows


@dataclass(frozen=True, slots=True)
class _PaddedBucket:
    """Neighbouring sequences that are padded to one length."""

    queries: _Side
    keys: _Side
    bias: Tensor | None
    """0 for keys, -inf for padding: (batch, 1, 1, longest) float32. None without padding."""
    matmul_dtype: torch.dtype | None
    """Precision in which `model.attention.cpu_inference` computes it; None: torch's fused kernel, in the input's."""

    @classmethod
    def make(
        cls,
        bucket: range,
        longest: int,
        queries: SequenceBounds,
        keys: SequenceBounds,
        device: torch.device,
        min_queries: int,
        matmuls: Matmuls | None,
    ) -> _PaddedBucket:
        """`longest` is the number of keys that each sequence is padded to, `min_queries` a lower bound on that
        of queries."""
        assert queries.lengths is not None
        assert keys.lengths is not None
        key_side = _Side.make(bucket, longest, keys.lengths, device)
        query_side = key_side
        if queries is not keys:
            most = max(queries.lengths[bucket.start : bucket.stop])
            query_side = _Side.make(bucket, max(most, min_queries), queries.lengths, device)
        bias = None
        if key_side.pad_index is not None or key_side.added:
            lengths = torch.tensor(keys.lengths[bucket.start : bucket.stop])
            hidden = torch.arange(longest) >= lengths[:, None]  # (batch, longest)
            bias = torch.zeros(hidden.shape).masked_fill_(hidden, -math.inf)[:, None, None].to(device)
        dtype = matmuls.dtype if matmuls is not None and longest > matmuls.above else None
        return cls(query_side, key_side, bias, dtype)

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if self.queries.first == self.queries.last:
            return query[:0]
        kernel = F.scaled_dot_product_attention if self.matmul_dtype is None else attend
        dtype = self.matmul_dtype or query.dtype
        q, k, v = self.queries.pad(query, dtype), self.keys.pad(key, dtype), self.keys.pad(value, dtype)
        bias = None if self.bias is None else self.bias.to(dtype)
        return self.queries.unpad(kernel(q, k, v, bias)).to(query.dtype)
