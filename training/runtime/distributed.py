"""One process, or the ranks that `torchrun` started on one or several nodes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from training.errors import RunError

TIMEOUT = timedelta(minutes=5)
"""A collective that takes longer fails on all ranks, because a node has died. No step of a single rank takes as long:
only rank 0 writes checkpoints, but all ranks evaluate."""


@dataclass(frozen=True, slots=True)
class DistContext:
    """This process among the ranks. The default is a single process."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0

    @property
    def is_main(self) -> bool:
        """Whether this process logs and saves."""
        return self.rank == 0

    def all_reduce_scalars(self, numbers: Sequence[float]) -> list[float]:
        """Each number summed over the ranks. Uses gloo, so no GPU has to wait."""
        if self.world_size == 1:
            return list(numbers)
        total = torch.tensor(numbers, dtype=torch.float64)
        dist.all_reduce(total)
        return total.tolist()

    def all_gather(self, value: Any) -> list[Any]:
        """The value of every rank, on every rank."""
        if self.world_size == 1:
            return [value]
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value)
        return values

    def broadcast_newest(self, state: dict[str, Any] | None, step: int) -> dict[str, Any] | None:
        """The checkpoint state of the rank with the highest step, on every rank; None if no rank has one."""
        if self.world_size == 1:
            return state
        steps = self.all_gather(step)
        states = [state]
        dist.broadcast_object_list(states, src=steps.index(max(steps)))
        return states[0]

    def check_equal(self, identity: Any) -> None:
        """Raise RunError on all ranks if their runs differ, because they would train different networks."""
        for rank, other in enumerate(self.all_gather(identity)):
            if other != identity:
                raise RunError(
                    f"rank {rank} has another recipe, text or vocabulary than rank {self.rank}: give all nodes the "
                    "same recipe and text, and run prepare on each node (or share the folder of the run)"
                )

    def wrap(self, module: nn.Module) -> nn.Module:
        """The module with gradients averaged over the ranks (DistributedDataParallel)."""
        if self.world_size == 1:
            return module
        return nn.parallel.DistributedDataParallel(module, gradient_as_bucket_view=True)


def world_size() -> int:
    """Processes that `torchrun` started on all nodes; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def local_world_size() -> int:
    """Processes that `torchrun` started on this node; 1 without it."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


@contextmanager
def distributed() -> Iterator[DistContext]:
    """Join the other ranks, with NCCL between GPUs and gloo between CPUs, and leave them at the end.

    Raises:
        RunError: another rank ended, or cannot be reached.
    """
    if world_size() == 1:
        yield DistContext()
        return
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, timeout=TIMEOUT)
    try:
        yield DistContext(dist.get_rank(), dist.get_world_size(), int(os.environ["LOCAL_RANK"]))
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and "gloo" not in str(error):  # gloo raises a plain RuntimeError
            raise
        raise RunError(
            f"another rank ended or cannot be reached ({str(error).splitlines()[0]}). See its output, then start all "
            "nodes again: they continue from the last checkpoint"
        ) from error
    finally:
        dist.destroy_process_group()
