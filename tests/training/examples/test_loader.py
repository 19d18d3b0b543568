"""Micro-batches: of constant shape, and the same for any number of ranks and loader workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from model.tokenizer import Tokenizer
from training.corpus.reader import PreparedText
from training.examples.batches import BatchShape, PretrainingBatch, batch_bounds
from training.examples.loader import MicroBatches, made_ahead
from training.examples.masking import Vocabulary
from training.examples.pairs import IGNORE_INDEX
from training.examples.pretraining import PretrainingStream
from training.recipe import ExamplesConfig
from training.runtime.distributed import DistContext

CONFIG = ExamplesConfig(short_length=32, long_length=64)

Made = list[PretrainingBatch]


@pytest.fixture(scope="module")
def stream(prepared: Path) -> PretrainingStream:
    text = PreparedText(prepared / "tiny" / "corpus", use="train")
    vocabulary = Vocabulary.of(Tokenizer.load(prepared / "tiny" / "tokenizer"))
    return PretrainingStream(text, vocabulary, CONFIG, seed=1, micro_batch_tokens=256)


def make(stream: PretrainingStream, count: int, *, rank: int = 0, world_size: int = 1, first: int = 0) -> Made:
    return list(islice(MicroBatches(stream, 1000, first, DistContext(rank, world_size)), count))


def ids(made: Sequence[PretrainingBatch]) -> list[list[int]]:
    return [batch.packed.input_ids.tolist() for batch in made]


@pytest.fixture(scope="module")
def made(stream: PretrainingStream) -> Made:
    """The first micro-batches of a run, over several passes."""
    batches = make(stream, 120)
    assert len(next(stream.windows())) < 60
    return batches


def shapes(value: object) -> list[torch.Size]:
    """Shapes of all tensors of a batch, those in nested dataclasses included."""
    if isinstance(value, Tensor):
        return [value.shape]
    if not is_dataclass(value):
        return []
    return [shape for field in fields(value) for shape in shapes(getattr(value, field.name))]


# --- shape


def test_batches_have_one_shape(made: Made) -> None:
    lengths = {length for batch in made for length in batch.packed.lengths or ()}
    assert len(lengths) > 30, "lengths are mixed"
    first = shapes(made[0])
    assert len(first) == 1, "a worker hands over one tensor"
    assert all(shapes(batch) == first for batch in made)
    assert {batch.packed.sequences.max_seqlen for batch in made} == {64}
    outputs = [batch.packed.outputs for batch in made]
    assert len({bounds.sequences.max_seqlen for bounds in outputs if bounds is not None}) == 1


def test_batches_never_label_the_dummy_sequence_or_spare_outputs(made: Made) -> None:
    for batch in made:
        assert batch.packed.outputs is not None
        tokens = batch.packed.input_ids[batch.packed.outputs.index]
        labelled = tokens[batch.masked_rows[batch.masked_ids != IGNORE_INDEX]]
        assert (labelled != 0).all()
        assert (tokens[batch.cls_rows[batch.next_labels != IGNORE_INDEX]] == 2).all()
        assert int((batch.masked_ids != IGNORE_INDEX).sum()) > 0


def test_batches_of_ordinary_text_are_95_percent_real_tokens(stream: PretrainingStream) -> None:
    batches = make(stream, len(next(stream.windows())))[:-1]  # the last has the pairs that are left
    real = sum(int((batch.packed.input_ids != 0).sum()) for batch in batches)
    assert real > 0.95 * sum(batch.shape.tokens for batch in batches)


def test_batches_of_a_pass_hold_every_pair_once(stream: PretrainingStream) -> None:
    window = next(stream.windows())
    made = make(stream, len(window))
    assert sum(int((batch.packed.input_ids == 2).sum()) for batch in made) == len(window.pairs)
    tokens = sum(int((batch.packed.input_ids != 0).sum()) for batch in made)
    assert tokens == window.pairs.lengths.sum()


@pytest.mark.parametrize(
    ("lengths", "min_cut", "bounds"),
    [
        ([4, 4, 4, 4], None, [0, 2, 4]),
        ([10, 10, 1], None, [0, 1, 2, 3]),
        ([4, 4, 4, 4], 2, [0, 3, 4]),
        ([4, 5, 4, 4], 2, [0, 2, 4]),
        ([30, 4, 4], 2, [0, 1, 3]),
        ([1] * 9, None, [0, 4, 8, 9]),
        ([], None, [0]),
    ],
)
def test_batch_bounds_fill_ten_tokens_of_up_to_four_examples(
    lengths: list[int], min_cut: int | None, bounds: list[int]
) -> None:
    assert batch_bounds(np.array(lengths, np.int64), BatchShape(10, sequences=5), min_cut) == bounds


# --- order


@pytest.mark.parametrize("world_size", [2, 4, 5])
def test_micro_batches_of_all_ranks_are_those_of_one(stream: PretrainingStream, made: Made, world_size: int) -> None:
    ranks = [make(stream, 60 // world_size, rank=rank, world_size=world_size) for rank in range(world_size)]
    together = [ranks[number % world_size][number // world_size] for number in range(60)]
    assert all(torch.equal(one.data, other.data) for one, other in zip(together, made[:60], strict=True))


def test_micro_batches_of_loader_workers_are_those_of_one_process(stream: PretrainingStream, made: Made) -> None:
    batches = MicroBatches(stream, 1000, dist=DistContext(rank=1, world_size=2))
    workers = DataLoader(batches, batch_size=None, num_workers=2, multiprocessing_context="forkserver")
    assert ids(list(islice(workers, 30))) == ids(made[1:60:2])


@pytest.mark.parametrize("at", [1, 47, 100])
def test_micro_batches_from_a_number_are_those_of_a_run_from_the_beginning(
    stream: PretrainingStream, made: Made, at: int
) -> None:
    assert ids(make(stream, 20, first=at)) == ids(made[at : at + 20])


def test_micro_batches_of_passes_and_seeds_differ(stream: PretrainingStream, made: Made) -> None:
    other = PretrainingStream(stream.text, stream.vocabulary, CONFIG, seed=2, micro_batch_tokens=256)
    assert len({tuple(batch) for batch in ids([*made, *make(other, 60)])}) == 180


def test_micro_batches_leave_the_random_numbers_of_dropout_alone(stream: PretrainingStream) -> None:
    before = torch.get_rng_state()
    next(made_ahead(MicroBatches(stream, 1000), torch.device("cpu")))
    assert torch.equal(torch.get_rng_state(), before)
