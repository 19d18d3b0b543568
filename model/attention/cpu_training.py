"""Attention for training on a CPU."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from model.attention.base import Attention
from model.attention.gather import gather_rows
from model.attention.length_buckets import length_buckets
from model.packing import SequenceBounds


class MatmulAttention(Attention):
    """Two batched matrix products and a softmax, whose backward pass is faster than that of torch's kernel.

    One gather lays all heads of all sequences out for the products, and one brings the results back; their gradients
    are gathers or copies too. Shapes are rounded up to a few, because oneDNN compiles a kernel for each new one (0.4 to
    1 ms, half a megabyte). Inference uses `BucketedAttention` instead.
    """

    def __init__(self, queries: SequenceBounds, keys: SequenceBounds) -> None:
        assert queries.lengths is not None
        assert keys.lengths is not None
        self.queries = queries.lengths
        self.keys = keys.lengths
        self._layouts: dict[int, _CellLayout] = {}

    def self_attention(self, qkv: Tensor) -> Tensor:
        """(T, 3, N, D) -> (T, N, D)"""
        layout = self._layout(qkv.shape[2], parts=3)
        qkv, surplus = _cut(qkv, self.keys)
        cells = gather_rows(_head_vectors(qkv), layout.key_source, layout.key_cell)
        parts = cells.split([3 * bucket.key_cells for bucket in layout.buckets])
        contexts = [b.attend(*part.chunk(3)) for b, part in zip(layout.buckets, parts, strict=True)]
        out = gather_rows(_concatenate(contexts), layout.query_cell)
        return _append_zeros(out.unflatten(0, (qkv.shape[0], qkv.shape[2])), surplus)

    def cross_attention(self, query: Tensor, key_value: Tensor) -> Tensor:
        """query (Q, N, D), key_value (T, 2, N, D) -> (Q, N, D)"""
        query, surplus = _cut(query, self.queries)
        if not len(query):
            return _append_zeros(query, surplus)
        key_value, _ = _cut(key_value, self.keys)
        layout = self._layout(query.shape[1], parts=2)
        queries = gather_rows(_head_vectors(query), layout.query_source, layout.query_cell)
        keys = gather_rows(_head_vectors(key_value), layout.key_source, layout.key_cell)
        contexts = [
            bucket.attend(q, *kv.chunk(2))
            for bucket, q, kv in zip(
                layout.buckets,
                queries.split([bucket.query_cells for bucket in layout.buckets]),
                keys.split([2 * bucket.key_cells for bucket in layout.buckets]),
                strict=True,
            )
        ]
        out = gather_rows(_concatenate(contexts), layout.query_cell).unflatten(0, query.shape[:2])
        return _append_zeros(out, surplus)

    def _layout(self, heads: int, parts: int) -> _CellLayout:
        """The cells of the batch, built at the first call. `parts`: number of vectors side by side in a row: 3 for
        queries, keys and values, 2 for keys and values."""
        if parts not in self._layouts:
            self._layouts[parts] = _CellLayout.make(self.queries, self.keys, heads, parts)
        return self._layouts[parts]


MAX_BUCKET_TOKENS = 2048
"""Maximum tokens of a bucket, with padding. The attention scores of more tokens would not fit the cache."""


def round_up_batch(number: int) -> int:
    """The next of the sizes 1, 2, 3, 4, 6, 8, 12, ...: two per octave.

    >>> [round_up_batch(n) for n in (1, 5, 7, 9, 13, 33)]
    [1, 6, 8, 12, 16, 48]
    """
    step = 1 << max(0, (number - 1).bit_length() - 2)
    return -(-number // step) * step


def _round_up_queries(number: int) -> int:
    return max(1, number) if number <= 4 else -(-number // 8) * 8


@dataclass(frozen=True, slots=True)
class _CellBucket:
    """Sequences padded to one length, and dummy sequences up to a number from `round_up_batch`."""

    batch: int
    """Sequences times heads"""
    num_queries: int
    """Queries of each sequence, with padding"""
    bias: Tensor
    """0 for keys, -inf for padding: (batch, 1, longest)"""

    @property
    def query_cells(self) -> int:
        return self.batch * self.num_queries

    @property
    def key_cells(self) -> int:
        return self.bias.numel()

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """query (query_cells, D), key and value (key_cells, D) -> (query_cells, D)"""
        q, k, v = (cells.unflatten(0, (self.batch, -1)) for cells in (query, key, value))
        scores = torch.baddbmm(self.bias.to(q.dtype), q, k.transpose(1, 2), alpha=q.shape[-1] ** -0.5)
        return torch.bmm(scores.softmax(-1), v).flatten(0, 1)  # scores: (batch, num_queries, longest)


@dataclass(frozen=True, slots=True)
class _CellLayout:
    """The batch as cells (vectors of D numbers): bucket after bucket, within a bucket part after part, within a part by
    (sequence, head, position).

    A padding cell repeats some vector: as a key it is hidden, as a query its result is unused.
    """

    buckets: list[_CellBucket]
    key_source: Tensor
    """Packed vector that each cell holds: (cells,)"""
    key_cell: Tensor
    """Cell of each packed vector: (vectors,)"""
    query_source: Tensor
    """Packed query that each query cell holds: (query cells,)"""
    query_cell: Tensor
    """Cell of each packed query: (total_queries * heads,)"""

    @classmethod
    def make(cls, queries: tuple[int, ...], keys: tuple[int, ...], heads: int, parts: int) -> _CellLayout:
        head, part = torch.arange(heads)[:, None], torch.arange(parts)[:, None, None, None]
        lengths = tuple(-(-length // 16) * 16 for length in keys)  # fewer shapes, and whole vector registers
        buckets: list[_CellBucket] = []
        key_sources: list[Tensor] = []
        query_sources: list[Tensor] = []
        key_is_real: list[Tensor] = []
        query_is_real: list[Tensor] = []
        for bucket in length_buckets(lengths, max_tokens=MAX_BUCKET_TOKENS):
            batch, longest = round_up_batch(len(bucket)), max(lengths[bucket.start : bucket.stop])
            rows, real = _cells(keys, bucket, batch, longest)
            vectors = (rows[:, None] * parts + part) * heads + head  # (parts, batch, heads, longest)
            key_sources.append(vectors.flatten())
            key_is_real.append(real[:, None].expand_as(vectors).flatten())
            hidden = ~real & real[:, :1]  # none in a dummy sequence: a softmax over no keys is NaN
            bias = torch.zeros(hidden.shape).masked_fill_(hidden, -math.inf).repeat_interleave(heads, 0)
            num_queries = longest
            if parts < 3:
                num_queries = _round_up_queries(max(queries[bucket.start : bucket.stop]))
                rows, real = _cells(queries, bucket, batch, num_queries)
            vectors = rows[:, None] * heads + head  # (batch, heads, num_queries)
            query_sources.append(vectors.flatten())
            query_is_real.append(real[:, None].expand_as(vectors).flatten())
            buckets.append(_CellBucket(batch * heads, num_queries, bias[:, None]))
        key_source, query_source = torch.cat(key_sources), torch.cat(query_sources)
        key_cell = _inverse(key_source, torch.cat(key_is_real), sum(keys) * parts * heads)
        query_cell = _inverse(query_source, torch.cat(query_is_real), sum(queries) * heads)
        return cls(buckets, key_source, key_cell, query_source, query_cell)


def _cells(lengths: tuple[int, ...], bucket: range, batch: int, longest: int) -> tuple[Tensor, Tensor]:
    """Row of each cell of a bucket, 0 for padding, and whether it is real: (batch, longest) each."""
    counts = torch.zeros(batch, 1, dtype=torch.int64)
    counts[: len(bucket), 0] = torch.tensor(lengths[bucket.start : bucket.stop])
    starts = sum(lengths[: bucket.start]) + counts.cumsum(0) - counts
    position = torch.arange(longest)
    real = position < counts
    return torch.where(real, starts + position, 0), real


def _inverse(source: Tensor, real: Tensor, vectors: int) -> Tensor:
    """The real cell that holds each vector: (vectors,)"""
    cells = real.nonzero().squeeze(1)
    return torch.empty(vectors, dtype=torch.int64).index_copy_(0, source[cells], cells)


def _head_vectors(rows: Tensor) -> Tensor:
    """(rows, ..., D) -> (vectors, D)"""
    return rows.reshape(-1, rows.shape[-1])


def _concatenate(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _cut(rows: Tensor, lengths: tuple[int, ...]) -> tuple[Tensor, int]:
    """The rows that belong to sequences, and the number of rows after them."""
    total = sum(lengths)
    return (rows, 0) if len(rows) == total else (rows[:total], len(rows) - total)


def _append_zeros(rows: Tensor, count: int) -> Tensor:
    return F.pad(rows, (0, 0, 0, 0, 0, count)) if count else rows
