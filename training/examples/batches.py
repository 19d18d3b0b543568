"""Examples to packed batches of constant shape.

Every training batch has exactly N tokens, at most S sequences and exactly R output positions, with lengths mixed. So
the whole model compiles to one graph, memory is constant, and a CPU needs one kernel per product. Dummy sequences
fill what the examples leave of the N tokens; spare output positions belong to the last sequence and have no label.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model.packing import OutputPositions, PackedBatch, SequenceBounds
from training.examples.masking import Example
from training.examples.pairs import IGNORE_INDEX, Ints

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class BatchShape:
    """Constant shape of the batches of a run."""

    tokens: int
    """N: tokens, dummy sequences included."""
    sequences: int
    """S: rows for [CLS] outputs. The loader puts at most S - 1 examples into a batch."""
    masked: int = 0
    """Room for so many masked positions."""
    max_seqlen: int = 512
    """Upper bound of a sequence's length."""

    @property
    def outputs(self) -> int:
        """R: output positions, one [CLS] per sequence and the masked positions."""
        return self.sequences + self.masked

    @property
    def capacity(self) -> int:
        """Room for so many sequences, dummy sequences of up to `max_seqlen` tokens included."""
        return self.sequences + -(-self.tokens // self.max_seqlen)


@dataclass(frozen=True, slots=True)
class _Batch:
    """What the batches of all stages have in common: all their fields move together."""

    packed: PackedBatch

    @property
    def tokens(self) -> int:
        """Tokens of the batch, dummy sequences included."""
        return self.packed.total_tokens

    def to(self, device: torch.device) -> Self:
        return self._map(lambda value: value.to(device, non_blocking=True))

    def pin_memory(self) -> Self:
        """The batch in page-locked memory, from which a GPU copies without the host waiting."""
        return self._map(lambda value: value.pin_memory())

    def _map(self, change: Callable[[Any], Any]) -> Self:
        return replace(self, **{each.name: change(getattr(self, each.name)) for each in fields(self)})


@dataclass(frozen=True, slots=True)
class PretrainingBatch(_Batch):
    """A packed batch whose outputs are each example's [CLS] and its masked positions."""

    cls_rows: Tensor
    """(S,) rows of [CLS] among the outputs."""
    masked_rows: Tensor
    """(masked,) rows of the masked positions among the outputs."""
    masked_ids: Tensor
    """(masked,) the token at each masked position, IGNORE_INDEX for spare ones."""
    next_labels: Tensor
    """(S,) IS_NEXT, NOT_NEXT or IGNORE_INDEX."""


@dataclass(frozen=True, slots=True)
class LabelledExample:
    """One text or pair with its special tokens."""

    input_ids: Ints
    """(length,)"""
    token_type_ids: Ints
    """(length,)"""
    target: Floats
    """(outputs,) see `training.examples.labelled.LabelledTexts.targets`"""
    truth: Floats
    """(outputs,) the same from the label only."""

    def __len__(self) -> int:
        return len(self.input_ids)


@dataclass(frozen=True, slots=True)
class ClassificationBatch(_Batch):
    """A packed batch whose outputs are each text's [CLS]."""

    targets: Tensor
    """(S, outputs) see `training.examples.labelled.LabelledTexts.targets`; NaN without a text, too."""
    truth: Tensor
    """(S, outputs) the same from the labels only."""


def collate_pretraining(examples: Sequence[Example], shape: BatchShape | None = None) -> PretrainingBatch:
    """Pack examples, longest first, so that attention on a CPU pads little. Without a shape the batch is as large as
    its examples."""
    examples = sorted(examples, key=lambda example: -len(example))
    masked = np.array([len(example.masked_ids) for example in examples])
    if shape is None:
        longest = len(examples[0])
        shape = BatchShape(sum(map(len, examples)), len(examples), int(masked.sum()), longest)
    packed = _pack(examples, [np.append(0, example.masked_positions) for example in examples], shape)
    cls_rows = np.cumsum(masked + 1) - masked - 1
    is_masked = np.ones(int(masked.sum()) + len(examples), dtype=bool)
    is_masked[cls_rows] = False
    spare_sequences = shape.sequences - len(examples)
    spare = np.arange(len(is_masked), shape.outputs)  # outputs without a label
    ids = np.concatenate([example.masked_ids for example in examples])
    labels = np.array([example.kind.label for example in examples])
    return PretrainingBatch(
        packed=packed,
        cls_rows=torch.from_numpy(np.concatenate([cls_rows, spare[:spare_sequences]])),
        masked_rows=torch.from_numpy(np.concatenate([is_masked.nonzero()[0], spare[spare_sequences:]])),
        masked_ids=torch.from_numpy(_padded(ids, shape.masked)),
        next_labels=torch.from_numpy(_padded(labels, shape.sequences)),
    )


def collate_classification(examples: Sequence[LabelledExample], shape: BatchShape | None = None) -> ClassificationBatch:
    """Pack texts, longest first. Without a shape, the batch is as large as its texts."""
    examples = sorted(examples, key=lambda example: -len(example))
    shape = shape or BatchShape(sum(map(len, examples)), len(examples), max_seqlen=len(examples[0]))
    packed = _pack(examples, [np.zeros(1, np.int64)] * len(examples), shape)
    rows = np.stack([(example.target, example.truth) for example in examples], axis=1)  # (2, texts, outputs)
    spare = np.full((2, shape.sequences - len(examples), rows.shape[2]), np.nan, np.float32)
    targets, truth = torch.from_numpy(np.concatenate([rows, spare], axis=1))
    return ClassificationBatch(packed, targets, truth)


def _pack(examples: Sequence[Example | LabelledExample], outputs: Sequence[Ints], shape: BatchShape) -> PackedBatch:
    """Lay examples end to end in a batch of constant shape.

    Args:
        outputs: ascending output positions of each example.
    """
    spare = shape.tokens - sum(map(len, examples))
    dummies = [np.zeros(min(shape.max_seqlen, spare - at), np.int64) for at in range(0, spare, shape.max_seqlen)]
    input_ids = [*(example.input_ids for example in examples), *dummies]
    token_type_ids = [*(example.token_type_ids for example in examples), *dummies]
    outputs = [*outputs, *(dummy[:0] for dummy in dummies)]
    lengths = np.array([len(ids) for ids in input_ids])
    starts = np.cumsum(lengths) - lengths
    positions = np.arange(shape.tokens) - np.repeat(starts, lengths)
    index = np.concatenate([rows + start for rows, start in zip(outputs, starts, strict=True)])
    index = np.concatenate([index, np.full(shape.outputs - len(index), starts[-1])])
    bounds = SequenceBounds.of(lengths.tolist(), capacity=shape.capacity, max_seqlen=shape.max_seqlen)
    return PackedBatch(
        torch.from_numpy(np.concatenate(input_ids)),
        torch.from_numpy(positions),
        torch.from_numpy(np.concatenate(token_type_ids)),
        bounds,
        OutputPositions(torch.from_numpy(index), _output_bounds([len(rows) for rows in outputs], shape)),
    )


def _output_bounds(counts: Sequence[int], shape: BatchShape) -> SequenceBounds:
    """Outputs of each sequence. On the device, spare outputs belong to the last sequence, because a GPU leaves outputs
    of no sequence unwritten; on the host they belong to none, so a CPU computes no attention for them.

    `max_seqlen` is R in all batches: the model would be compiled again for another bound.
    """
    bounds = SequenceBounds.of(counts, capacity=shape.capacity, max_seqlen=shape.outputs)
    cu_seqlens = bounds.cu_seqlens.clone()
    cu_seqlens[len(counts) :] = shape.outputs
    return replace(bounds, cu_seqlens=cu_seqlens)


def _padded(values: Ints, length: int) -> Ints:
    return np.concatenate([values, np.full(length - len(values), IGNORE_INDEX)])
