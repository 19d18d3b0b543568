"""Attention over a packed ribbon: the only code that knows where sequences end.

Scaled dot-product attention (Vaswani et al. 2017, section 3.2.1), bidirectional within each sequence, never
across two. Queries may be fewer than keys: in the last layer only read positions ask.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel, varlen

from model.packing import Segments


class Attention(ABC):
    """Attention of one batch, set up once and used by every layer."""

    @abstractmethod
    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """query (total_queries, heads, head_dim), key and value (total_keys, heads, head_dim)
        -> (total_queries, heads, head_dim)"""

    def within(self, qkv: Tensor) -> Tensor:
        """Where every token asks: (total_tokens, 3, heads, head_dim) -> (total_tokens, heads, head_dim)"""
        return self(*qkv.unbind(1))


def attention_for(
    queries: Segments,
    keys: Segments,
    device: torch.device,
    dtype: torch.dtype,
    head_dim: int,
    dropout: float = 0.0,
) -> Attention:
    """The fastest attention that computes this batch: variable-length flash attention where it exists."""
    if can_use_varlen(device, dtype, head_dim) and dropout == 0.0:
        return VarlenAttention(queries, keys)
    if device.type == "cpu" and dtype.itemsize == 2 and not torch.is_grad_enabled() and dropout == 0.0:
        return MatmulAttention(queries, keys)
    return PaddedAttention(queries, keys, device, dropout)


def can_use_varlen(device: torch.device, dtype: torch.dtype, head_dim: int) -> bool:
    """Whether the variable-length kernel takes such tensors (16-bit on Ampere or newer)."""
    return (
        device.type == "cuda"
        and dtype in (torch.float16, torch.bfloat16)
        and head_dim % 8 == 0
        and head_dim <= 256
        and torch.cuda.get_device_capability(device) >= (8, 0)
    )


class VarlenAttention(Attention):
    """Flash attention that reads the boundaries from `cu_seqlens`; no padding at all."""

    def __init__(self, queries: Segments, keys: Segments) -> None:
        self.queries = queries
        self.keys = keys

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        out = varlen.varlen_attn(
            query,
            key,
            value,
            self.queries.cu_seqlens,
            self.keys.cu_seqlens,
            self.queries.max_seqlen,
            self.keys.max_seqlen,
        )
        assert isinstance(out, Tensor)  # a tuple only if more was asked for
        return out


class PaddedAttention(Attention):
    """Pads inside attention only, in runs of neighbours of similar length, and unpads at once.

    A run of sequences of equal length is a view of the ribbon and costs no copy, so a ribbon sorted by
    length is computed with next to no padding.
    """

    def __init__(self, queries: Segments, keys: Segments, device: torch.device, dropout: float = 0.0) -> None:
        self.dropout = dropout
        limits = (_PADDING_TOLERANCE, _RUN_TOKENS) if device.type == "cpu" else _GPU_LIMITS
        self.runs = [_Run.make(run, queries, keys, device) for run in similar_runs(keys.lengths, *limits)]

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        outs = [run.attend(query, key, value, self.dropout) for run in self.runs]
        return outs[0] if len(outs) == 1 else torch.cat(outs)


# A run ends where its padding would outgrow this share of its own tokens, once it has enough of them to keep
# a matmul busy. Each run costs a few kernel launches, in which time a GPU computes a lot of padding.
_PADDING_TOLERANCE = 0.125
_RUN_TOKENS = 512
_GPU_LIMITS = (0.5, 16_384)


def similar_runs(
    lengths: tuple[int, ...],
    tolerance: float = _PADDING_TOLERANCE,
    run_tokens: int = _RUN_TOKENS,
    most_scores: int | None = None,
) -> list[range]:
    """Split a batch into runs of neighbouring sequences that waste little when padded to their longest, and
    have at most so many scores (of a head) to keep, or are a single sequence."""
    runs: list[range] = []
    start = tokens = longest = 0
    for i, length in enumerate(lengths):
        longest_then = max(longest, length)
        padded = longest_then * (i - start + 1)
        full = most_scores is not None and tokens and padded * longest_then > most_scores
        if full or (tokens >= run_tokens and padded - tokens - length > tolerance * padded):
            runs.append(range(start, i))
            start, tokens, longest = i, 0, 0
        tokens += length
        longest = max(longest, length)
    runs.append(range(start, len(lengths)))
    return runs


@dataclass(frozen=True, slots=True)
class _Side:
    """Rows [first, last) of a ribbon as (batch, longest) and back."""

    first: int
    last: int
    batch: int
    pad_index: Tensor | None
    """Ribbon row (from `first`) of each cell, 0 for padding: (batch * longest,); None if equally long."""
    unpad_index: Tensor | None
    """Padded cell of each ribbon row: (last - first,)"""

    @classmethod
    def make(cls, run: range, segments: Segments, device: torch.device) -> _Side:
        lengths = segments.lengths[run.start : run.stop]
        longest = max(lengths)
        first = sum(segments.lengths[: run.start])
        total = sum(lengths)
        if min(lengths) == longest:
            return cls(first, first + total, len(lengths), None, None)
        counts = torch.tensor(lengths)
        column = torch.arange(longest)
        real = (column < counts[:, None]).flatten()  # (batch * longest,)
        unpad = real.nonzero().squeeze(1)
        pad = torch.zeros(len(lengths) * longest, dtype=torch.int64)
        pad[unpad] = torch.arange(total)
        return cls(first, first + total, len(lengths), pad.to(device), unpad.to(device))

    def pad(self, ribbon: Tensor) -> Tensor:
        """(rows, heads, head_dim) -> (batch, heads, longest, head_dim)"""
        rows = ribbon[self.first : self.last]
        if self.pad_index is not None and self.unpad_index is not None:
            rows = _take_rows(rows, self.pad_index, self.unpad_index)
        return rows.unflatten(0, (self.batch, -1)).transpose(1, 2)

    def unpad(self, padded: Tensor) -> Tensor:
        """(batch, heads, longest, head_dim) -> (rows, heads, head_dim)"""
        rows = padded.transpose(1, 2).flatten(0, 1)
        if self.pad_index is not None and self.unpad_index is not None:
            rows = _take_rows(rows, self.unpad_index, self.pad_index)
        return rows


class _Rows(torch.autograd.Function):
    """`rows[index]`, whose gradient is a gather too: `back[i]` is the one place where row i went.

    Padding cells repeat row 0 going in; their gradient is zero because the key mask hides them, and going
    out nobody reads them. So the slow scatter-add of `index_select`'s own backward is never needed.
    """

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, rows: Tensor, index: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(index, back)
        return rows.index_select(0, index)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *grads: Tensor) -> tuple[Tensor, None, None]:
        index, back = ctx.saved_tensors  # type: ignore[attr-defined]
        grad = grads[0].index_select(0, back)
        if index.shape[0] < back.shape[0]:  # an unpad: nobody read the padding
            padding = torch.ones(back.shape[0], dtype=torch.bool, device=back.device)
            padding[index] = False
            grad.masked_fill_(padding[:, None, None], 0)
        return grad, None, None


def _take_rows(rows: Tensor, index: Tensor, back: Tensor) -> Tensor:
    if not torch.is_grad_enabled():
        return rows.index_select(0, index)
    taken = _Rows.apply(rows, index, back)  # type: ignore[no-untyped-call]
    assert isinstance(taken, Tensor)
    return taken


_KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""All but cuDNN's, which makes a plan for each new shape: every batch here has one."""


