"""Steps made here or by worker processes, by one process or two: the same examples in the same order."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import pytest
import torch

from model.tokenizer import Tokenizer
from tests.training.texts import ribbon_text
from training.examples.loader import Share, Step, stream
from training.examples.pairs import ExampleMaker, Vocabulary
from training.recipe import ExamplesConfig


@pytest.fixture
def maker(tokenizer: Tokenizer) -> ExampleMaker:
    config = ExamplesConfig(sequence_length=24)
    return ExampleMaker(ribbon_text(tokenizer), Vocabulary.of(tokenizer), config, 1)


def ids(steps: Iterator[Step], count: int) -> list[list[int]]:
    return [b.packed.input_ids.tolist() for step in islice(steps, count) for b in step.batches]


def test_workers_change_nothing(maker: ExampleMaker) -> None:
    share = Share(step=8, micro_batch=4)
    assert ids(stream(maker, share, 0, 0, workers=2), 30) == ids(stream(maker, share, 0, 0), 30)


def test_a_stream_goes_on_where_another_stopped(maker: ExampleMaker) -> None:
    share = Share(step=7, micro_batch=7)
    steps = list(islice(stream(maker, share, 0, 0), 30))
    assert steps[-1].epoch > 0
    for at in (0, 9, 20):
        resumed = next(stream(maker, share, steps[at].epoch, steps[at].position))
        assert (
            resumed.batches[0].packed.input_ids.tolist() == steps[at + 1].batches[0].packed.input_ids.tolist()
        )


def test_an_epoch_ends_within_a_step(maker: ExampleMaker) -> None:
    examples = len(maker.starts(0))
    share = Share(step=examples + 3, micro_batch=1000)
    step = next(stream(maker, share, 0, 0))
    assert (step.epoch, step.position) == (1, 3)
    assert len(step.batches[0].kinds) == examples + 3


def test_processes_share_a_step_without_overlap(maker: ExampleMaker) -> None:
    def kept(share: Share) -> set[tuple[int, ...]]:
        batch = next(stream(maker, share, 0, 0)).batches[0].packed
        return {tuple(part.tolist()) for part in batch.input_ids.split(list(batch.lengths))}

    whole = kept(Share(9, 9))
    first, second = kept(Share(9, 9, 0, 2)), kept(Share(9, 9, 1, 2))
    assert first | second == whole
    assert not first & second
    assert (len(first), len(second)) == (5, 4)


def test_dropouts_random_numbers_are_left_alone(maker: ExampleMaker) -> None:
    before = torch.get_rng_state()
    next(stream(maker, Share(4, 4), 0, 0, workers=1))
    assert torch.equal(torch.get_rng_state(), before)
