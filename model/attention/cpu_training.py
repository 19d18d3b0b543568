"""Attention that trains on a CPU."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from model.attention.gather import take
from model.attention.length_buckets import similar_runs
from model.dropout import dropout as drop
from model.packing import Segments


class MatmulAttention:
    """What trains on a CPU: two batched matmuls and a softmax, whose gradients beat those of the fused kernel.

    One gather lays all heads of all sequences out for the matmuls, one brings the answers back; of either the
    gradient is a gather or a copy too. All is padded to numbers that recur, since oneDNN makes kernels for each
    new shape, in 0.4 to 1 ms and half a megabyte: too much where a single text is to be answered at once.
    """

    def __init__(self, queries: Segments, keys: Segments, dropout: float = 0.0) -> None:
        self.queries = queries
        self.keys = keys
        self.dropout = dropout
        self._grids: dict[int, _Grid] = {}

    def __call__(self, query: Tensor, key_value: Tensor) -> Tensor:
        if not len(query):  # nobody asks
            return query
        grid = self._grid(query.shape[1], parts=2)
        asking = take(_vectors(query), grid.asking, grid.answers).split([run.asking for run in grid.runs])
        known = take(_vectors(key_value), grid.known, grid.back).split([2 * run.known for run in grid.runs])
        contexts = [
            run.attend(q, k, v, self.dropout)
            for run, q, (k, v) in zip(grid.runs, asking, (own.chunk(2) for own in known), strict=True)
        ]
        return take(_joined(contexts), grid.answers).unflatten(0, query.shape[:2])

    def within(self, qkv: Tensor) -> Tensor:
        """See `Attention.within`."""
        grid = self._grid(qkv.shape[2], parts=3)
        cells = take(_vectors(qkv), grid.known, grid.back).split([3 * run.known for run in grid.runs])
        contexts = [
            run.attend(q, k, v, self.dropout)
            for run, (q, k, v) in zip(grid.runs, (own.chunk(3) for own in cells), strict=True)
        ]
        return take(_joined(contexts), grid.answers).unflatten(0, (qkv.shape[0], qkv.shape[2]))

    def _grid(self, heads: int, parts: int) -> _Grid:
        """Made for the first layer; `parts`: tensors that lie side by side in the ribbon's rows."""
        if parts not in self._grids:
            self._grids[parts] = _Grid.make(self.queries, self.keys, heads, parts)
        return self._grids[parts]


_STEP = 16
_MOST_TOKENS = 2048
"""Of a run, with padding: the scores of more would leave the cache."""


def recurring(number: int) -> int:
    """Up to the next of few numbers, two in each octave.

    >>> [recurring(n) for n in (1, 5, 7, 9, 13, 33)]
    [1, 6, 8, 12, 16, 48]
    """
    step = 1 << max(0, (number - 1).bit_length() - 2)
    return -(-number // step) * step


def _few(queries: int) -> int:
    """Up to one of few numbers, at least 1"""
    return max(1, queries) if queries <= 4 else -(-queries // 8) * 8


@dataclass(frozen=True, slots=True)
class _MatmulRun:
    """Sequences padded to one length, and to a number that recurs."""

    batch: int
    """Sequences times heads"""
    most: int
    """Queries of each"""
    bias: Tensor
    """0 for keys, -inf for padding: (batch, 1, longest)"""

    @property
    def asking(self) -> int:
        """Cells of queries"""
        return self.batch * self.most

    @property
    def known(self) -> int:
        """Cells of keys"""
        return self.bias.numel()

    def attend(self, query: Tensor, key: Tensor, value: Tensor, dropout: float) -> Tensor:
        """(asking, head_dim), (known, head_dim) twice -> (asking, head_dim)"""
        q, k, v = (cells.unflatten(0, (self.batch, -1)) for cells in (query, key, value))
        scores = torch.baddbmm(self.bias.to(q.dtype), q, k.transpose(1, 2), alpha=q.shape[-1] ** -0.5)
        weights = scores.softmax(-1)  # (batch, most, longest)
        if dropout:
            weights = drop(weights, dropout)
        return torch.bmm(weights, v).flatten(0, 1)


@dataclass(frozen=True, slots=True)
class _Grid:
    """The batch as cells of `head_dim` numbers: run after run, in each part after part of (sequence, head,
    place). A padding cell repeats some vector; as a key it is hidden, and as a query nobody reads it."""

    runs: list[_MatmulRun]
    known: Tensor
    """Vector in the ribbon of each cell of queries, keys and values, or of the latter two: (cells,)"""
    back: Tensor
    """Cell of each of those vectors: (vectors,)"""
    asking: Tensor
    """Vector of each query's cell: (cells,)"""
    answers: Tensor
    """Cell of each query's vector: (total_queries * heads,)"""

    @classmethod
    def make(cls, queries: Segments, keys: Segments, heads: int, parts: int) -> _Grid:
        head, part = torch.arange(heads)[:, None], torch.arange(parts)[:, None, None, None]
        lengths = tuple(-(-length // _STEP) * _STEP for length in keys.lengths)
        runs: list[_MatmulRun] = []
        known: list[Tensor] = []
        asking: list[Tensor] = []
        known_real: list[Tensor] = []
        asking_real: list[Tensor] = []
        for run in similar_runs(lengths, most_tokens=_MOST_TOKENS):
            batch, longest = recurring(len(run)), max(lengths[run.start : run.stop])
            rows, real = _places(keys, run, batch, longest)
            vectors = (rows[:, None] * parts + part) * heads + head  # (parts, batch, heads, longest)
            known.append(vectors.flatten())
            known_real.append(real[:, None].expand_as(vectors).flatten())
            hidden = ~real & real[:, :1]  # of a sequence that is none, nothing: a softmax needs some key
            bias = torch.zeros(hidden.shape).masked_fill_(hidden, -math.inf).repeat_interleave(heads, 0)
            most = longest
            if parts < 3:
                most = _few(max(queries.lengths[run.start : run.stop]))
                rows, real = _places(queries, run, batch, most)
            vectors = rows[:, None] * heads + head  # (batch, heads, most)
            asking.append(vectors.flatten())
            asking_real.append(real[:, None].expand_as(vectors).flatten())
            runs.append(_MatmulRun(batch * heads, most, bias[:, None]))
        known_index, asking_index = torch.cat(known), torch.cat(asking)
        back = _inverse(known_index, torch.cat(known_real), sum(keys.lengths) * parts * heads)
        answers = _inverse(asking_index, torch.cat(asking_real), sum(queries.lengths) * heads)
        return cls(runs, known_index, back, asking_index, answers)


def _places(segments: Segments, run: range, batch: int, longest: int) -> tuple[Tensor, Tensor]:
    """Row of each place of a run's sequences, 0 for padding, and whether it is one: (batch, longest) each."""
    counts = torch.zeros(batch, 1, dtype=torch.int64)
    counts[: len(run), 0] = torch.tensor(segments.lengths[run.start : run.stop])
    starts = sum(segments.lengths[: run.start]) + counts.cumsum(0) - counts
    place = torch.arange(longest)
    real = place < counts
    return torch.where(real, starts + place, 0), real


def _inverse(index: Tensor, real: Tensor, vectors: int) -> Tensor:
    """The cell of each vector: (vectors,)"""
    cells = real.nonzero().squeeze(1)
    return torch.empty(vectors, dtype=torch.int64).index_copy_(0, index[cells], cells)


def _vectors(rows: Tensor) -> Tensor:
    """(rows, ..., head_dim) -> (vectors, head_dim)"""
    return rows.reshape(-1, rows.shape[-1])


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)
