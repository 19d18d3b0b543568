"""Micro-batches: of constant shape, and the same for any number of ranks and loader workers."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from itertools import islice
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from model.tokenizer import SPECIAL_TOKENS, Tokenizer
from training.corpus.prepare import prepare
from training.corpus.reader import PreparedText
from training.errors import CorpusError, RunError
from training.examples import loader
from training.examples.batches import BatchShape
from training.examples.loader import LANES, MicroBatch, MicroBatches, Position, iterate_batches
from training.examples.masking import Vocabulary
from training.examples.pairs import IGNORE_INDEX
from training.examples.pretraining import PretrainingStream
from training.recipe import ExamplesConfig, Recipe
from training.runtime.distributed import DistContext

CONFIG = ExamplesConfig(short_length=32, long_length=64)

Made = list[MicroBatch]


@pytest.fixture(scope="module")
def stream(prepared: Path) -> PretrainingStream:
    text = PreparedText.open(prepared / "tiny" / "corpus" / "train")
    vocabulary = Vocabulary.of(Tokenizer.load(prepared / "tiny" / "tokenizer"))
    return PretrainingStream(text, vocabulary, CONFIG, seed=1, micro_batch_tokens=256)


def make(
    stream: PretrainingStream,
    count: int,
    *,
    rank: int = 0,
    world_size: int = 1,
    first: int = 0,
    positions: dict[int, Position] | None = None,
) -> Made:
    dist = DistContext(rank, world_size)
    return list(islice(MicroBatches(stream, 1000, first, dict(positions or {}), dist), count))


def ids(made: Sequence[MicroBatch]) -> list[list[int]]:
    return [micro.batch.packed.input_ids.tolist() for micro in made]


@pytest.fixture(scope="module")
def made(stream: PretrainingStream) -> Made:
    """The first 144 micro-batches of a run: three of each lane, over several epochs."""
    return make(stream, 3 * LANES)


def shapes(value: object) -> list[torch.Size]:
    """Shapes of all tensors of a batch, those in nested dataclasses included."""
    if isinstance(value, Tensor):
        return [value.shape]
    if not is_dataclass(value):
        return []
    return [shape for field in fields(value) for shape in shapes(getattr(value, field.name))]


# --- shape


def test_batches_have_one_shape(made: Made) -> None:
    lengths = {length for micro in made for length in micro.batch.packed.lengths or ()}
    assert len(lengths) > 30, "lengths are mixed"
    first = shapes(made[0].batch)
    assert len(first) == 1, "a worker hands over one tensor"
    assert all(shapes(micro.batch) == first for micro in made)
    assert {micro.batch.packed.sequences.max_seqlen for micro in made} == {64}
    outputs = [micro.batch.packed.outputs for micro in made]
    assert len({bounds.sequences.max_seqlen for bounds in outputs if bounds is not None}) == 1


def test_batches_never_label_the_dummy_sequence_or_spare_outputs(made: Made) -> None:
    for micro in made:
        batch = micro.batch
        assert batch.packed.outputs is not None
        tokens = batch.packed.input_ids[batch.packed.outputs.index]
        labelled = tokens[batch.masked_rows[batch.masked_ids != IGNORE_INDEX]]
        assert (labelled != 0).all()
        assert (tokens[batch.cls_rows[batch.next_labels != IGNORE_INDEX]] == 2).all()
        assert int((batch.masked_ids != IGNORE_INDEX).sum()) > 0


def test_batches_of_ordinary_text_are_95_percent_real_tokens(
    stream: PretrainingStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "LANES", 8)
    larger = PretrainingStream(stream.text, stream.vocabulary, CONFIG, 1, micro_batch_tokens=4096)
    batches = [micro.batch for micro in make(larger, 24)]
    real = sum(int((batch.packed.input_ids != 0).sum()) for batch in batches)
    assert real > 0.95 * sum(batch.tokens for batch in batches)


# --- order


@pytest.mark.parametrize("world_size", [2, 3])
def test_micro_batches_of_all_ranks_are_those_of_one(stream: PretrainingStream, made: Made, world_size: int) -> None:
    count = len(made) // world_size
    ranks = [make(stream, count, rank=rank, world_size=world_size) for rank in range(world_size)]
    together = [ranks[number % world_size][number // world_size] for number in range(len(made))]
    assert ids(together) == ids(made)
    assert [micro.position for micro in together] == [micro.position for micro in made]


def test_micro_batches_of_loader_workers_are_those_of_one_process(stream: PretrainingStream, made: Made) -> None:
    batches = MicroBatches(stream, 1000, dist=DistContext(rank=1, world_size=2))
    workers = DataLoader(batches, batch_size=None, num_workers=2, multiprocessing_context="forkserver")
    found = list(islice(workers, 30))
    assert ids(found) == ids(made[1:60:2])
    assert [micro.lane for micro in found] == [micro.lane for micro in made[1:60:2]]


@pytest.mark.parametrize("at", [1, LANES, 2 * LANES + 7])
def test_micro_batches_from_positions_go_on_where_others_stopped(
    stream: PretrainingStream, made: Made, at: int
) -> None:
    positions = {micro.lane: micro.position for micro in made[:at]}
    assert ids(make(stream, 20, first=at, positions=positions)) == ids(made[at : at + 20])


def test_micro_batches_leave_the_random_numbers_of_dropout_alone(stream: PretrainingStream) -> None:
    before = torch.get_rng_state()
    next(iterate_batches(MicroBatches(stream, 1000), torch.device("cpu")))
    assert torch.equal(torch.get_rng_state(), before)


def test_micro_batches_of_ranks_that_cannot_share_the_lanes_are_refused(stream: PretrainingStream) -> None:
    with pytest.raises(RunError, match="5 processes: use one of 1, 2, 3, 4, 6, 8, 12, 16, 24, 48"):
        MicroBatches(stream, 100, dist=DistContext(world_size=5))


# --- epochs


class Numbers:
    """A stream whose examples are their own addresses (epoch, window, index), each of a few tokens."""

    class Window:
        def __init__(self, epoch: int, number: int, size: int) -> None:
            self.place, self.size = (epoch, number), size

        def __len__(self) -> int:
            return self.size

        def make(self, index: int, progress: float, max_tokens: int | None = None) -> Position:
            assert index < self.size
            return (*self.place, index)  # its length is 3

    def __init__(self, *sizes: int) -> None:
        self.sizes = sizes
        self.shape = BatchShape(tokens=17, sequences=9)

    def num_windows(self) -> int:
        return len(self.sizes)

    def window(self, epoch: int, number: int) -> Numbers.Window:
        return self.Window(epoch, number, self.sizes[number])

    def num_masked(self, example: Position) -> int:
        return 0

    def collate(self, examples: Sequence[Position]) -> list[Position]:
        return list(examples)


@pytest.mark.parametrize("sizes", [(500,), (130, 77, 300), (1, 5), (47,), (48, 49)])
def test_every_example_of_an_epoch_is_seen_once(sizes: tuple[int, ...]) -> None:
    batches = MicroBatches(Numbers(*sizes), 10**6)
    seen: list[Position] = []
    for micro in islice(iter(batches), 6 * LANES):
        assert len(micro.batch) == 5, "17 tokens hold five examples of 3"
        seen += micro.batch
    places = ((epoch, n, i) for epoch in itertools.count() for n, size in enumerate(sizes) for i in range(size))
    assert sorted(seen) == list(islice(places, 6 * LANES * 5))


def test_tiny_corpus_is_refused(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_vocab([*SPECIAL_TOKENS, *"abcdefgh", "."])
    (tmp_path / "a.txt").write_text("a b c d. e f g h.\n\nb c d e. f g. h a b.")
    corpus = {"sources": [{"path": "a.txt"}], "heldout_fraction": 0}
    recipe = Recipe(name="few", data=tmp_path, corpus=corpus)  # type: ignore[arg-type]
    prepare(recipe, tokenizer, tmp_path / "corpus")
    text = PreparedText.open(tmp_path / "corpus" / "train")
    with pytest.raises(CorpusError, match="2 examples; a run needs at least 48: add text"):
        PretrainingStream(text, Vocabulary.of(tokenizer), CONFIG, 1, 256)
