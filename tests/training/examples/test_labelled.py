"""The examples of a classifier: readings, truncation, targets, batches."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from model.tokenizer import Tokenizer
from tests.training.texts import MemoryText
from training.corpus.prepare import prepare_labelled
from training.corpus.reader import PreparedText
from training.examples.labelled import (
    LabelledStream,
    LabelledTexts,
    document_lengths,
    encode_texts,
    labelled_window,
)
from training.examples.loader import MicroBatches
from training.examples.masking import Vocabulary, mask
from training.examples.pairs import PairKind, Pairs
from training.recipe import Recipe
from training.runtime.distributed import DistContext
from training.sources.documents import Document


def labelled(tokenizer: Tokenizer, *rows: tuple[str, ...], read: str = "text", max_length: int = 64) -> LabelledTexts:
    """Documents with these columns, in memory."""
    documents = [Document(fields) for fields in rows]
    targets = np.eye(2, dtype=np.float32)[[i % 2 for i in range(len(rows))]]
    return encode_texts(documents, targets, read, tokenizer, max_length)


def stream(folder: Path, tokenizer: Tokenizer, rows: list[dict[str, Any]], **source: Any) -> LabelledStream:
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    train = ({"path": "a.jsonl", "label": "label"} | source,)
    finetune = {"train": train, "dev_fraction": 0.0, "augment_fraction": 0.0}
    recipe = Recipe(name="labelled", data=folder, finetune=finetune)  # type: ignore[arg-type]
    text = PreparedText(folder / "labelled", prepare_labelled(recipe, tokenizer, folder / "labelled"))
    return LabelledStream(text, tokenizer, max_length=64, teacher_weight=None, seed=1, micro_batch_tokens=512)


# --- one example


@pytest.mark.parametrize("text", ["i loved the film", "the film was good. " * 20])
def test_example_is_encoded_as_the_service_does(tokenizer: Tokenizer, text: str) -> None:
    example = labelled(tokenizer, (text,), max_length=20).example(0, as_pair=False)
    served = tokenizer.encode(text, max_length=20, truncate=True, truncation="head_tail")
    assert example.input_ids.tolist() == served.input_ids
    assert not example.token_type_ids.any()


def test_example_of_a_pair_has_two_segments_and_is_encoded_as_the_service_does(tokenizer: Tokenizer) -> None:
    pair = ("good", "the film was good and i loved it. " * 4)
    example = labelled(tokenizer, pair, read="pair", max_length=20).example(0, as_pair=True)
    served = tokenizer.encode(*pair, max_length=20, truncate=True, truncation="head_tail")
    assert example.input_ids.tolist() == served.input_ids
    assert example.token_type_ids.tolist() == served.token_type_ids


def test_example_of_a_pair_without_token_types_is_encoded_as_the_service_does(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    tokenizer.save(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"model_input_names": ["input_ids", "attention_mask"]}')
    untyped = Tokenizer.load(tmp_path)
    example = labelled(untyped, ("good", "bad"), read="pair").example(0, as_pair=True)
    assert example.token_type_ids.tolist() == untyped.encode("good", "bad").token_type_ids == [0] * 5
    pairs = Pairs(np.array([[0, 1]]), np.array([[1, 1]]), np.array([PairKind.NEXT]))
    masked = mask(MemoryText([[[7], [8]]]), pairs, 0.5, Vocabulary.of(untyped), np.random.default_rng(0))
    assert not masked.token_type_ids.any()


def test_example_of_columns_as_one_text_joins_them(tokenizer: Tokenizer) -> None:
    example = labelled(tokenizer, ("a good film", "i loved it", "really")).example(0, as_pair=False)
    assert example.input_ids.tolist() == tokenizer.encode("a good film i loved it really").input_ids


@pytest.mark.parametrize(
    ("fields", "read", "readings"),
    [
        (("a", "b"), "text", [False]),
        (("a", "b"), "pair", [True]),
        (("a", "b"), "both", [False, True]),
        (("", "b"), "pair", [False]),
        (("a", ""), "both", [False]),
        (("a", "b", "c"), "text", [False]),
    ],
)
def test_readings_of_a_document(tokenizer: Tokenizer, fields: tuple[str, ...], read: str, readings: list[bool]) -> None:
    assert labelled(tokenizer, fields, read=read).readings(0) == readings


# --- an evaluation


def test_batches_hold_every_text_once_in_each_of_its_readings(tokenizer: Tokenizer) -> None:
    rows = [("good " * (i % 7 + 1), "bad " * (i % 5)) for i in range(150)]
    texts = labelled(tokenizer, *rows, read="both")
    seen: list[int] = []
    for documents, batch in texts.batches():
        seen += documents
        assert batch.targets.argmax(1).tolist() == [document % 2 for document in documents]
    expected = [i for i, (_, body) in enumerate(rows) for _ in range(2 if body else 1)]
    assert sorted(seen) == expected


def test_batches_of_chosen_texts_have_at_most_a_number_of_tokens(tokenizer: Tokenizer) -> None:
    texts = labelled(tokenizer, *(("good " * (i + 1),) for i in range(10)))
    found = list(texts.batches([1, 2, 9], tokens=10))
    assert [documents for documents, _ in found] == [[9], [2, 1]], "of 12, 5 and 4 tokens"


@pytest.mark.parametrize("read", ["text", "pair"])
def test_document_lengths_are_those_of_the_examples(tmp_path: Path, tokenizer: Tokenizer, read: str) -> None:
    rows = [{"title": "good " * n, "text": "film " * (90 - n), "label": n % 2} for n in range(1, 90)]
    rows += [{"title": "good", "text": "film " * n, "label": n % 2} for n in range(1, 90)]
    made = stream(tmp_path, tokenizer, rows, text=("title", "text"), read=read)
    window = made.text.window()
    texts = labelled_window(window, np.arange(len(rows)), tokenizer, 64)
    lengths = [len(texts.example(i, as_pair=read == "pair")) for i in range(len(texts))]
    assert document_lengths(window, 64).tolist() == lengths


# --- targets


def test_labelled_window_mixes_the_teacher_with_the_true_label(tmp_path: Path, tokenizer: Tokenizer) -> None:
    made = stream(tmp_path, tokenizer, [{"text": f"good {i}", "label": i % 2} for i in range(3)])
    window, rows = made.text.window(), np.arange(3)
    np.save(made.text.folder / "labels.npy", np.array([0, 1, -1], np.int16))
    np.save(made.text.folder / "target_probs.npy", np.array([[0.8, 0.2], [0.6, 0.4], [0.1, 0.9]], np.float32))
    mixed = labelled_window(window, rows, tokenizer, 64, teacher_weight=0.25)
    assert mixed.targets == pytest.approx(np.array([[0.95, 0.05], [0.15, 0.85], [0.1, 0.9]]))
    only_without_label = labelled_window(window, rows, tokenizer, 64, teacher_weight=0.0)
    assert only_without_label.targets == pytest.approx(np.array([[1, 0], [0, 1], [0.1, 0.9]]))
    alone = labelled_window(window, rows, tokenizer, 64)
    np.testing.assert_array_equal(alone.targets, [[1, 0], [0, 1], [np.nan, np.nan]])


# --- the stream of a run


def rows_of_lengths(count: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 60, count)
    return [{"title": "good", "text": "film " * int(n) + str(i), "label": i % 2} for i, n in enumerate(lengths)]


def test_stream_batches_have_one_shape_and_no_target_for_the_dummy_sequence(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    made = stream(tmp_path, tokenizer, rows_of_lengths(300))
    batches = list(islice(MicroBatches(made, 100), 24))
    shapes = {
        (len(b.packed.input_ids), len(b.packed.cu_seqlens), b.packed.sequences.max_seqlen, tuple(b.targets.shape))
        for b in batches
    }
    assert len(shapes) == 1
    real = 0
    for batch in batches:
        lengths = batch.packed.lengths
        assert lengths is not None
        texts = int((batch.targets.sum(1) > 0).sum())
        assert len(lengths) - texts == -(-(512 - sum(lengths[:texts])) // 64), "dummy sequences"
        assert batch.targets[texts:].isnan().all()
        real += sum(lengths[:texts])
    assert real > 0.9 * sum(batch.shape.tokens for batch in batches), "512 tokens, texts of up to 62"


def lengths_of(made: LabelledStream, batches: int) -> list[int]:
    """Tokens of the texts of some batches."""
    found = []
    for batch in islice(MicroBatches(made, 100), batches):
        lengths = torch.tensor(batch.packed.lengths)
        found += lengths[: int((batch.targets.sum(1) > 0).sum())].tolist()
    return found


def test_stream_sees_every_text_once_in_a_pass(tmp_path: Path, tokenizer: Tokenizer) -> None:
    made = stream(tmp_path, tokenizer, [{"text": "good " * n, "label": n % 2} for n in range(1, 60)])
    first, second = islice(made.windows(), 2)
    expected = [n + 2 for n in range(1, 60)]
    assert sorted(lengths_of(made, len(first))) == expected
    assert sorted(lengths_of(made, len(first) + len(second))) == sorted(2 * expected)
    assert (first.order != second.order).any()
    assert (next(made.windows()).order == first.order).all()


def test_stream_counts_the_batches_of_a_pass(tmp_path: Path, tokenizer: Tokenizer) -> None:
    made = stream(tmp_path, tokenizer, rows_of_lengths(300))
    batches = made.tokens // made.micro_batch_tokens
    assert batches == len(next(made.windows()))
    assert len(lengths_of(made, batches)) == made.documents
    assert len(lengths_of(made, 3 * batches)) == pytest.approx(3 * made.documents, rel=0.02)
    assert made.texts_per_batch == made.documents / batches


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_stream_batches_are_those_of_one_process_and_of_a_resume(
    tmp_path: Path, tokenizer: Tokenizer, world_size: int
) -> None:
    made = stream(tmp_path, tokenizer, rows_of_lengths(100))
    alone = list(islice(MicroBatches(made, 100), 24))
    assert len(next(made.windows())) < 10, "several passes"
    for first in (0, 7):
        ranks = [iter(MicroBatches(made, 100, first, DistContext(rank, world_size))) for rank in range(world_size)]
        for number, batch in enumerate(alone[first:]):
            assert torch.equal(next(ranks[number % world_size]).data, batch.data)


def test_stream_of_both_readings_gives_both_over_passes(tmp_path: Path, tokenizer: Tokenizer) -> None:
    rows = [{"title": "good", "text": "film " * (n + 1), "label": n % 2} for n in range(40)]
    made = stream(tmp_path, tokenizer, rows, text=("title", "text"), read="both")
    pairs = texts = 0
    for batch in islice(MicroBatches(made, 100), 20):
        count = int((batch.targets.sum(1) > 0).sum())
        types = batch.packed.token_type_ids.split(batch.packed.lengths)
        texts, pairs = texts + count, pairs + sum(bool(each.any()) for each in types[:count])
    assert texts > 300
    assert pairs == pytest.approx(texts / 2, rel=0.15)


def test_stream_targets_are_those_of_the_texts(tmp_path: Path, tokenizer: Tokenizer) -> None:
    words = {"good": 1, "bad": 0, "great": 1}
    rows = [{"text": word + " film" * n, "label": words[word]} for word in words for n in range(20)]
    made = stream(tmp_path, tokenizer, rows)
    batch = next(iter(MicroBatches(made, 10)))
    starts = batch.packed.cu_seqlens[:-1].long()
    count = int((batch.targets.sum(1) > 0).sum())
    firsts = batch.packed.input_ids[starts[:count] + 1].tolist()
    assert batch.targets[:count].argmax(1).tolist() == [words[tokenizer.token(i)] for i in firsts]
    assert torch.equal(batch.targets[:count].sum(1), torch.ones(count))
