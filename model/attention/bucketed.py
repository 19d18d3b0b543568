"""Attention that pads sequences in buckets, for inference on a CPU."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from model.attention.cpu_inference import attend, padded_length
from model.attention.length_buckets import length_buckets
from model.packing import SequenceBounds

# Torch's CPU kernel in 16 bits, as measured. It takes 16 keys at a time and the rest one by one, with another
# exponential function. It multiplies by the values in blocks whose size depends on the number of keys: above
# 128, or with AMX at 80 and 112. It sums for a single query in another order than for several.
_SUMS_DEPEND_ON_LENGTH_ABOVE = 128
_MIN_QUERIES = 2


@dataclass(frozen=True, slots=True)
class Matmuls:
    """Which sequences `BucketedAttention` computes by `model.attention.cpu_inference`."""

    dtype: torch.dtype
    """Precision, also where the input has another"""
    above: int = 0
    """Sequences longer than this: torch's fused kernel takes less time for a single short one. At most
    `_SUMS_DEPEND_ON_LENGTH_ABOVE`."""


class BucketedAttention:
    """Pads sequences in buckets of neighbours of similar length, which it forms on the host from `lengths`.

    A batch sorted by length needs next to no padding. No gradients pass.
    """

    def __init__(
        self,
        queries: SequenceBounds,
        keys: SequenceBounds,
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
        lengths, equal_above, min_queries = keys.lengths, None, 0
        if batch_invariant or matmuls is not None:
            lengths = tuple(map(_invariant_length, lengths))
            equal_above, min_queries = _SUMS_DEPEND_ON_LENGTH_ABOVE, _MIN_QUERIES
        if matmuls is not None:
            lengths = tuple(padded_length(n) if n > matmuls.above else n for n in lengths)
            equal_above = matmuls.above
        buckets = length_buckets(lengths, equal_above=equal_above)
        widths = [max(lengths[bucket.start : bucket.stop]) for bucket in buckets]
        self.matmuls = [matmuls if matmuls is not None and width > matmuls.above else None for width in widths]
        self.keys = self.queries = _Cells.of(keys.lengths, buckets, widths)
        if queries is not keys:
            most = [max(min_queries, *queries.lengths[bucket.start : bucket.stop]) for bucket in buckets]
            self.queries = _Cells.of(queries.lengths, buckets, most)

    def self_attention(self, qkv: Tensor) -> Tensor:
        """See `Attention.self_attention`."""
        query, key, value = (self.keys.pad(x) for x in qkv.unbind(1))
        return self._attend(query, key, value, len(qkv))

    def cross_attention(self, query: Tensor, key_value: Tensor) -> Tensor:
        """See `Attention.cross_attention`."""
        key, value = (self.keys.pad(x) for x in key_value.unbind(1))
        return self._attend(self.queries.pad(query), key, value, len(query))

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, rows: int) -> Tensor:
        """query (query cells, N, D), key and value (key cells, N, D) -> (rows, N, D)"""
        out = query.new_empty(query.shape)
        q, k, v, outs = self.queries.split(query), self.keys.split(key), self.keys.split(value), self.queries.split(out)
        for bucket in zip(q, k, v, outs, self.keys.biases, self.matmuls, strict=True):
            _attend_bucket(*bucket)
        return self.queries.unpad(out, rows)


def _attend_bucket(q: Tensor, k: Tensor, v: Tensor, out: Tensor, bias: Tensor | None, matmuls: Matmuls | None) -> None:
    """q and out (batch, N, queries, D), k and v (batch, N, keys, D), bias (batch, 1, 1, keys)"""
    if matmuls is not None:
        out.copy_(attend(q, k, v, bias, matmuls.dtype))
    elif out.numel():
        mask = None if bias is None else bias.to(q.dtype)
        out.copy_(F.scaled_dot_product_attention(q, k, v, attn_mask=mask))


def _invariant_length(length: int) -> int:
    """Keys that a sequence is padded to. Up to `_SUMS_DEPEND_ON_LENGTH_ABOVE`, padding further adds only 0."""
    step = 16 if length <= 64 else 32
    return -(-length // step) * step


@dataclass(frozen=True, slots=True)
class _Cells:
    """The rows of packed sequences as cells: within a bucket, all sequences have the same number of them."""

    rows: int
    shapes: list[tuple[int, int]]
    """Of each bucket: sequences, and cells of each"""
    biases: list[Tensor | None]
    """Of each bucket: 0 for rows, -inf for padding: (batch, 1, 1, cells) float32. None without padding."""
    source: Tensor | None
    """Row of each cell; padding repeats the last row of its sequence: (cells,). None if all cells are rows."""
    target: Tensor | None
    """Cell of each row: (rows,). None if all cells are rows."""

    @classmethod
    def of(cls, lengths: Sequence[int], buckets: Sequence[range], widths: Sequence[int]) -> _Cells:
        """`widths`: cells of a sequence of each bucket."""
        rows, shapes = sum(lengths), [(len(bucket), width) for bucket, width in zip(buckets, widths, strict=True)]
        biases: list[Tensor | None] = [None] * len(buckets)
        own = [width for batch, width in shapes for _ in range(batch)]
        if own == list(lengths):
            return cls(rows, shapes, biases, None, None)
        counts, cells = torch.tensor(lengths), torch.tensor(own)
        sequence = torch.repeat_interleave(cells)  # of each cell
        position = torch.arange(len(sequence)) - (cells.cumsum(0) - cells)[sequence]
        real = position < counts[sequence]
        source = (counts.cumsum(0) - counts)[sequence] + torch.minimum(position, counts[sequence] - 1)
        bias = torch.zeros(len(sequence)).masked_fill_(~real, -math.inf)
        for i, part in enumerate(bias.split([batch * width for batch, width in shapes])):
            if min(lengths[buckets[i].start : buckets[i].stop]) < widths[i]:
                biases[i] = part.view(len(buckets[i]), 1, 1, widths[i])
        return cls(rows, shapes, biases, source.clamp_min_(0), real.nonzero().squeeze(1))

    def pad(self, packed: Tensor) -> Tensor:
        """(rows, ...) -> (cells, ...)"""
        return packed[: self.rows] if self.source is None else packed.index_select(0, self.source)

    def split(self, cells: Tensor) -> Iterator[Tensor]:
        """(cells, N, D) -> (batch, N, cells of a sequence, D) for each bucket"""
        parts = cells.split([batch * width for batch, width in self.shapes])
        for part, shape in zip(parts, self.shapes, strict=True):
            yield part.unflatten(0, shape).transpose(1, 2)

    def unpad(self, cells: Tensor, total: int) -> Tensor:
        """(cells, N, D) -> (total, N, D), 0 after the rows"""
        if self.target is None:
            return F.pad(cells, (0, 0, 0, 0, 0, total - self.rows)) if total > self.rows else cells
        out = cells.new_empty(total, *cells.shape[1:])
        torch.index_select(cells, 0, self.target, out=out[: self.rows])
        out[self.rows :] = 0
        return out
