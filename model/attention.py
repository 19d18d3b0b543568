"""Attention over a packed ribbon: the only code that knows where sequences end.

Scaled dot-product attention (Vaswani et al. 2017, section 3.2.1), bidirectional within each sequence, never
across two. Queries may be fewer than keys: in the last layer only read positions ask.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel, varlen

from model.packing import Segments


class Attention(Protocol):
    """Attention of one batch, set up once and used by every layer."""

    def __call__(self, query: Tensor, key_value: Tensor) -> Tensor:
        """query (total_queries, heads, head_dim), key_value (total_keys, 2, heads, head_dim)
        -> (total_queries, heads, head_dim)"""
        ...

    def within(self, qkv: Tensor) -> Tensor:
        """Where every token asks: (total_tokens, 3, heads, head_dim) -> (total_tokens, heads, head_dim)"""
        ...


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
    on_cpu = device.type == "cpu"
    if on_cpu and torch.is_grad_enabled():
        return MatmulAttention(queries, keys, dropout)
    return PaddedAttention(queries, keys, device, dropout, invariant=on_cpu and dtype.itemsize == 2)


def can_use_varlen(device: torch.device, dtype: torch.dtype, head_dim: int) -> bool:
    """Whether the variable-length kernel takes such tensors (16-bit on Ampere or newer)."""
    return (
        device.type == "cuda"
        and dtype in (torch.float16, torch.bfloat16)
        and head_dim % 8 == 0
        and head_dim <= 256
        and torch.cuda.get_device_capability(device) >= (8, 0)
    )


class VarlenAttention:
    """Flash attention that reads the boundaries from `cu_seqlens`; no padding at all."""

    def __init__(self, queries: Segments, keys: Segments) -> None:
        self.queries = queries
        self.keys = keys

    def __call__(self, query: Tensor, key_value: Tensor) -> Tensor:
        return self._attend(query, *key_value.unbind(1))

    def within(self, qkv: Tensor) -> Tensor:
        """See `Attention.within`."""
        return self._attend(*qkv.unbind(1))

    def _attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
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


class PaddedAttention:
    """Pads inside attention only, in runs of neighbours of similar length, and unpads at once.

    A run of sequences of equal length is a view of the ribbon and costs no copy, so a ribbon sorted by
    length is computed with next to no padding.

    `invariant`: what a sequence is padded to follows from its own length, as far as the kernel's sums depend
    on it. In 16 bits one sum in another order is a rounding error that every later layer spreads; so a
    sequence gets the same numbers among any neighbours. In float32 they would differ in the seventh digit.
    """

    def __init__(
        self,
        queries: Segments,
        keys: Segments,
        device: torch.device,
        dropout: float = 0.0,
        invariant: bool = False,
    ) -> None:
        self.dropout = dropout
        tolerance, tokens = (_PADDING_TOLERANCE, _RUN_TOKENS) if device.type == "cpu" else _GPU_LIMITS
        lengths = tuple(map(_padded, keys.lengths)) if invariant else keys.lengths
        runs = similar_runs(lengths, tolerance, tokens, _MIXED if invariant else None)
        self.runs = [_Run.make(run, max(lengths[i] for i in run), queries, keys, device) for run in runs]

    def __call__(self, query: Tensor, key_value: Tensor) -> Tensor:
        return self._attend(query, *key_value.unbind(1))

    def within(self, qkv: Tensor) -> Tensor:
        """See `Attention.within`."""
        return self._attend(*qkv.unbind(1))

    def _attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        outs = [run.attend(query, key, value, self.dropout) for run in self.runs]
        return outs[0] if len(outs) == 1 else torch.cat(outs)


# A run ends where its padding would outgrow this share of its own tokens, once it has enough of them to keep
# a matmul busy. Each run costs a few kernel launches, in which time a GPU computes a lot of padding.
_PADDING_TOLERANCE = 0.125
_RUN_TOKENS = 512
_GPU_LIMITS = (0.5, 16_384)

# The CPU kernel takes 16 keys at a time and the rest one by one, by another exponential function. It
# multiplies by the values in blocks whose size follows from the number of keys, if there are many.
_MIXED = 128


def _padded(length: int) -> int:
    """Keys that an invariant attention pads a text to. Up to `_MIXED`, more multiples of 16 only add zeros."""
    step = 16 if length <= _MIXED else 32
    return -(-length // step) * step


def similar_runs(
    lengths: tuple[int, ...],
    tolerance: float = _PADDING_TOLERANCE,
    run_tokens: int = _RUN_TOKENS,
    mixed: int | None = None,
    most_tokens: int | None = None,
) -> list[range]:
    """Split a batch into runs of neighbouring sequences that waste little when padded to their longest (if they
    are longer than `mixed`, nothing), and that have at most so many tokens then or are a single sequence."""
    runs: list[range] = []
    start = tokens = longest = 0
    for i, length in enumerate(lengths):
        padded = max(longest, length) * (i - start + 1)
        apart = mixed is not None and tokens and longest != length and max(longest, length) > mixed
        full = most_tokens is not None and tokens and padded > most_tokens
        if apart or full or (tokens >= run_tokens and padded - tokens - length > tolerance * padded):
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
    missing: int
    """Cells that are added to each sequence, if all are equally long; 0 else, and for queries."""
    pad_index: Tensor | None
    """Ribbon row (from `first`) of each cell, 0 for padding: (batch * longest,); None if equally long."""
    unpad_index: Tensor | None
    """Padded cell of each ribbon row: (last - first,)"""

    @classmethod
    def make(cls, run: range, longest: int, segments: Segments, device: torch.device) -> _Side:
        lengths = segments.lengths[run.start : run.stop]
        first = sum(segments.lengths[: run.start])
        total = sum(lengths)
        if min(lengths) == max(lengths):
            return cls(first, first + total, len(lengths), longest - lengths[0], None, None)
        counts = torch.tensor(lengths)
        column = torch.arange(longest)
        real = (column < counts[:, None]).flatten()  # (batch * longest,)
        unpad = real.nonzero().squeeze(1)
        pad = torch.zeros(len(lengths) * longest, dtype=torch.int64)
        pad[unpad] = torch.arange(total)
        return cls(first, first + total, len(lengths), 0, pad.to(device), unpad.to(device))

    def pad(self, ribbon: Tensor) -> Tensor:
        """(rows, heads, head_dim) -> (batch, heads, longest, head_dim)"""
        rows = ribbon[self.first : self.last]
        if self.pad_index is not None and self.unpad_index is not None:
            rows = _take_rows(rows, self.pad_index, self.unpad_index)
        padded = rows.unflatten(0, (self.batch, -1)).transpose(1, 2)
        return F.pad(padded, (0, 0, 0, self.missing)) if self.missing else padded

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
    def make(cls, run: range, longest: int, queries: Segments, keys: Segments, device: torch.device) -> _Run:
        """`longest`: number of keys that every sequence of the run is padded to."""
        key_side = _Side.make(run, longest, keys, device)
        query_side = key_side
        if queries is not keys or key_side.missing:
            query_side = _Side.make(run, max(queries.lengths[run.start : run.stop]), queries, device)
        bias = None
        if key_side.pad_index is not None or key_side.missing:
            lengths = torch.tensor(keys.lengths[run.start : run.stop])
            hidden = torch.arange(longest) >= lengths[:, None]  # (batch, longest)
            bias = torch.zeros(hidden.shape).masked_fill_(hidden, -math.inf)[:, None, None].to(device)
        return cls(query_side, key_side, bias)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, dropout: float) -> Tensor:
        if self.queries.first == self.queries.last:  # nobody asks
            return query[:0]
        q, k, v = self.queries.pad(query), self.keys.pad(key), self.keys.pad(value)
        mask = None if self.bias is None else self.bias.to(q.dtype)
        with nullcontext() if q.device.type == "cpu" else sdpa_kernel(_KERNELS):
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)
        return self.queries.unpad(out)


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
        asking = _take(query, grid.asking, grid.answers).split([run.asking for run in grid.runs])
        known = _take(key_value, grid.known, grid.back).split([2 * run.known for run in grid.runs])
        contexts = [
            run.attend(q, k, v, self.dropout)
            for run, q, (k, v) in zip(grid.runs, asking, (own.chunk(2) for own in known), strict=True)
        ]
        return _take(_joined(contexts), grid.answers).unflatten(0, query.shape[:2])

    def within(self, qkv: Tensor) -> Tensor:
        """See `Attention.within`."""
        grid = self._grid(qkv.shape[2], parts=3)
        cells = _take(qkv, grid.known, grid.back).split([3 * run.known for run in grid.runs])
        contexts = [
            run.attend(q, k, v, self.dropout)
            for run, (q, k, v) in zip(grid.runs, (own.chunk(3) for own in cells), strict=True)
        ]
        return _take(_joined(contexts), grid.answers).unflatten(0, (qkv.shape[0], qkv.shape[2]))

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
            weights = F.dropout(weights, dropout)
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


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _take(rows: Tensor, index: Tensor, back: Tensor | None = None) -> Tensor:
    """The vectors of `rows` (total, ..., head_dim) that `index` names: (len(index), head_dim)"""
    vectors = rows.reshape(-1, rows.shape[-1])
    if not (torch.is_grad_enabled() and vectors.requires_grad):
        return vectors.index_select(0, index)
    taken = _Taken.apply(vectors, index, back)  # type: ignore[no-untyped-call]
    assert isinstance(taken, Tensor)
    return taken


class _Taken(torch.autograd.Function):
    """`vectors[index]`, without the scatter-add of `index_select`'s own backward: each vector's gradient is
    that of the one cell that `back` says, or, without `back`, each is in one cell at most."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx, vectors: Tensor, index: Tensor, back: Tensor | None
    ) -> Tensor:
        ctx.save_for_backward(index, back)  # type: ignore[arg-type]
        ctx.vectors = len(vectors)  # type: ignore[attr-defined]
        return vectors.index_select(0, index)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *grads: Tensor) -> tuple[Tensor, None, None]:
        (grad,) = grads
        index, back = ctx.saved_tensors  # type: ignore[attr-defined]
        if back is not None:
            return grad.index_select(0, back), None, None
        whole = grad.new_zeros(ctx.vectors, grad.shape[1])  # type: ignore[attr-defined]
        return whole.index_copy_(0, index, grad), None, None
