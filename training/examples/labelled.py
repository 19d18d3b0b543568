"""The examples of a classifier: labelled texts, each as one text or as a pair."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.config import Truncation
from model.tokenizer import Tokenizer, kept_ends, truncate_longest_first
from training.corpus.encode import NO_LABEL, ShardEncoder, target_rows
from training.corpus.parts import Part
from training.corpus.reader import PreparedText, TextWindow
from training.corpus.shards import SYNTHETIC
from training.examples.batches import (
    BatchShape,
    ClassificationBatch,
    Floats,
    LabelledExample,
    best_fit,
    collate_classification,
)
from training.examples.pairs import Ints, Text
from training.sources.documents import Document

EVALUATION_TOKENS = 8192
"""Tokens per forward pass of an evaluation."""

TRUNCATION: Truncation = "head_tail"
"""Texts that are too long keep their beginning and end, because reviews conclude at their end (Sun et al. 2019, section
5.3.1). The exported checkpoint has this setting for the service."""


@dataclass(frozen=True, slots=True)
class Fold:
    """One of several parts of the texts. All texts of a group are in the same part."""

    number: int
    """Number of the part, from 0."""
    count: int

    def holds(self, groups: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """(documents,) whether each document is in this part, by the column `groups`."""
        return groups % np.uint64(self.count) == self.number


@dataclass(frozen=True, slots=True)
class LabelledTexts:
    """Labelled documents, ready to become examples."""

    text: Text
    documents: Ints
    """Numbers of the chosen documents; the other fields have a row for each document of the text."""
    targets: Floats
    """(documents, outputs) targets of training: the probability of each label, or the number. NaN without a label."""
    read: Sequence[str]
    """How each document is read: `text`, `pair` or `both`."""
    tokenizer: Tokenizer
    max_length: int
    """Tokens of an example, special tokens included."""
    domains: NDArray[np.bytes_] | None = None
    """(documents,) the domain of each, empty without one; None if none is known."""

    def __len__(self) -> int:
        return len(self.documents)

    def readings(self, document: int) -> list[bool]:
        """The ways to read a document: as one text (False), as a pair (True). A pair with an empty text is one text."""
        columns = self._columns(document)
        read = self.read[document]
        if read == "text" or len(columns) != 2 or not all(map(len, columns)):
            return [False]
        return [True] if read == "pair" else [False, True]

    def example(self, document: int, *, as_pair: bool) -> LabelledExample:
        """`[CLS] text [SEP]` or `[CLS] text [SEP] text_pair [SEP]`, truncated to `max_length`."""
        columns = self._columns(document)
        halves = columns if as_pair else [np.concatenate(columns)]
        keeps = truncate_longest_first([len(half) for half in halves], self.max_length - 1 - len(halves))
        parts, types = [np.array([self.tokenizer.cls_id])], [np.zeros(1, np.int64)]
        for segment, (half, keep) in enumerate(zip(halves, keeps, strict=True)):
            head, tail = kept_ends(len(half), keep, TRUNCATION)
            kept = np.concatenate([half[:head], half[tail:], [self.tokenizer.sep_id]])
            parts.append(kept)
            types.append(np.full(len(kept), segment * self.tokenizer.second_type_id))
        ids = np.concatenate(parts).astype(np.int64)
        return LabelledExample(ids, np.concatenate(types).astype(np.int64), self.targets[document])

    def batches(
        self, chosen: Sequence[int] | None = None, tokens: int = EVALUATION_TOKENS
    ) -> Iterator[tuple[list[int], ClassificationBatch]]:
        """Batches of documents in all their readings, grouped by similar length: the documents and the batch of each.

        Args:
            chosen: documents; `documents` by default.
            tokens: maximum tokens of a batch, unless one example has more.
        """
        examples = [
            (document, self.example(document, as_pair=as_pair))
            for document in (self.documents.tolist() if chosen is None else chosen)
            for as_pair in self.readings(document)
        ]
        examples.sort(key=lambda item: -len(item[1]))
        at = 0
        while at < len(examples):
            size = max(1, tokens // len(examples[at][1]))
            batch = examples[at : at + size]
            at += size
            yield [document for document, _ in batch], collate_classification([example for _, example in batch])

    def _columns(self, document: int) -> list[Ints]:
        """Token ids of each text column; prepared labelled text stores a column as one sentence."""
        text = self.text
        first, last = int(text.document_starts[document]), int(text.document_starts[document + 1])
        starts = text.sentence_starts[first : last + 1].tolist()
        return [text.tokens(a, b).astype(np.int64) for a, b in itertools.pairwise(starts)]


def encode_texts(
    documents: Sequence[Document], targets: Floats, read: str, tokenizer: Tokenizer, max_length: int
) -> LabelledTexts:
    """Documents in memory, all read in the same way; see `LabelledTexts`."""
    shard = ShardEncoder(tokenizer).encode_labelled(documents)
    rows = np.arange(len(documents))
    return LabelledTexts(shard, rows, targets, [read] * len(documents), tokenizer, max_length)


def labelled_window(
    window: TextWindow, documents: Ints, tokenizer: Tokenizer, max_length: int, teacher_weight: float | None = None
) -> LabelledTexts:
    """Some documents of a window of prepared labelled text. With a teacher, targets are a mixture of the true label and
    `teacher_weight` of its probabilities."""
    targets = target_rows(window.column("labels"), len(window.text.labels))
    if teacher_weight is not None:
        probabilities = window.column("target_probs")
        mixed = (1 - teacher_weight) * targets + teacher_weight * probabilities
        mixed = np.where(np.isnan(probabilities), targets, mixed)
        targets = np.where(np.isnan(targets), probabilities, mixed).astype(np.float32)
    read = [shard.read for shard in window.shards for _ in range(shard.documents)]
    return LabelledTexts(window, documents, targets, read, tokenizer, max_length, window.column("domains"))


def pass_size(
    text: PreparedText, max_length: int, left_out: Fold | None = None, *, with_unlabelled: bool = False
) -> tuple[int, int]:
    """Documents and tokens of one pass over prepared labelled text; see `document_lengths`.

    Args:
        left_out: documents that are not counted.
        with_unlabelled: whether documents without a label are counted.
    """
    documents = tokens = 0
    for window in text.windows(0, 0):
        lengths = document_lengths(window, max_length)[trained_on(window, left_out, with_unlabelled=with_unlabelled)]
        documents += len(lengths)
        tokens += int(lengths.sum())
    return documents, tokens


def document_lengths(window: TextWindow, max_length: int) -> Ints:
    """(documents,) tokens of each document, special tokens included: of its pair if it may be read as one."""
    ends, shards = window.sentence_starts[window.document_starts], window.shards
    special = np.repeat([2 + (shard.read != "text") for shard in shards], [shard.documents for shard in shards])
    return np.minimum(np.diff(ends) + special, max_length)


def is_unlabelled(labels: NDArray[Any]) -> NDArray[np.bool_]:
    """(documents,) whether each document lacks a label, by the column `labels`."""
    found: NDArray[np.bool_] = labels == NO_LABEL if labels.ndim == 1 else np.isnan(labels[:, 0])
    return found


def trained_on(
    window: TextWindow, left_out: Fold | None = None, *, with_unlabelled: bool = True, pass_number: int = 0
) -> Ints:
    """Rows of the documents of a window with `Part.TRAIN`, without those of `left_out`. Each pass has another
    copy of a synthetic text, in turn."""
    kept = window.column("parts") == Part.TRAIN
    ends = itertools.accumulate(shard.documents for shard in window.shards)
    for shard, end in zip(window.shards, ends, strict=True):
        if shard.use == SYNTHETIC:
            copies = int(shard.source)
            kept[end - shard.documents : end] &= np.arange(shard.documents) % copies == pass_number % copies
    if not with_unlabelled:
        kept &= ~is_unlabelled(window.column("labels"))
    if left_out is not None:
        kept &= ~left_out.holds(window.column("groups"))
    return kept.nonzero()[0]


class LabelledWindow:
    """The batches of one window of text, which hold each of its documents once. Implements
    `training.examples.loader.Window`."""

    def __init__(self, texts: LabelledTexts, lengths: Ints, shape: BatchShape, key: tuple[int, ...]) -> None:
        self.texts, self.shape, self.key = texts, shape, key
        rng = np.random.default_rng(key)
        self.order = rng.permutation(texts.documents)
        self._batches = best_fit(lengths[self.order], shape)
        rng.shuffle(self._batches)  # the last ones are not full

    def __len__(self) -> int:
        return len(self._batches)

    def batch(self, number: int, progress: float) -> ClassificationBatch:
        """Make a batch of documents, each in one of its readings."""
        del progress
        rng = np.random.default_rng((*self.key, 1 + number))  # numpy ignores zeros at the end
        examples = []
        for document in self.order[self._batches[number]].tolist():
            readings = self.texts.readings(document)
            examples.append(self.texts.example(document, as_pair=readings[int(rng.integers(len(readings)))]))
        return collate_classification(examples, self.shape)


@dataclass
class LabelledStream:
    """The batches of a fine-tuning run. Implements `training.examples.loader.BatchStream`."""

    text: PreparedText
    tokenizer: Tokenizer
    max_length: int
    teacher_weight: float | None
    """Weight of the teacher's probabilities; None without a teacher."""
    seed: int
    micro_batch_tokens: int
    left_out: Fold | None = None
    """Documents that are not trained on."""

    def __post_init__(self) -> None:
        self._with_unlabelled = self.teacher_weight is not None  # without a teacher, they have no target
        self.documents, tokens = pass_size(
            self.text, self.max_length, self.left_out, with_unlabelled=self._with_unlabelled
        )
        """Documents of one pass."""
        sequences = int(2 * self.micro_batch_tokens * self.documents / tokens) + 8
        self.shape = BatchShape(self.micro_batch_tokens, sequences, max_seqlen=self.max_length)
        self.tokens = self.micro_batch_tokens * sum(map(len, self._pass(0)))
        """Tokens of the batches of one pass, padding included."""

    @property
    def texts_per_batch(self) -> float:
        """Mean number of texts in a micro-batch."""
        return self.micro_batch_tokens * self.documents / self.tokens

    def windows(self) -> Iterator[LabelledWindow]:
        """The windows of all passes over the texts, one pass after another."""
        return itertools.chain.from_iterable(map(self._pass, itertools.count()))

    def _pass(self, pass_number: int) -> Iterator[LabelledWindow]:
        for number, window in enumerate(self.text.windows(self.seed, pass_number)):
            kept = trained_on(window, self.left_out, with_unlabelled=self._with_unlabelled, pass_number=pass_number)
            texts = labelled_window(window, kept, self.tokenizer, self.max_length, self.teacher_weight)
            lengths = document_lengths(window, self.max_length)
            yield LabelledWindow(texts, lengths, self.shape, (self.seed, pass_number, number))
