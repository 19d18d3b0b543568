"""Packed batches against the examples they were made from."""

from __future__ import annotations

import numpy as np
import torch

from model.tokenizer import Tokenizer
from tests.training.texts import MemoryText, ribbon_text
from training.examples.batches import collate_classification, collate_pretraining
from training.examples.pairs import IGNORE_INDEX, Example, ExampleMaker, Vocabulary
from training.recipe import ExamplesConfig


def made(tokenizer: Tokenizer, count: int = 12) -> list[Example]:
    config = ExamplesConfig(sequence_length=24)
    maker = ExampleMaker(ribbon_text(tokenizer), Vocabulary.of(tokenizer), config, 3)
    return [maker(0, i) for i in range(count)]


def test_reads_are_cls_and_masks_of_every_example(tokenizer: Tokenizer) -> None:
    examples = made(tokenizer)
    batch = collate_pretraining(examples)
    assert batch.packed.outputs is not None
    read_ids = batch.packed.input_ids[batch.packed.outputs.index]
    assert (read_ids[batch.cls_rows] == tokenizer.cls_id).all()
    ordered = sorted(examples, key=lambda e: -len(e.input_ids))
    masked = np.concatenate([e.input_ids[e.masked_positions] for e in ordered])
    assert read_ids[batch.masked_rows].tolist() == masked.tolist()
    assert batch.masked_ids.tolist() == np.concatenate([e.masked_ids for e in ordered]).tolist()
    assert len(batch.cls_rows) + len(batch.masked_rows) == len(read_ids)


def test_longest_comes_first_with_its_label(tokenizer: Tokenizer) -> None:
    examples = made(tokenizer)
    batch = collate_pretraining(examples)
    assert list(batch.packed.lengths) == sorted(batch.packed.lengths, reverse=True)
    by_length = sorted(examples, key=lambda e: -len(e.input_ids))
    assert batch.next_labels.tolist() == [e.next_label for e in by_length]
    assert batch.tokens == sum(len(e.input_ids) for e in examples)
    labelled = sum(e.next_label != IGNORE_INDEX for e in examples)
    assert batch.counts == (sum(len(e.masked_ids) for e in examples), labelled)


def test_positions_start_anew_in_every_sequence(tokenizer: Tokenizer) -> None:
    batch = collate_pretraining(made(tokenizer)).packed
    for first, last in zip(batch.cu_seqlens[:-1].tolist(), batch.cu_seqlens[1:].tolist(), strict=True):
        assert batch.position_ids[first:last].tolist() == list(range(last - first))


def test_a_document_of_one_sentence_makes_a_batch_without_labels(tokenizer: Tokenizer) -> None:
    text = MemoryText([[[10, 11, 12]], [[13, 14]]])
    maker = ExampleMaker(text, Vocabulary.of(tokenizer), ExamplesConfig(sequence_length=16), 1)
    batch = collate_pretraining([maker(0, 0), maker(0, 1)])
    assert batch.counts == (2, 0)
    assert batch.next_labels.tolist() == [IGNORE_INDEX] * 2


def test_classification_batch_reads_cls_and_keeps_labels_with_their_texts() -> None:
    ids = [np.array([2, 7, 3]), np.array([2, 8, 9, 3]), np.array([2, 3])]
    batch = collate_classification(ids, [np.zeros_like(i) for i in ids], list(np.eye(3, dtype=np.float32)))
    assert batch.packed.lengths == (4, 3, 2)
    assert batch.targets.tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 1]]
    assert batch.labels.tolist() == [1, 0, 2]
    assert batch.packed.outputs is not None
    assert (batch.packed.input_ids[batch.packed.outputs.index] == 2).all()
    assert batch.counts == (3,)


def test_moving_keeps_every_figure(tokenizer: Tokenizer) -> None:
    batch = collate_pretraining(made(tokenizer))
    moved = batch.to(torch.device("cpu"))
    assert moved.counts == batch.counts
    assert torch.equal(moved.packed.input_ids, batch.packed.input_ids)
    assert torch.equal(moved.kinds, batch.kinds)
