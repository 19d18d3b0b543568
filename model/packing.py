"""Sequences of any lengths end to end in one tensor, without padding between them.

sequences      [CLS] a b [SEP]  and  [CLS] c [SEP]
input_ids      [CLS] a b [SEP] [CLS] c [SEP]        (total_tokens,)
position_ids     0   1 2   3     0   1   2          (total_tokens,)
cu_seqlens       0 ----------->  4 ------> 7        (number of sequences + 1,)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from model.config import BertConfig
from model.errors import BatchError

Ints = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class SequenceBounds:
    """Bounds of each sequence among the rows of a packed tensor.

    On a GPU the sequences must cover all rows: attention leaves rows after the last sequence unwritten.
    """

    lengths: tuple[int, ...] | None
    """Rows of each sequence, on the host. None in a batch that only a GPU or a traced graph sees."""
    cu_seqlens: Tensor
    """Cumulative lengths with a leading 0: (capacity + 1,) int32. Where there are fewer sequences than
    `capacity`, the last value is repeated: the missing sequences are empty."""
    max_seqlen: int
    """Upper bound on the length of a sequence."""

    @classmethod
    def of(
        cls, lengths: Sequence[int], *, capacity: int | None = None, max_seqlen: int | None = None
    ) -> SequenceBounds:
        """Bounds of sequences with these lengths.

        Args:
            lengths: rows of each sequence.
            capacity: number of sequences that `cu_seqlens` has room for; by default the number of lengths.
            max_seqlen: upper bound on the lengths; by default the longest.

        Raises:
            ValueError: more sequences than `capacity`, or a sequence longer than `max_seqlen`.
        """
        capacity = len(lengths) if capacity is None else capacity
        longest = max(lengths, default=0)
        max_seqlen = longest if max_seqlen is None else max_seqlen
        if len(lengths) > capacity:
            raise ValueError(f"{len(lengths)} sequences exceed the capacity of {capacity}")
        if longest > max_seqlen:
            raise ValueError(f"a sequence of {longest} rows exceeds max_seqlen {max_seqlen}")
        missing = [0] * (capacity - len(lengths))
        offsets = torch.tensor([0, *accumulate([*lengths, *missing])], dtype=torch.int32)
        return cls(tuple(lengths), offsets, max_seqlen)

    @classmethod
    def of_array(cls, lengths: Ints) -> SequenceBounds:
        """Bounds of sequences with these lengths, int32."""
        offsets = np.zeros(len(lengths) + 1, np.int32)
        lengths.cumsum(out=offsets[1:])
        return cls(tuple(lengths.tolist()), torch.from_numpy(offsets), int(lengths.max()))

    def to(self, device: torch.device | str, non_blocking: bool = False) -> SequenceBounds:
        """Copy to a device. On a CUDA device `lengths` is None: kernels there read `cu_seqlens`."""
        lengths = None if torch.device(device).type == "cuda" else self.lengths
        return SequenceBounds(lengths, self.cu_seqlens.to(device, non_blocking=non_blocking), self.max_seqlen)


@dataclass(frozen=True, slots=True)
class OutputPositions:
    """The positions whose final hidden state is used; the last layer computes no others."""

    index: Tensor
    """Row of each output position among the packed tokens, ascending: (num_outputs,) int64 or int32. Positions at the
    end that only fill up the batch may name any row; they are not counted in `sequences.lengths`."""
    sequences: SequenceBounds
    """Number of output positions of each sequence; a sequence may have none."""

    def to(self, device: torch.device | str, non_blocking: bool = False) -> OutputPositions:
        """Copy to a device; see `PackedBatch.to`."""
        index = self.index.to(device, non_blocking=non_blocking)
        return OutputPositions(index, self.sequences.to(device, non_blocking))


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """A batch of packed sequences: the input of the networks. `pack` makes one from lists of token ids."""

    input_ids: Tensor
    """(total_tokens,) int64 or int32"""
    position_ids: Tensor
    """Position of each token in its own sequence: (total_tokens,) int64 or int32"""
    token_type_ids: Tensor
    """0 in the first segment, 1 in the second: (total_tokens,) int64 or int32"""
    sequences: SequenceBounds
    """Where each sequence begins and ends."""
    outputs: OutputPositions | None = None
    """Output positions. None: every position is an output."""
    ranges: Sequence[tuple[int, ...]] | None = None
    """Smallest and largest token id, position and token type, on the host: `pack` knows them, for `check` on a GPU."""

    @classmethod
    def pack(
        cls,
        input_ids: Sequence[Sequence[int]],
        token_type_ids: Sequence[Sequence[int]] | None = None,
        outputs: Sequence[Sequence[int]] | None = None,
    ) -> PackedBatch:
        """Pack sequences of token ids, on the CPU.

        Args:
            input_ids: one list of token ids per sequence, special tokens included; none of them empty.
            token_type_ids: one list per sequence, of the same lengths; all 0 by default.
            outputs: ascending output positions within each sequence; by default all positions.

        Returns:
            Tensors of total_tokens int64 numbers.

        Raises:
            ValueError: an empty sequence, no sequence, token types for another number of tokens, or output positions
                that `with_outputs` refuses.
        """
        lengths = [len(ids) for ids in input_ids]
        if not lengths or not all(lengths):
            raise ValueError("a packed batch needs at least one sequence, and none of length 0")
        ids = [*chain.from_iterable(input_ids)]
        types = [0] * len(ids) if token_type_ids is None else [*chain.from_iterable(token_type_ids)]
        if len(types) != len(ids):
            raise ValueError(f"token_type_ids has {len(types)} tokens, input_ids {len(ids)}")
        values = ids, [*chain.from_iterable(map(range, lengths))], types
        ids_, positions, types_ = (torch.tensor(part, dtype=torch.int64) for part in values)
        batch = cls(ids_, positions, types_, SequenceBounds.of(lengths), None, [(min(x), max(x)) for x in values])
        return batch if outputs is None else batch.with_outputs(outputs)

    @classmethod
    def from_arrays(
        cls, ids: Ints, lengths: Ints, pair_starts: Ints, outputs: Ints, output_counts: Ints
    ) -> PackedBatch:
        """Pack sequences that lie end to end already. The arrays are int32.

        Args:
            ids: (total_tokens,)
            lengths: (sequences,) tokens of each, none of them 0.
            pair_starts: (sequences,) index of its first token of the second type, or its length.
            outputs: (num_outputs,) ascending output positions within each sequence.
            output_counts: (sequences,) number of output positions of each.

        Returns:
            int32 tensors. That of the token ids shares the memory of `ids`.
        """
        starts = starts_of(lengths)
        rows = np.arange(len(ids), dtype=np.int32)
        positions = rows - np.repeat(starts, lengths)
        types = (positions >= np.repeat(pair_starts, lengths)).astype(np.int32)
        index = outputs + np.repeat(starts, output_counts)
        return cls(
            torch.from_numpy(ids),
            torch.from_numpy(positions),
            torch.from_numpy(types),
            SequenceBounds.of_array(lengths),
            OutputPositions(torch.from_numpy(index), SequenceBounds.of_array(output_counts)),
        )

    def with_outputs(self, positions: Sequence[Sequence[int]]) -> PackedBatch:
        """A batch of the same tokens with other output positions.

        Args:
            positions: ascending output positions within each sequence; a sequence may have none.

        Raises:
            ValueError: a position outside its sequence, a list too few or too many, or a batch without lengths on the
                host.
        """
        lengths = self.lengths
        if lengths is None:
            raise ValueError("this batch has no lengths on the host")
        for length, own in zip(lengths, positions, strict=True):
            if own and not 0 <= min(own) <= max(own) < length:
                raise ValueError(f"output positions {list(own)} exceed a sequence of {length} tokens")
        starts = accumulate(lengths[:-1], initial=0)
        rows = [start + i for start, own in zip(starts, positions, strict=True) for i in own]
        index = torch.tensor(rows, dtype=torch.int64)
        return replace(self, outputs=OutputPositions(index, SequenceBounds.of([len(own) for own in positions])))

    def pad_to_bucket(self) -> PackedBatch:
        """Round the numbers of tokens and of output positions up with rows that belong to no sequence.

        oneDNN compiles a kernel for each number of rows; buckets let batches share kernels. Attention accepts rows of
        no sequence only on a CPU.
        """
        missing = round_up_to_bucket(self.total_tokens) - self.total_tokens
        outputs = self.outputs
        if outputs is not None:
            added = round_up_to_bucket(len(outputs.index)) - len(outputs.index)
            last = self.total_tokens + missing - 1
            outputs = replace(outputs, index=F.pad(outputs.index, (0, added), value=last))
        ids, positions, types = (F.pad(row, (0, missing)) for row in self._token_tensors)
        return PackedBatch(ids, positions, types, self.sequences, outputs)

    @property
    def lengths(self) -> tuple[int, ...] | None:
        """Tokens of each sequence; None in a batch that only a GPU or a traced graph sees."""
        return self.sequences.lengths

    @property
    def cu_seqlens(self) -> Tensor:
        """Cumulative lengths of the sequences, with a leading 0."""
        return self.sequences.cu_seqlens

    @property
    def total_tokens(self) -> int:
        """Number of packed tokens."""
        return self.input_ids.shape[0]

    def to(self, device: torch.device | str, non_blocking: bool = False) -> PackedBatch:
        """Copy to a device. On a CUDA device `lengths` is None.

        Args:
            device: as in `Tensor.to`.
            non_blocking: let the host go on while tensors in page-locked memory are copied.
        """
        ids, positions, types = (part.to(device, non_blocking=non_blocking) for part in self._token_tensors)
        outputs = None if self.outputs is None else self.outputs.to(device, non_blocking)
        return PackedBatch(ids, positions, types, self.sequences.to(device, non_blocking), outputs, self.ranges)

    def check(self, config: BertConfig) -> None:
        """Check that the model has an embedding for each token, position and token type.

        Tensors on a GPU are not read, because that would wait for the device; there `ranges` is checked, if known.
        A traced graph has no check.

        Raises:
            BatchError: a value is out of range; the message names it and the limit.
        """
        if torch.compiler.is_compiling():
            return
        ranges = self.ranges
        if self.input_ids.device.type == "cpu" and self.total_tokens:
            ranges = [tuple(map(int, part.aminmax())) for part in self._token_tensors]
        limits = config.vocab_size, config.max_position_embeddings, config.type_vocab_size
        for name, (low, high), limit in zip(("token id", "position", "token type"), ranges or (), limits, strict=False):
            if name == "position" and high >= limit:
                raise BatchError(f"input has {high + 1} tokens; the model reads at most {limit}")
            if low < 0 or high >= limit:
                raise BatchError(f"{name} {low if low < 0 else high} is out of range; the model has 0 to {limit - 1}")

    @property
    def _token_tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.input_ids, self.position_ids, self.token_type_ids


def round_up_to_bucket(number: int) -> int:
    """The next bucket size: a multiple of 8 up to 64, of 32 up to 256, of 64 up to 1024, then of 128.

    >>> [round_up_to_bucket(n) for n in (1, 64, 65, 257, 1025, 2049)]
    [8, 64, 96, 320, 1152, 2176]
    """
    step = 8 if number <= 64 else 32 if number <= 256 else 64 if number <= 1024 else 128
    return -(-number // step) * step


def ranges(starts: Ints, lengths: Ints) -> Ints:
    """Ranges of integers end to end, given the start and the length of each.

    >>> ranges(np.array([5, 0]), np.array([2, 3])).tolist()
    [5, 6, 0, 1, 2]
    """
    counted: Ints = np.arange(lengths.sum(), dtype=np.int32)
    return counted + np.repeat(starts - starts_of(lengths), lengths)


def starts_of(lengths: Ints) -> Ints:
    """Start of each sequence when they lie end to end.

    >>> starts_of(np.array([2, 3])).tolist()
    [0, 2]
    """
    starts: Ints = lengths.cumsum(dtype=np.int32) - lengths
    return starts
