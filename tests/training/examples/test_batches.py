"""Packed batches compared with the examples they were made from."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from model.tokenizer import Tokenizer
from tests.training.texts import MemoryText, random_text
from training.examples.batches import (
    BatchShape,
    LabelledExample,
    PretrainingBatch,
    best_fit,
    collate_classification,
    collate_pretraining,
)
from training.examples.masking import Examples, Vocabulary, mask
from training.examples.pairs import IGNORE_INDEX, LABELS, Text, sample_pairs
from training.recipe import ExamplesConfig


def made(tokenizer: Tokenizer, count: int = 12, text: Text | None = None) -> Examples:
    text, rng = text or random_text(tokenizer), np.random.default_rng(3)
    pairs = sample_pairs(text, ExamplesConfig(short_length=24, long_fraction=0), rng)[:count]
    return mask(text, pairs, 0.15, Vocabulary.of(tokenizer), rng)


def output_ids(batch: PretrainingBatch) -> torch.Tensor:
    """(outputs,) input ids at the output positions."""
    assert batch.packed.outputs is not None
    return batch.packed.input_ids[batch.packed.outputs.index]


@pytest.mark.parametrize("shape", [None, BatchShape(384, 20, 80, max_seqlen=24, max_outputs=5)])
def test_collate_pretraining_outputs_are_cls_and_masks_of_every_example(
    tokenizer: Tokenizer, shape: BatchShape | None
) -> None:
    examples = made(tokenizer)
    batch = collate_pretraining(examples, shape)
    ids, count = output_ids(batch), len(examples)
    assert (ids[batch.cls_rows[:count]] == tokenizer.cls_id).all()
    shown, hidden = examples.input_ids[examples.masked_positions], examples.masked_ids
    assert ids[batch.masked_rows[: len(shown)]].tolist() == shown.tolist()
    assert batch.masked_ids[: len(hidden)].tolist() == hidden.tolist()
    assert batch.next_labels[:count].tolist() == [LABELS[kind] for kind in examples.kinds]
    assert sorted([*batch.cls_rows.tolist(), *batch.masked_rows.tolist()]) == list(range(len(ids)))


def test_collate_pretraining_spare_outputs_have_no_label(tokenizer: Tokenizer) -> None:
    examples = made(tokenizer)
    batch = collate_pretraining(examples, BatchShape(384, 20, 80, max_seqlen=24, max_outputs=5))
    masked = len(examples.masked_ids)
    assert len(batch.cls_rows) == len(batch.next_labels) == 20
    assert len(batch.masked_rows) == len(batch.masked_ids) == 80
    assert (batch.next_labels[len(examples) :] == IGNORE_INDEX).all()
    assert (batch.masked_ids[masked:] == IGNORE_INDEX).all()
    assert (output_ids(batch)[batch.masked_rows[masked:]] == 0).all(), "spare outputs are in the dummy sequence"


def test_collate_pretraining_dummy_sequences_fill_the_batch(tokenizer: Tokenizer) -> None:
    examples = made(tokenizer)
    batch = collate_pretraining(examples, BatchShape(384, 20, 80, max_seqlen=24, max_outputs=5))
    real = len(examples.input_ids)
    assert batch.shape.tokens == 384
    assert batch.packed.lengths is not None
    assert sum(batch.packed.lengths[len(examples) :]) == 384 - real
    assert max(batch.packed.lengths) <= batch.packed.sequences.max_seqlen == 24
    assert len(batch.packed.cu_seqlens) == 20 + 384 // 24 + 80 // 5 + 1
    assert batch.packed.cu_seqlens[-1] == 384
    assert (batch.packed.input_ids[real:] == 0).all()
    assert int(batch.packed.position_ids.max()) < 24


def test_collate_pretraining_full_batch_has_no_dummy_sequence(tokenizer: Tokenizer) -> None:
    examples = made(tokenizer)
    batch = collate_pretraining(examples, BatchShape(len(examples.input_ids), 20, 80, max_seqlen=24, max_outputs=5))
    assert batch.packed.lengths == tuple(examples.lengths.tolist())
    assert (batch.next_labels[len(examples) :] == IGNORE_INDEX).all()


def test_collate_puts_the_longest_first(tokenizer: Tokenizer) -> None:
    batch = collate_pretraining(made(tokenizer))
    assert batch.packed.lengths is not None
    assert list(batch.packed.lengths) == sorted(batch.packed.lengths, reverse=True)


def test_collate_positions_begin_at_0_in_every_sequence(tokenizer: Tokenizer) -> None:
    packed = collate_pretraining(made(tokenizer)).packed
    for first, last in zip(packed.cu_seqlens[:-1].tolist(), packed.cu_seqlens[1:].tolist(), strict=True):
        assert packed.position_ids[first:last].tolist() == list(range(last - first))


def test_collate_pretraining_documents_of_one_sentence_have_no_label(tokenizer: Tokenizer) -> None:
    text = MemoryText([[[10, 11, 12]], [[13, 14]]])
    batch = collate_pretraining(made(tokenizer, text=text))
    assert batch.next_labels.tolist() == [IGNORE_INDEX] * 2
    assert len(batch.masked_ids) == 2


def labelled(texts: list[list[int]]) -> list[LabelledExample]:
    """Examples of which the first has the first label, and so on."""
    targets = np.eye(len(texts), dtype=np.float32)
    return [
        LabelledExample(np.array(ids), np.zeros(len(ids), np.int64), target)
        for ids, target in zip(texts, targets, strict=True)
    ]


def test_collate_classification_keeps_targets_with_their_texts() -> None:
    batch = collate_classification(labelled([[2, 7, 3], [2, 8, 9, 3], [2, 3]]))
    assert batch.packed.lengths == (4, 3, 2)
    assert batch.targets.tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 1]]
    assert batch.packed.outputs is not None
    assert (batch.packed.input_ids[batch.packed.outputs.index] == 2).all()


def test_collate_classification_rows_without_a_text_have_no_target() -> None:
    batch = collate_classification(labelled([[2, 7, 3], [2, 8, 9, 3]]), BatchShape(128, 5, max_seqlen=8))
    assert batch.shape.tokens == 128
    assert batch.targets[:2].tolist() == [[0, 1], [1, 0]]
    assert batch.targets[2:].isnan().all()


@pytest.mark.parametrize("masked", [0, 20, 80, 700])
@pytest.mark.parametrize("count", [1, 30, 100])
def test_output_bounds_cover_the_spare_outputs(count: int, masked: int) -> None:
    """Attention on a GPU leaves outputs beyond `max_seqlen` unwritten."""
    shape = BatchShape(1024, 300, masked, max_seqlen=16, max_outputs=3)
    batch = collate_classification(labelled([[2, 7, 8, 3]] * count), shape)
    assert batch.packed.outputs is not None
    queries, keys = batch.packed.outputs.sequences, batch.packed.sequences
    assert len(queries.cu_seqlens) == len(keys.cu_seqlens)
    assert int(queries.cu_seqlens[-1]) == 300 + masked == len(batch.packed.outputs.index)
    outputs, tokens = queries.cu_seqlens.diff(), keys.cu_seqlens.diff()
    assert int(outputs.min()) >= 0
    assert int(outputs.max()) <= queries.max_seqlen == 3
    assert outputs[:count].tolist() == [1] * count
    assert (outputs[count:][tokens[count:] > 0] == 0).all(), "spare outputs belong to empty sequences"


def test_batch_moved_to_a_device_is_the_same(tokenizer: Tokenizer) -> None:
    batch = collate_pretraining(made(tokenizer))
    moved = batch.to(torch.device("cpu"))
    assert moved.packed.lengths == batch.packed.lengths
    for name in ("cls_rows", "masked_rows", "masked_ids", "next_labels"):
        assert torch.equal(getattr(moved, name), getattr(batch, name))


# --- the texts of each batch

RNG = np.random.default_rng(0)
LENGTHS = {
    "reviews": np.minimum(256, np.exp(RNG.normal(5.4, 0.65, 5000))).astype(int),
    "mixed": RNG.integers(5, 257, 5000),
    "topics": RNG.integers(8, 31, 5000),
    "short or long": np.where(RNG.random(5000) < 0.5, 10, 256),
}
"""Tokens of shuffled texts."""


@pytest.mark.parametrize("tokens", [512, 2048])
@pytest.mark.parametrize("kind", LENGTHS)
def test_best_fit_leaves_less_than_four_percent_of_a_batch_empty(kind: str, tokens: int) -> None:
    lengths = LENGTHS[kind]
    shape = BatchShape(tokens, int(2 * tokens / lengths.mean()) + 8)
    batches = best_fit(lengths, shape)
    assert sorted(text for batch in batches for text in batch) == list(range(len(lengths)))
    assert max(lengths[batch].sum() for batch in batches) <= tokens
    assert max(map(len, batches)) < shape.sequences
    assert 1 - lengths.sum() / tokens / len(batches) < 0.04


def test_best_fit_takes_the_batch_with_the_least_room() -> None:
    assert best_fit(np.array([6, 7, 3, 4, 10, 2]), BatchShape(10, sequences=4)) == [[0, 3], [1, 2], [4], [5]]
    assert best_fit(np.ones(5, int), BatchShape(10, sequences=3)) == [[0, 1], [2, 3], [4]]
    assert best_fit(np.array([], int), BatchShape(10, sequences=3)) == []
