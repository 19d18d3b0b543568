"""Examples to the packed tensors that the model takes, with what it should have answered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model.packing import PackedBatch, Reads, Segments
from training.examples.pairs import IGNORE_INDEX, Example, Floats

_Ids = NDArray[np.signedinteger]


@dataclass(frozen=True, slots=True)
class PretrainingBatch:
    """A packed batch that reads each example's [CLS] and masked positions."""

    packed: PackedBatch
    labelled: int
    """How many examples have a next-sentence label; kept on the host"""
    cls_rows: Tensor
    """Rows of [CLS] among the reads: (batch,)"""
    masked_rows: Tensor
    """Rows of the masked positions among the reads: (num_masked,)"""
    masked_ids: Tensor
    """What stood at each masked position: (num_masked,)"""
    next_labels: Tensor
    """IS_NEXT, NOT_NEXT or IGNORE_INDEX: (batch,)"""
    kinds: Tensor
    """Index into `examples.KINDS`: (batch,)"""

    @property
    def tokens(self) -> int:
        return self.packed.total_tokens

    @property
    def counts(self) -> tuple[int, int]:
        """Masked tokens and labelled pairs: what a step's losses are means over."""
        return len(self.masked_ids), self.labelled

    def to(self, device: torch.device) -> PretrainingBatch:
        rest = (tensor.to(device, non_blocking=True) for tensor in self._tensors())
        return PretrainingBatch(self.packed.to(device, non_blocking=True), self.labelled, *rest)

    def pin_memory(self) -> PretrainingBatch:
        """The same in page-locked memory, from where a GPU copies without the host waiting."""
        rest = (tensor.pin_memory() for tensor in self._tensors())
        return PretrainingBatch(_pinned(self.packed), self.labelled, *rest)

    def _tensors(self) -> tuple[Tensor, ...]:
        return self.cls_rows, self.masked_rows, self.masked_ids, self.next_labels, self.kinds


def collate_pretraining(examples: Sequence[Example]) -> PretrainingBatch:
    """Pack examples, longest first, so that attention on a CPU pads little."""
    examples = sorted(examples, key=lambda e: -len(e.input_ids))
    packed, starts = pack([e.input_ids for e in examples], [e.token_type_ids for e in examples])
    masked = np.array([len(e.masked_positions) for e in examples])
    reads = [np.append(0, e.masked_positions) + at for e, at in zip(examples, starts, strict=True)]
    cls_rows = np.cumsum(masked + 1) - masked - 1
    is_masked = np.ones(int(masked.sum()) + len(examples), dtype=bool)
    is_masked[cls_rows] = False
    index = torch.from_numpy(np.concatenate(reads))
    return PretrainingBatch(
        packed=PackedBatch(
            packed.input_ids,
            packed.position_ids,
            packed.token_type_ids,
            packed.segments,
            Reads(index, Segments.of((masked + 1).tolist())),
        ),
        cls_rows=torch.from_numpy(cls_rows),
        masked_rows=torch.from_numpy(is_masked.nonzero()[0]),
        masked_ids=torch.from_numpy(np.concatenate([e.masked_ids for e in examples])),
        next_labels=torch.tensor([e.next_label for e in examples]),
        kinds=torch.tensor([e.kind for e in examples]),
        labelled=sum(e.next_label != IGNORE_INDEX for e in examples),
    )


def pack(input_ids: Sequence[_Ids], token_type_ids: Sequence[_Ids]) -> tuple[PackedBatch, NDArray[np.int64]]:
    """Lay arrays end to end; also the first row of each sequence: (batch,)."""
    lengths = np.array([len(ids) for ids in input_ids])
    starts = np.cumsum(lengths) - lengths
    positions = np.arange(int(lengths.sum())) - np.repeat(starts, lengths)
    batch = PackedBatch(
        torch.from_numpy(np.concatenate(input_ids).astype(np.int64)),
        torch.from_numpy(positions),
        torch.from_numpy(np.concatenate(token_type_ids).astype(np.int64)),
        Segments.of(lengths.tolist()),
    )
    return batch, starts


def _pinned(packed: PackedBatch) -> PackedBatch:
    def pinned(segments: Segments) -> Segments:
        return Segments(segments.lengths, segments.cu_seqlens.pin_memory())

    reads = packed.reads
    return PackedBatch(
        packed.input_ids.pin_memory(),
        packed.position_ids.pin_memory(),
        packed.token_type_ids.pin_memory(),
        pinned(packed.segments),
        None if reads is None else Reads(reads.index.pin_memory(), pinned(reads.segments)),
    )


def cls_reads(packed: PackedBatch, starts: NDArray[np.int64]) -> PackedBatch:
    """The same batch, reading each sequence's [CLS] only."""
    reads = Reads(torch.from_numpy(starts), Segments.of([1] * len(starts)))
    return PackedBatch(packed.input_ids, packed.position_ids, packed.token_type_ids, packed.segments, reads)


@dataclass(frozen=True, slots=True)
class ClassificationBatch:
    """A packed batch that reads each text's [CLS]."""

    packed: PackedBatch
    targets: Tensor
    """Probability of each label, 1 for one that is known: (batch, num_labels)"""

    @property
    def tokens(self) -> int:
        return self.packed.total_tokens

    @property
    def counts(self) -> tuple[int, ...]:
        """Texts: what a step's losses are means over."""
        return (len(self.targets),)

    @property
    def labels(self) -> Tensor:
        """The most probable ones: (batch,)"""
        return self.targets.argmax(1)

    def to(self, device: torch.device) -> ClassificationBatch:
        return ClassificationBatch(
            self.packed.to(device, non_blocking=True),
            self.targets.to(device, non_blocking=True),
        )


def collate_classification(
    input_ids: Sequence[_Ids],
    token_type_ids: Sequence[_Ids],
    targets: Sequence[Floats],
) -> ClassificationBatch:
    """Pack texts, longest first."""
    order = sorted(range(len(targets)), key=lambda i: -len(input_ids[i]))
    packed, starts = pack([input_ids[i] for i in order], [token_type_ids[i] for i in order])
    return ClassificationBatch(
        cls_reads(packed, starts),
        torch.from_numpy(np.stack([targets[i] for i in order])),
    )
