"""Many sequences as one ribbon of tokens: none is padded to the longest.

sequences      [CLS] a b [SEP]  and  [CLS] c [SEP]
input_ids      [CLS] a b [SEP] [CLS] c [SEP]        (total_tokens,)
position_ids     0   1 2   3     0   1   2          (total_tokens,)
cu_seqlens       0 ----------->  4 ------> 7        (batch + 1,)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Segments:
    """Where each sequence's rows lie in a packed tensor."""

    lengths: tuple[int, ...]
    """Rows of each sequence, on the host."""
    cu_seqlens: Tensor
    """Cumulative lengths with a leading 0: (batch + 1,) int32, on the device."""

    @classmethod
    def of(cls, lengths: Sequence[int]) -> Segments:
        offsets = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)
        return cls(tuple(lengths), offsets)

    @property
    def max_seqlen(self) -> int:
        return max(self.lengths)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Segments:
        return replace(self, cu_seqlens=self.cu_seqlens.to(device, non_blocking=non_blocking))


@dataclass(frozen=True, slots=True)
class Reads:
    """The positions whose final hidden state somebody reads; the last layer computes no others."""

    index: Tensor
    """Row of each read position in the ribbon, ascending: (num_reads,) int64."""
    segments: Segments
    """How many reads each sequence has; a sequence may have none."""

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Reads:
        return Reads(self.index.to(device, non_blocking=non_blocking), self.segments.to(device, non_blocking))


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """A batch of sequences of any lengths, end to end."""

    input_ids: Tensor
    """(total_tokens,) int64"""
    position_ids: Tensor
    """Position of each token in its own sequence: (total_tokens,) int64"""
    token_type_ids: Tensor
    """0 in the first segment, 1 in the second: (total_tokens,) int64"""
    segments: Segments
    reads: Reads | None = None
    """None: every position is read."""

    @classmethod
    def pack(
        cls,
        input_ids: Sequence[Sequence[int]],
        token_type_ids: Sequence[Sequence[int]] | None = None,
        reads: Sequence[Sequence[int]] | None = None,
    ) -> PackedBatch:
        """Lay sequences end to end.

        Args:
            input_ids: one list of token ids per sequence, none of them empty.
            token_type_ids: the same shape; all 0 if absent.
            reads: ascending positions within each sequence that will be read; all of them if absent.
        """
        lengths = [len(ids) for ids in input_ids]
        if not lengths or not all(lengths):
            raise ValueError("a packed batch needs at least one sequence, and none of length 0")
        ids = _flat(input_ids)
        types = torch.zeros_like(ids) if token_type_ids is None else _flat(token_type_ids)
        if types.shape != ids.shape:
            raise ValueError(f"token_type_ids has {len(types)} tokens, input_ids {len(ids)}")
        positions = _flat([range(n) for n in lengths])
        batch = cls(ids, positions, types, Segments.of(lengths))
        return batch if reads is None else batch.reading(reads)

    def reading(self, reads: Sequence[Sequence[int]]) -> PackedBatch:
        """The same ribbon with other positions to read; see `pack`."""
        for length, row in zip(self.segments.lengths, reads, strict=True):
            if row and not 0 <= min(row) <= max(row) < length:
                raise ValueError(f"reads {list(row)} leave a sequence of {length} tokens")
        starts = accumulate(self.segments.lengths[:-1], initial=0)
        index = _flat([[start + i for i in row] for start, row in zip(starts, reads, strict=True)])
        return replace(self, reads=Reads(index, Segments.of([len(row) for row in reads])))

    def filled_up(self) -> PackedBatch:
        """The same ribbon, with rows after it that belong to no sequence, and reads of none.

        Its numbers of rows and of reads are then two that recur: oneDNN makes kernels for each, 2 ms and 3 MB.
        """
        missing = recurring_rows(self.total_tokens) - self.total_tokens
        reads = self.reads
        if reads is not None:
            unread, last = recurring_rows(len(reads.index)) - len(reads.index), self.total_tokens + missing - 1
            reads = replace(reads, index=F.pad(reads.index, (0, unread), value=last))
        ids, positions, types = (
            F.pad(row, (0, missing)) for row in (self.input_ids, self.position_ids, self.token_type_ids)
        )
        return PackedBatch(ids, positions, types, self.segments, reads)

    def rounded_up(self) -> PackedBatch:
        """As `filled_up`, but with the new rows in sequences of their own, as training's attention wants it."""
        missing = recurring_rows(self.total_tokens) - self.total_tokens
        if not missing:
            return self
        full, rest = divmod(missing, self.max_seqlen)
        lengths = [self.max_seqlen] * full + [rest] * (rest > 0)
        padding = PackedBatch.pack([[0] * length for length in lengths])
        segments = Segments.of([*self.lengths, *lengths])
        reads = self.reads
        if reads is not None:
            asked = len(reads.index)
            unread = recurring_rows(asked) - asked
            last = self.total_tokens + missing - lengths[-1]
            index = torch.cat([reads.index, torch.full((unread,), last)])
            counts = [*reads.segments.lengths, *[0] * (len(lengths) - 1), unread]
            reads = Reads(index, Segments.of(counts))
        return PackedBatch(
            torch.cat([self.input_ids, padding.input_ids]),
            torch.cat([self.position_ids, padding.position_ids]),
            torch.cat([self.token_type_ids, padding.token_type_ids]),
            segments,
            reads,
        )

    @property
    def lengths(self) -> tuple[int, ...]:
        return self.segments.lengths

    @property
    def cu_seqlens(self) -> Tensor:
        return self.segments.cu_seqlens

    @property
    def max_seqlen(self) -> int:
        return self.segments.max_seqlen

    @property
    def total_tokens(self) -> int:
        return self.input_ids.shape[0]

    def to(self, device: torch.device | str, non_blocking: bool = False) -> PackedBatch:
        return PackedBatch(
            self.input_ids.to(device, non_blocking=non_blocking),
            self.position_ids.to(device, non_blocking=non_blocking),
            self.token_type_ids.to(device, non_blocking=non_blocking),
            self.segments.to(device, non_blocking),
            None if self.reads is None else self.reads.to(device, non_blocking),
        )


def recurring_rows(number: int) -> int:
    """Up to the next of few numbers.

    >>> [recurring_rows(n) for n in (1, 64, 65, 257, 1025, 2049)]
    [8, 64, 96, 320, 1152, 2176]
    """
    step = 8 if number <= 64 else 32 if number <= 256 else 64 if number <= 1024 else 128
    return -(-number // step) * step


def _flat(rows: Sequence[Sequence[int]]) -> Tensor:
    return torch.tensor(list(chain.from_iterable(rows)), dtype=torch.int64)
