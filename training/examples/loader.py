"""Micro-batches of a run in order, made in this process or ahead by workers, with the same result.

A micro-batch is a function of the text, the seed and its number. A pass over the text visits windows of shards in an
order that is shuffled for each pass, and `BatchStream.windows` plans the batches of a window before it makes one. So a
loader at number n counts the batches of the windows before, and makes no other batch.
"""

from __future__ import annotations

import itertools
import multiprocessing
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from model.inference.cpu_features import available_cpus
from training.examples.batches import BatchShape
from training.runtime.distributed import DistContext, launched
from training.runtime.signals import ignore_stop_signals

WORKERS = 12
"""Maximum loader processes per GPU. For pretraining, one makes some 9 million tokens of examples a second, but texts
for fine-tuning are collated one by one."""

BATCHES_AHEAD = 4
"""Micro-batches that each worker keeps ready."""

_PRELOADED = ["training.examples.pretraining", "training.examples.labelled"]
"""Modules that the fork server imports once, before it forks the workers. Workers start one after another, and torch
takes seconds to import."""

T = TypeVar("T")


class Window(Protocol):
    """The batches of one window of text."""

    def __len__(self) -> int: ...

    def batch(self, number: int, progress: float) -> Any:
        """Make batch `number` of the window: a `PretrainingBatch` or `ClassificationBatch`.

        Args:
            progress: share of the run's budget that is spent.
        """
        ...


class BatchStream(Protocol):
    """All batches of a run."""

    shape: BatchShape
    """Shape of all batches."""
    tokens: int
    """Tokens of one pass over the text."""

    def windows(self) -> Iterator[Window]:
        """The endless windows of the run, the same in each call."""
        ...


@dataclass(eq=False)
class MicroBatches(IterableDataset[Any]):
    """This rank's endless micro-batches; in a loader worker, the worker's share of them."""

    stream: BatchStream
    total: int
    """Micro-batches of the whole run, over all ranks."""
    first: int = 0
    """Number of the first micro-batch to make, over all ranks."""
    dist: DistContext = field(default_factory=DistContext)

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        ranks = self.dist.world_size
        numbers = itertools.count(self.first + self.dist.rank + worker * ranks, workers * ranks)
        number, begin = next(numbers), 0
        for window in self.stream.windows():
            while number < begin + len(window):
                yield window.batch(number - begin, min(1.0, number / self.total))
                number = next(numbers)
            begin += len(window)


def made_ahead(items: IterableDataset[T], device: torch.device) -> Iterator[T]:
    """The items of a data set. For a GPU, worker processes make them ahead and pin their memory (`pin_memory`). Their
    number is limited by this rank's share of the cores."""
    if device.type != "cuda":
        return iter(items)
    context = multiprocessing.get_context("forkserver")  # a fork of a process with CUDA is unsafe
    context.set_forkserver_preload(_PRELOADED)
    loader = DataLoader(
        items,
        batch_size=None,
        num_workers=max(1, min(WORKERS, available_cpus() // launched().local_world_size - 1)),
        prefetch_factor=BATCHES_AHEAD,
        multiprocessing_context=context,
        worker_init_fn=ignore_stop_signals,
        pin_memory=True,
        generator=torch.Generator(),  # dropout uses the global generator
    )
    return iter(loader)
