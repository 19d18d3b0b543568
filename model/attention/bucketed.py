"""Attention that pads sequences in buckets, for inference on a CPU."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from model.attention.base import Attention
from model.attention.cpu_inference import attend, padded_length
from model.attention.length_buckets import length_buckets
from model.packing import SequenceBounds

# Causes of another order of sums in torch's CPU kernel in 16 bits, as measured:
# - It takes 16 keys at a time and the rest one by one, with another exponential function.
# - Above 128 keys, or with AMX at 80 and 112, the number of keys decides in which blocks values are summed.
# - A single query is summed in another order than several.
_SUMS_DEPEND_ON_LENGTH_ABOVE = 128
_MIN_QUERIES = 2


@dataclass(frozen=True, slots=True)
class Matmuls:
    """The sequences that `BucketedAttention` computes by `model.attention.cpu_inference`."""

    dtype: torch.dtype
    """Precision, even if the input has another"""
    above: int = 0
    """Minimum padded length, exclusive, because torch's fused kernel is faster for a single short sequence. At most
    `_SUMS_DEPEND_ON_LENGTH_ABOVE`."""


class BucketedAttention(Attention):
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
            batch_invariant: pad each sequence to a length that follows from its own length alone, wherever
                padding would change the order of sums in the kernel. A sequence then gets the same result in any
                batch. In 16 bits another order of summation changes results by a rounding error that grows from
                layer to layer; in float32 the change is in the seventh digit.
            matmuls: which sequences are computed by `model.attention.cpu_inference`, batch invariantly; every token
                must be a query.
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
        self.num_queries = sum(queries.lengths)
        self.keys = self.queries = _cells(keys.lengths, buckets, widths)
        if queries is not keys:
            most = [max(min_queries, *queries.lengths[bucket.start : bucket.stop]) for bucket in buckets]
            self.queries = _cells(queries.lengths, buckets, most)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attend bucket after bucket, so that all data of a bucket are in the cache."""
        out = query.new_empty(query.shape)
        for queries, keys, matmuls in zip(self.queries, self.keys, self.matmuls, strict=True):
            if queries.first == queries.last:
                continue
            q, k, v = queries.pad(query), keys.pad(key), keys.pad(value)
            if matmuls is not None:
                queries.unpad(attend(q, k, v, keys.bias, matmuls.dtype), out)
            else:
                mask = None if keys.bias is None else keys.bias.to(q.dtype)
                queries.unpad(F.scaled_dot_product_attention(q, k, v, attn_mask=mask), out)
        out[self.num_queries :] = 0
        return out


def _invariant_length(length: int) -> int:
    """The length that a sequence is padded to. Up to `_SUMS_DEPEND_ON_LENGTH_ABOVE`, further padding only adds 0."""
    step = 16 if length <= 64 else 32
    return -(-length // step) * step


@dataclass(frozen=True, slots=True)
class _Cells:
    """A bucket's sequences, padded to the same number of cells; a cell is a row of the batch, or padding."""

    first: int
    last: int
    """The bucket's rows in the batch: [first, last)"""
    shape: tuple[int, int]
    """Sequences, and cells of each"""
    bias: Tensor | None = None
    """0 for rows, -inf for padding: (sequences, 1, 1, cells of each) float32. None if all cells are rows."""
    pad_index: Tensor | None = None
    """Row, in the batch, of each cell; padding repeats the last row of its sequence: (cells,)"""
    unpad_index: Tensor | None = None
    """Cell of each row: (last - first,)"""

    def pad(self, packed: Tensor) -> Tensor:
        """(rows of the batch, N, D) -> (sequences, N, cells of each, D)"""
        cells = packed[self.first : self.last] if self.pad_index is None else packed.index_select(0, self.pad_index)
        return cells.unflatten(0, self.shape).transpose(1, 2)

    def unpad(self, padded: Tensor, out: Tensor) -> None:
        """(sequences, N, cells of each, D) into the bucket's rows of `out` (rows of the batch, N, D)"""
        cells, rows = padded.transpose(1, 2).flatten(0, 1).to(out.dtype), out[self.first : self.last]
        if self.unpad_index is None:
            rows.copy_(cells)
        else:
            torch.index_select(cells, 0, self.unpad_index, out=rows)


def _cells(lengths: Sequence[int], buckets: Sequence[range], widths: Sequence[int]) -> list[_Cells]:
    """The cells of each bucket. `widths`: number of cells of each sequence, by bucket."""
    made, first = [], 0
    for bucket, width in zip(buckets, widths, strict=True):
        own = lengths[bucket.start : bucket.stop]
        last, shape = first + sum(own), (len(own), width)
        if min(own) == width:
            made.append(_Cells(first, last, shape))
        else:
            counts, position = torch.tensor(own)[:, None], torch.arange(width)
            real = position < counts  # (sequences, width)
            index = first + counts.cumsum(0) - counts + torch.minimum(position, counts - 1)
            bias = torch.zeros(shape).masked_fill_(~real, -math.inf)[:, None, None]
            made.append(_Cells(first, last, shape, bias, index.flatten().clamp_min_(0), real.flatten().nonzero()[:, 0]))
        first = last
    return made
