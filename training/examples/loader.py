"""Micro-batches of a run in order, made in this process or ahead by workers, with the same result.

Examples are addressed by (seed, epoch, window, index). Lane k takes the examples k, k + LANES, ... counted through all
windows, and makes the micro-batches k, k + LANES, ... of the run. So a micro-batch depends on its number and its lane's
position only, and not on how many ranks or workers make them. A batch is filled until the next example does not fit.
"""

from __future__ import annotations

import functools
import itertools
import multiprocessing
from collections.abc import Callable, Iterator, Sequence, Sized
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from model.inference.cpu_features import available_cpus
from training.errors import RunError
from training.examples.batches import BatchShape
from training.runtime.distributed import DistContext, launched
from training.runtime.signals import ignore_stop_signals

LANES = 48
"""Number of lanes, divisible by most numbers of ranks and workers."""

WORKERS = 12
"""Maximum loader processes per GPU: one makes 0.36 to 1.8 million tokens of examples a second, by machine."""

BATCHES_AHEAD = 4
"""Micro-batches that each worker keeps ready."""

MIN_TOKENS_TO_CUT = 32
"""An example is cut to fill the rest of a batch if the rest has at least N tokens; a smaller rest is padding."""

_PRELOADED = ["training.examples.pretraining", "training.examples.labelled"]
"""Modules that the fork server imports once, before it forks the workers. Workers start one after another, and torch
takes seconds to import."""

T = TypeVar("T")

Position = tuple[int, int, int]
"""(epoch, window, index) of the next example of a lane."""


class WindowExamples(Protocol):
    """The examples of one window of an epoch, in shuffled order."""

    def __len__(self) -> int: ...

    def make(self, index: int, progress: float, max_tokens: int | None = None) -> Sized:
        """Example `index`. Its length is its number of tokens.

        Args:
            progress: share of the run's budget that is spent.
            max_tokens: cut the example to N tokens, if such examples may be cut; None leaves it as it is.
        """
        ...


class ExampleStream(Protocol):
    """All examples of a run, and the way to collate them."""

    shape: BatchShape
    """Shape of all batches."""

    def num_windows(self) -> int: ...

    def window(self, epoch: int, number: int) -> WindowExamples: ...

    def num_masked(self, example: Any) -> int:
        """Number of masked positions of an example. A batch has room for `BatchShape.masked` of them."""
        ...

    def collate(self, examples: Sequence[Any]) -> Any:
        """A batch of examples: see `MicroBatch.batch`."""
        ...


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """A batch, and the position of its lane after it."""

    batch: Any
    """A `PretrainingBatch` or `ClassificationBatch`."""
    lane: int
    position: Position

    def pin_memory(self) -> MicroBatch:
        """Pin the batch's memory; the DataLoader calls this for a GPU."""
        return MicroBatch(self.batch.pin_memory(), self.lane, self.position)


@dataclass(eq=False)
class MicroBatches(IterableDataset[MicroBatch]):
    """This rank's endless micro-batches; in a loader worker, the worker's share of them."""

    stream: ExampleStream
    total: int
    """Micro-batches of the whole run, over all ranks."""
    first: int = 0
    """Number of the first micro-batch to make, over all ranks."""
    positions: dict[int, Position] = field(default_factory=dict)
    """Position of each lane that has been used before `first`."""
    dist: DistContext = field(default_factory=DistContext)

    def __post_init__(self) -> None:
        if LANES % self.dist.world_size:
            divisors = ", ".join(str(n) for n in range(1, LANES + 1) if LANES % n == 0)
            raise RunError(f"{self.dist.world_size} processes: use one of {divisors}")

    def __iter__(self) -> Iterator[MicroBatch]:
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        # Lanes cross the end of a window one after another. The cache is made here: it cannot be sent to a worker.
        window = functools.lru_cache(3)(self.stream.window)
        ranks = self.dist.world_size
        for number in itertools.count(self.first + self.dist.rank + worker * ranks, workers * ranks):
            yield self._make(number, window)

    def _make(self, number: int, window_at: Callable[[int, int], WindowExamples]) -> MicroBatch:
        lane = number % LANES
        progress = min(1.0, number / self.total)
        shape = self.stream.shape
        position = self.positions.get(lane, (0, 0, lane))
        examples: list[Sized] = []
        left, masked = shape.tokens, 0
        while True:
            window, position = self._next(position, window_at)
            example = window.make(position[2], progress)
            if len(example) > left >= MIN_TOKENS_TO_CUT:
                example = window.make(position[2], progress, left)
            masked += self.stream.num_masked(example)
            if len(example) > left or masked > shape.masked or len(examples) + 1 >= shape.sequences:
                break
            examples.append(example)
            left -= len(example)
            position = (*position[:2], position[2] + LANES)
        self.positions[lane] = position
        return MicroBatch(self.stream.collate(examples), lane, position)

    def _next(
        self, position: Position, window_at: Callable[[int, int], WindowExamples]
    ) -> tuple[WindowExamples, Position]:
        """The window that holds the next example, and the example's position."""
        epoch, number, index = position
        while index >= len(window := window_at(epoch, number)):
            index -= len(window)
            number += 1
            if number == self.stream.num_windows():
                epoch, number = epoch + 1, 0
        return window, (epoch, number, index)


def iterate_batches(batches: MicroBatches, device: torch.device) -> Iterator[MicroBatch]:
    """The micro-batches of a run. For a GPU, worker processes make them ahead."""
    return made_ahead(batches, device, num_workers(batches.dist.world_size))


def made_ahead(items: IterableDataset[T], device: torch.device, workers: int) -> Iterator[T]:
    """The items of a data set. For a GPU, worker processes make them ahead and pin their memory (`pin_memory`)."""
    if device.type != "cuda":
        return iter(items)
    context = multiprocessing.get_context("forkserver")  # a fork of a process with CUDA is unsafe
    context.set_forkserver_preload(_PRELOADED)
    loader = DataLoader(
        items,
        batch_size=None,
        num_workers=workers,
        prefetch_factor=BATCHES_AHEAD,
        multiprocessing_context=context,
        worker_init_fn=ignore_stop_signals,
        pin_memory=True,
        generator=torch.Generator(),  # dropout uses the global generator
    )
    return iter(loader)


def num_workers(world_size: int) -> int:
    """Number of loader processes of each rank on a GPU machine, limited by the rank's share of the cores."""
    most = max(1, min(WORKERS, available_cpus() // launched().local_world_size - 1))
    return max(n for n in range(1, most + 1) if LANES // world_size % n == 0)
