"""The examples of consecutive steps as batches, made here or ahead by worker processes; the same either way."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.utils.data import DataLoader, Dataset

from training.examples.batches import PretrainingBatch, collate_pretraining
from training.examples.pairs import ExampleMaker

AHEAD = 4
"""Steps that each worker keeps ready."""

Place = tuple[int, int]
"""(epoch, index) of an example."""


@dataclass(frozen=True, slots=True)
class Share:
    """Which examples of a step this process computes: number `rank` of every `world`."""

    step: int
    """Examples per step, over all processes"""
    micro_batch: int
    """Examples per forward pass"""
    rank: int = 0
    world: int = 1


@dataclass(frozen=True, slots=True)
class Step:
    """The micro-batches of one step, and where the next one begins."""

    batches: list[PretrainingBatch]
    epoch: int
    position: int

    def pin_memory(self) -> Step:
        """Called by the DataLoader: copies from pinned memory need not wait for the GPU."""
        return Step([batch.pin_memory() for batch in self.batches], self.epoch, self.position)


class Steps(Dataset[Step]):
    """Steps by the places of their examples."""

    def __init__(self, maker: ExampleMaker, share: Share) -> None:
        self.maker = maker
        self.share = share

    def __getitem__(self, places: Sequence[Place]) -> Step:
        own = places[self.share.rank :: self.share.world]
        size = self.share.micro_batch
        cuts = [own[at : at + size] for at in range(0, len(own), size)]
        batches = [collate_pretraining([self.maker(*place) for place in cut]) for cut in cuts]
        epoch, index = places[-1]
        return Step(batches, epoch, index + 1)


def stream(
    maker: ExampleMaker, share: Share, epoch: int, position: int, *, workers: int = 0, pin: bool = False
) -> Iterator[Step]:
    """All steps from a place on, in order, epoch after epoch without end."""
    loader = DataLoader(
        Steps(maker, share),
        batch_size=None,
        sampler=_step_places(maker, share.step, epoch, position),
        num_workers=workers,
        prefetch_factor=AHEAD if workers else None,
        multiprocessing_context="fork" if workers else None,  # workers share the corpus's memory maps
        worker_init_fn=_leave_signals_to_parent if workers else None,
        pin_memory=pin,
        generator=torch.Generator(),  # the global one belongs to dropout, and must not depend on workers
    )
    return iter(loader)


def _leave_signals_to_parent(_worker: int) -> None:
    """`timeout`, a terminal and systemd signal all processes of a run. Did that end the workers, the parent's
    step would fail before its state is saved; so they wait for the parent to end them."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)


def _step_places(maker: ExampleMaker, examples: int, epoch: int, position: int) -> Iterator[list[Place]]:
    places = _places(maker, epoch, position)
    while True:
        yield [next(places) for _ in range(examples)]


def _places(maker: ExampleMaker, epoch: int, position: int) -> Iterator[Place]:
    while True:
        for index in range(position, len(maker.starts(epoch))):
            yield epoch, index
        epoch, position = epoch + 1, 0