@dataclass(frozen=True, slots=True)
class _Run:
    queries: _Side
    keys: _Side
    bias: Tensor | None
    """0 for keys, -inf for padding: (batch, 1, 1, longest) float32; None without padding."""

    @classmethod
    def make(cls, run: range, queries: Segments, keys: Segments, device: torch.device) -> _Run:
        key_side = _Side.make(run, keys, device)
        query_side = key_side if queries is keys else _Side.make(run, queries, device)
        bias = None
        if key_side.pad_index is not None:
            lengths = keys.lengths[run.start : run.stop]
            bias = _hidden(lengths, max(lengths))[:, None, None].to(device)
        return cls(query_side, key_side, bias)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, dropout: float) -> Tensor:
        if self.queries.first == self.queries.last:  # nobody asks
            return query[:0]
        q, k, v = self.queries.pad(query), self.keys.pad(key), self.keys.pad(value)
        if torch.is_grad_enabled() and q.device.type == "cpu":
            return self.queries.unpad(_matmul_attention(q, k, v, self.bias, dropout))
        mask = None if self.bias is None else self.bias.to(q.dtype)
        with nullcontext() if q.device.type == "cpu" else sdpa_kernel(_KERNELS):
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)
        return self.queries.unpad(out)


def _matmul_attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, dropout: float) -> Tensor:
    """(batch, heads, seq, head_dim): on CPU the backward of three plain operations beats the fused kernel's."""
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)  # (batch, heads, queries, keys)
    if bias is not None:
        scores = scores + bias.to(scores.dtype)
    weights = scores.softmax(-1)
    if dropout:
        weights = F.dropout(weights, dropout)
    return weights @ v


def _hidden(lengths: Sequence[int], longest: int) -> Tensor:
    """0 for the keys of each sequence, -inf for its padding: (batch, longest)"""
    hidden = torch.arange(longest) >= torch.tensor(lengths)[:, None]
    return torch.zeros(hidden.shape).masked_fill_(hidden, -math.inf)


