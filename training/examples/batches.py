"""Packs examples into batches of constant shape.

Every training batch has exactly N tokens, at most S sequences and exactly R output positions, with lengths mixed. So
the whole model compiles to one graph, memory is constant, and a CPU needs one kernel per product. Dummy sequences
fill what the examples leave of the N tokens; spare output positions belong to empty sequences and have no label.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model.packing import OutputPositions, PackedBatch, SequenceBounds
from training.examples.masking import Examples
from training.examples.pairs import IGNORE_INDEX, LABELS, Ints

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class BatchShape:
    """Constant shape of the batches of a run."""

    tokens: int
    """N: tokens, dummy sequences included."""
    sequences: int
    """S: rows for [CLS] outputs. The loader puts at most S - 1 examples into a batch."""
    masked: int = 0
    """M: room for masked positions."""
    max_seqlen: int = 512
    """Upper bound of a sequence's length."""
    max_outputs: int = 1
    """Upper bound of a sequence's output positions."""

    @property
    def outputs(self) -> int:
        """R: output positions, one [CLS] per sequence and the masked positions."""
        return self.sequences + self.masked

    @property
    def capacity(self) -> int:
        """C: room for sequences: for examples, for dummy sequences of up to `max_seqlen` tokens, and for empty ones, to
        which spare outputs belong."""
        return self.sequences + -(-self.tokens // self.max_seqlen) + -(-self.masked // self.max_outputs)


@dataclass(frozen=True, slots=True)
class _Batch:
    """Base of the batches of all stages. All numbers are in one tensor, so a worker sends one and a GPU gets one copy.
    It is split on the device, within the compiled graph."""

    data: Tensor
    """int32, 1-dimensional: the fields of `packed` and of the stage, end to end."""
    shape: BatchShape
    lengths: tuple[int, ...] | None
    """Tokens of each sequence; None on a GPU, where kernels read `cu_seqlens`."""
    output_lengths: tuple[int, ...] | None
    """Output positions of each sequence. Spare ones belong to none, so that a CPU computes no attention for them."""

    @property
    def packed(self) -> PackedBatch:
        """Tokens, their positions and types, and the output positions."""
        shape = self.shape
        tokens, bounds = shape.tokens, shape.capacity + 1
        input_ids, positions, types, sequences, index, outputs, _ = self.data.split(
            [tokens, tokens, tokens, bounds, shape.outputs, bounds, self.data.shape[0] - _packed_size(shape)]
        )
        return PackedBatch(
            input_ids,
            positions,
            types,
            SequenceBounds(self.lengths, sequences, shape.max_seqlen),
            OutputPositions(index, SequenceBounds(self.output_lengths, outputs, shape.max_outputs)),
        )

    def to(self, device: torch.device) -> Self:
        data = self.data.to(device, non_blocking=True)
        if device.type == "cuda":
            return replace(self, data=data, lengths=None, output_lengths=None)
        return replace(self, data=data)

    def pin_memory(self) -> Self:
        """The batch in page-locked memory, from which a GPU copies without the host waiting."""
        return replace(self, data=self.data.pin_memory())


def _packed_size(shape: BatchShape) -> int:
    return 3 * shape.tokens + 2 * (shape.capacity + 1) + shape.outputs


@dataclass(frozen=True, slots=True)
class PretrainingBatch(_Batch):
    """A packed batch whose outputs are each example's [CLS] and its masked positions."""

    @property
    def cls_rows(self) -> Tensor:
        """(S,) rows of [CLS] among the outputs."""
        return self._fields()[0]

    @property
    def masked_rows(self) -> Tensor:
        """(M,) rows of the masked positions among the outputs."""
        return self._fields()[1]

    @property
    def masked_ids(self) -> Tensor:
        """(M,) int64: the token at each masked position, IGNORE_INDEX for spare ones."""
        return self._fields()[2].long()

    @property
    def next_labels(self) -> Tensor:
        """(S,) int64: IS_NEXT, NOT_NEXT or IGNORE_INDEX."""
        return self._fields()[3].long()

    def _fields(self) -> Sequence[Tensor]:
        sequences, masked = self.shape.sequences, self.shape.masked
        return self.data[_packed_size(self.shape) :].split([sequences, masked, masked, sequences])


@dataclass(frozen=True, slots=True)
class LabelledExample:
    """One text or pair with its special tokens."""

    input_ids: Ints
    """(length,)"""
    token_type_ids: Ints
    """(length,)"""
    target: Floats
    """(outputs,) see `training.examples.labelled.LabelledTexts.targets`"""

    def __len__(self) -> int:
        return len(self.input_ids)


@dataclass(frozen=True, slots=True)
class ClassificationBatch(_Batch):
    """A packed batch whose outputs are each text's [CLS]."""

    @property
    def targets(self) -> Tensor:
        """(S, outputs) see `training.examples.labelled.LabelledTexts.targets`; NaN without a text, too."""
        return self.data[_packed_size(self.shape) :].view(torch.float32).view(self.shape.sequences, -1)


def batch_bounds(lengths: Ints, shape: BatchShape, min_cut: int | None = None) -> list[int]:
    """The first example of each batch, and the number of examples. A batch is filled until the next example does not
    fit.

    Args:
        lengths: (examples,) tokens of each.
        min_cut: if this leaves room for `min_cut` tokens or more, the next example is in the batch too, to be cut.
    """
    ends, bounds = [0, *lengths.cumsum().tolist()], [0]
    while (at := bounds[-1]) < len(lengths):
        room = ends[at] + shape.tokens
        stop = bisect.bisect_right(ends, room, at) - 1
        if min_cut is not None and room - ends[stop] >= min_cut:
            stop += 1
        bounds.append(min(max(stop, at + 1), at + shape.sequences - 1, len(lengths)))
    return bounds


def best_fit(lengths: Ints, shape: BatchShape) -> list[list[int]]:
    """The texts of each batch. One text after another goes into the batch in which it leaves the least room. Shuffled
    texts leave 0.2 to 3% of a batch empty, and batches stay random samples; sorted by length, short texts would meet in
    the last batches, which `shape.sequences` limits.

    Args:
        lengths: (texts,) tokens of each.
    """
    batches: list[list[int]] = []
    rooms: list[tuple[int, int, int]] = []  # sorted: free tokens, last text (negative) and number of a batch
    for text, length in enumerate(lengths.tolist()):
        at = bisect.bisect_left(rooms, (length, -text))
        if at < len(rooms):
            room, _, number = rooms.pop(at)
        else:
            room, number = shape.tokens, len(batches)
            batches.append([])
        batches[number].append(text)
        if room > length and len(batches[number]) < shape.sequences - 1:
            bisect.insort(rooms, (room - length, -text, number))
    return batches


def collate_pretraining(examples: Examples, shape: BatchShape | None = None) -> PretrainingBatch:
    """Pack examples. The default shape is as small as the examples allow."""
    masked, lengths = examples.masked, examples.lengths
    if shape is None:
        outputs = 1 + int(masked.max())
        shape = BatchShape(int(lengths.sum()), len(lengths), int(masked.sum()), int(lengths.max()), outputs)
    index = np.sort(np.concatenate([lengths.cumsum() - lengths, examples.masked_positions]))
    cls_rows = np.cumsum(masked + 1) - masked - 1
    masked_rows = np.delete(np.arange(len(index)), cls_rows)
    spare = np.arange(len(index), shape.outputs)  # outputs without a label
    spare_sequences = shape.sequences - len(examples)
    others = [
        np.concatenate([cls_rows, spare[:spare_sequences]]),
        np.concatenate([masked_rows, spare[spare_sequences:]]),
        _padded(examples.masked_ids, shape.masked),
        _padded(LABELS[examples.kinds], shape.sequences),
    ]
    ids, types = examples.input_ids, examples.token_type_ids
    return PretrainingBatch(*_pack(ids, types, lengths, index, masked + 1, shape, others))


def collate_classification(examples: Sequence[LabelledExample], shape: BatchShape | None = None) -> ClassificationBatch:
    """Pack texts, longest first, so that attention on a CPU pads little. The default shape is as small as the texts
    allow."""
    examples = sorted(examples, key=lambda example: -len(example))
    lengths = np.array([len(example) for example in examples])
    shape = shape or BatchShape(int(lengths.sum()), len(examples), max_seqlen=len(examples[0]))
    targets = np.full((shape.sequences, len(examples[0].target)), np.nan, np.float32)
    for row, example in enumerate(examples):
        targets[row] = example.target
    ids, types = (np.concatenate([getattr(e, name) for e in examples]) for name in ("input_ids", "token_type_ids"))
    others = [targets.view(np.int32).ravel()]  # their bits
    index, counts = lengths.cumsum() - lengths, np.ones_like(lengths)
    return ClassificationBatch(*_pack(ids, types, lengths, index, counts, shape, others))


def _pack(
    input_ids: Ints,
    token_type_ids: Ints,
    lengths: Ints,
    index: Ints,
    counts: Ints,
    shape: BatchShape,
    others: Sequence[NDArray[np.signedinteger]],
) -> tuple[Tensor, BatchShape, tuple[int, ...], tuple[int, ...]]:
    """The fields of a batch of constant shape.

    Args:
        lengths: (examples,) tokens of each.
        index: (outputs,) positions of the outputs.
        counts: (examples,) outputs of each.
        others: fields of the stage.
    """
    spare = np.zeros(shape.tokens - len(input_ids), np.int64)
    dummies = np.diff(np.append(np.arange(0, len(spare), shape.max_seqlen), len(spare)))
    lengths, counts = np.append(lengths, dummies), np.append(counts, np.zeros_like(dummies))
    starts = lengths.cumsum() - lengths
    positions = np.arange(shape.tokens) - np.repeat(starts, lengths)
    index = np.append(index, np.full(shape.outputs - len(index), starts[-1]))
    tokens = [input_ids, spare, positions, token_type_ids, spare]
    fields = [*tokens, _starts(lengths, shape), index, _output_starts(counts, shape), *others]
    data = np.concatenate(fields, dtype=np.int32, casting="same_kind")
    return torch.from_numpy(data), shape, tuple(lengths.tolist()), tuple(counts.tolist())


def _starts(lengths: Ints, shape: BatchShape) -> Ints:
    """(C + 1,) start of each sequence, and the end. Missing sequences are empty."""
    return np.append(0, np.pad(lengths, (0, shape.capacity - len(lengths))).cumsum())


def _output_starts(counts: Ints, shape: BatchShape) -> Ints:
    """(C + 1,) start of each sequence's outputs, and the end.

    Spare outputs belong to the missing sequences, at most `max_outputs` to each. A GPU leaves outputs of no sequence
    unwritten, and starts blocks for the largest number in each sequence (Dao-AILab/flash-attention#2521).
    """
    missing = np.arange(shape.capacity - len(counts))
    spare = shape.outputs - counts.sum()
    return np.append(0, np.append(counts, (spare + missing) // max(1, len(missing))).cumsum())


def _padded(values: Ints, length: int) -> Ints:
    return np.concatenate([values, np.full(length - len(values), IGNORE_INDEX)])
