"""Attention over a packed ribbon: the only code that knows where sequences end.

Scaled dot-product attention (Vaswani et al. 2017, section 3.2.1), bidirectional within each sequence, never
across two. Queries may be fewer than keys: in the last layer only read positions ask.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from model.attention import cpu_inference as product_attention
from model.attention.cpu_training import MatmulAttention
from model.attention.gather import take
from model.attention.length_buckets import PADDING_TOLERANCE, RUN_TOKENS, similar_runs
from model.packing import Segments


class Attention(Protocol):
    """Attention of one batch, set up once and used by every layer."""

    def __call__(self, query: Tensor, key_value: Tensor) -> Tensor:
        """query (total_queries, heads, head_dim), key_value (total_keys, 2, heads, head_dim)
        -> (total_queries, heads, head_dim)

        On a CPU that does not train, there may be more queries and keys than sequences have: they get zeros.
        """
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
    invariant = on_cpu and dtype.itemsize == 2
    products = invariant and queries is keys and dropout == 0.0 and product_attention.pays(dtype, head_dim)
    return PaddedAttention(queries, keys, device, dropout, invariant, products)


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
        from torch.nn.attention import varlen  # two seconds, which a process without a GPU is spared

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

    `products`: by `model.attention.cpu_inference`, where every token asks; invariant as well.
    """

    def __init__(
        self,
        queries: Segments,
        keys: Segments,
        device: torch.device,
        dropout: float = 0.0,
        invariant: bool = False,
        products: bool = False,
    ) -> None:
        self.products = products
        self.kernel = product_attention.attend if products else partial(_fused, dropout=dropout)
        self.answered = sum(queries.lengths)
        limits = (PADDING_TOLERANCE, RUN_TOKENS) if device.type == "cpu" else _GPU_LIMITS
        lengths, mixed = keys.lengths, None
        if products:
            lengths, mixed = tuple(map(product_attention.padded_length, lengths)), 0
        elif invariant:
            lengths, mixed = tuple(map(_padded, lengths)), _MIXED
        runs = similar_runs(lengths, *limits, mixed=mixed)
        fewest = _FEWEST_QUERIES if mixed is not None else 0
        self.runs = [
            _Run.make(run, max(lengths[i] for i in run), queries, keys, device, fewest) for run in runs
        ]

    def __call__(self, query: Tensor, key_value: Tensor) -> Tensor:
        return self._attend(query, *key_value.unbind(1))

    def within(self, qkv: Tensor) -> Tensor:
        """See `Attention.within`."""
        return self._attend(*qkv.unbind(1))

    def _attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        outs = [run.attend(query, key, value, self.kernel) for run in self.runs]
        if beyond := query.shape[0] - self.answered:
            outs.append(query.new_zeros(beyond, *query.shape[1:]))
        return outs[0] if len(outs) == 1 else torch.cat(outs)


# On a GPU each run costs a few kernel launches, in which time it computes a lot of padding.
_GPU_LIMITS = (0.5, 16_384)

# The CPU kernel takes 16 keys at a time and the rest one by one, by another exponential function. It
# multiplies by the values in blocks whose size follows from the number of keys: if there are many, or, with
# AMX, 80 or 112 of them. A single query has sums of its own there.
_MIXED = 128
_FEWEST_QUERIES = 2


def _padded(length: int) -> int:
    """Keys that an invariant attention pads a text to. Up to `_MIXED`, more of these sizes only add zeros."""
    step = 16 if length <= 64 else 32
    return -(-length // step) * step


@dataclass(frozen=True, slots=True)
class _Side:
    """Rows [first, last) of a ribbon as (batch, longest) and back."""

    first: int
    last: int
    batch: int
    missing: int
    """Cells that are added to each sequence, if all are equally long; else 0."""
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
            rows = take(rows, self.pad_index, self.unpad_index)
        padded = rows.unflatten(0, (self.batch, -1)).transpose(1, 2)
        return F.pad(padded, (0, 0, 0, self.missing)) if self.missing else padded

    def unpad(self, padded: Tensor) -> Tensor:
        """(batch, heads, longest, head_dim) -> (rows, heads, head_dim)"""
        rows = padded[:, :, : padded.shape[2] - self.missing].transpose(1, 2).flatten(0, 1)
        if self.pad_index is not None and self.unpad_index is not None:
            rows = take(rows, self.unpad_index)
        return rows


_Kernel = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]
_KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""All but cuDNN's, which makes a plan for each new shape: every batch here has one."""


@dataclass(frozen=True, slots=True)
class _Run:
    queries: _Side
    keys: _Side
    bias: Tensor | None
    """0 for keys, -inf for padding: (batch, 1, 1, longest) float32; None without padding."""

    @classmethod
    def make(
        cls, run: range, longest: int, queries: Segments, keys: Segments, device: torch.device, fewest: int
    ) -> _Run:
        """`longest`: number of keys that every sequence of the run is padded to, `fewest`: of queries."""
        key_side = _Side.make(run, longest, keys, device)
        # Queries with as much padding: a block of few has a kernel of its own, and its own sums.
        query_side = key_side
        if queries is not keys:
            most = max(queries.lengths[run.start : run.stop])
            query_side = _Side.make(run, max(most, fewest), queries, device)
        bias = None
        if key_side.pad_index is not None or key_side.missing:
            lengths = torch.tensor(keys.lengths[run.start : run.stop])
            hidden = torch.arange(longest) >= lengths[:, None]  # (batch, longest)
            bias = torch.zeros(hidden.shape).masked_fill_(hidden, -math.inf)[:, None, None].to(device)
        return cls(query_side, key_side, bias)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, kernel: _Kernel) -> Tensor:
        if self.queries.first == self.queries.last:  # nobody asks
            return query[:0]
        q, k, v = self.queries.pad(query), self.keys.pad(key), self.keys.pad(value)
        return self.queries.unpad(kernel(q, k, v, self.bias))


def _fused(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, dropout: float) -> Tensor:
    """Torch's own: shapes as of `product_attention.attend`."""
    mask = None if bias is None else bias.to(query.dtype)
    with nullcontext() if query.device.type == "cpu" else sdpa_kernel(_KERNELS):
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout)