class MatmulAttention(Attention):
    """What a CPU is asked in 16 bits: two batched matmuls, of short texts twice as fast as the fused kernel.

    One gather lays all heads of all sequences out for the matmuls, one brings the answers back. Keys are padded
    to a multiple of 16: then a sequence's sums are added in the same order among any neighbours. In 16 bits
    another order is a rounding error that every later layer spreads; in float32 it is one in the seventh digit.
    """

    def __init__(self, queries: Segments, keys: Segments) -> None:
        self.queries = queries
        self.keys = keys
        lengths = tuple(-(-length // _STEP) * _STEP for length in keys.lengths)
        runs = similar_runs(lengths, most_scores=_MOST_SCORES)
        asking = [run for run in runs if any(queries.lengths[run.start : run.stop])]
        self.runs = [(run, max(lengths[run.start : run.stop])) for run in asking]
        self._grids: dict[int, list[_Grid]] = {}

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        outs = []
        for grid in self._laid_out(query.shape[1], parts=1):
            q = grid.take(query, grid.queries)
            k, v = (grid.take(rows, grid.keys) for rows in (key, value))
            outs.append(grid.attend(q, k, v))
        return _joined(outs, query)

    def within(self, qkv: Tensor) -> Tensor:
        """See `Attention.within`."""
        outs = []
        for grid in self._laid_out(qkv.shape[2], parts=3):
            q, k, v = grid.take(qkv, grid.keys).chunk(3)
            outs.append(grid.attend(q, k, v))
        return _joined(outs, qkv[:, 0])

    def _laid_out(self, heads: int, parts: int) -> list[_Grid]:
        """The runs' grids, made for the first layer; `parts`: tensors that lie side by side in the ribbon."""
        if parts not in self._grids:
            grids = [_Grid.make(*run, self.queries, self.keys, heads, parts) for run in self.runs]
            self._grids[parts] = grids
        return self._grids[parts]


_STEP = 16
_MOST_SCORES = 2**19
"""Of a head in a run: more than these leave the cache between the two matmuls."""


@dataclass(frozen=True, slots=True)
class _Grid:
    """A run of sequences as cells (sequence, head, place), padded to the longest. Indices count vectors of
    `head_dim`, in the ribbon or among the cells."""

    keys: Tensor
    """Vector of each cell, part by part, for padding one of the first row: (parts * batch * heads, longest)"""
    queries: Tensor
    """The same of the rows that ask: (batch * heads, most)"""
    answers: Tensor
    """Cell of each vector that the rows that ask get: (rows, heads)"""
    bias: Tensor
    """0 for keys, -inf for padding: (batch * heads, 1, longest)"""

    @classmethod
    def make(cls, run: range, longest: int, queries: Segments, keys: Segments, heads: int, parts: int) -> _Grid:
        known, asked = (segments.lengths[run.start : run.stop] for segments in (keys, queries))
        rows = asking = _cells(sum(keys.lengths[: run.start]), known, longest)  # (batch, longest)
        if queries.lengths != keys.lengths:
            asking = _cells(sum(queries.lengths[: run.start]), asked, max(asked))
        head, part = torch.arange(heads)[:, None], torch.arange(parts)[:, None, None, None]
        key_index = (rows[:, None] * parts + part) * heads + head  # (parts, batch, heads, longest)
        query_index = asking[:, None] * heads + head  # (batch, heads, most)
        most = asking.shape[1]
        text, place = (torch.arange(most) < torch.tensor(asked)[:, None]).nonzero().unbind(1)  # (rows,) each
        answers = (text * heads * most + place)[:, None] + torch.arange(heads) * most
        bias = _hidden(known, longest).repeat_interleave(heads, 0)[:, None]
        return cls(key_index.flatten(0, 2), query_index.flatten(0, 1), answers, bias)

    def take(self, rows: Tensor, index: Tensor) -> Tensor:
        """(total, ..., heads, head_dim) -> (parts * batch * heads, longest or most, head_dim)"""
        vectors = rows.reshape(-1, rows.shape[-1])
        return vectors.index_select(0, index.flatten()).unflatten(0, index.shape)

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """(batch * heads, most or longest, head_dim) -> (rows, heads, head_dim)"""
        bias = self.bias.to(query.dtype)
        scores = torch.baddbmm(bias, query, key.transpose(1, 2), alpha=query.shape[-1] ** -0.5)
        context = torch.bmm(scores.softmax(-1), value)
        vectors = context.flatten(0, 1).index_select(0, self.answers.flatten())
        return vectors.unflatten(0, self.answers.shape)


def _cells(first: int, lengths: Sequence[int], longest: int) -> Tensor:
    """Row of each place of sequences that lie one after another from row `first`: (batch, longest)"""
    counts = torch.tensor(lengths)[:, None]
    starts = first + counts.cumsum(0) - counts
    place = torch.arange(longest)
    return torch.where(place < counts, starts + place, first)


def _joined(outs: list[Tensor], queries: Tensor) -> Tensor:
    return torch.cat(outs) if len(outs) > 1 else outs[0] if outs else queries[:0]
