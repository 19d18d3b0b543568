"""One process, or the ranks that a launcher, such as `torchrun`, started on one or several nodes."""

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
    """Its number on its node."""
    local_world_size: int = 1
    """Ranks on its node."""

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


def launched() -> DistContext:
    """The place that a launcher gave this process in its environment, before it has joined the others. A launcher that
    says nothing about the node, such as Kubeflow's, starts one process on each.

    Raises:
        RunError: a variable is missing, or its value makes no sense.
    """
    if not (os.environ.get("RANK") or os.environ.get("WORLD_SIZE")):
        return DistContext()
    world_size = _number("WORLD_SIZE", 1)
    if world_size == 1:
        return DistContext()
    rank, local_world_size = _number("RANK"), _number("LOCAL_WORLD_SIZE", 1, default="1")
    if rank >= world_size:
        raise RunError(f"the environment variable RANK is {rank}, but WORLD_SIZE is {world_size}: the first rank is 0")
    _variable("MASTER_ADDR")  # torch reads it, and the port
    _number("MASTER_PORT")
    return DistContext(rank, world_size, _number("LOCAL_RANK", default=str(rank % local_world_size)), local_world_size)


def _number(name: str, least: int = 0, default: str = "") -> int:
    text = _variable(name, default)
    if not text.isdecimal() or int(text) < least:
        raise RunError(f"the environment variable {name} is {text!r}: set it to a number from {least} on, or unset it")
    return int(text)


def _variable(name: str, default: str = "") -> str:
    """A variable of the environment; an empty one counts as missing."""
    if text := os.environ.get(name) or default:
        return text
    raise RunError(
        f"the environment variable {name} is missing: set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT for several "
        "processes, as torchrun does, or unset all of them"
    )


@contextmanager
def distributed() -> Iterator[DistContext]:
    """Join the other ranks, with NCCL between GPUs and gloo between CPUs, and leave them at the end.

    Raises:
        RunError: another rank ended, or cannot be reached.
    """
    context = launched()
    if context.world_size == 1:
        yield context
        return
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    try:
        dist.init_process_group(backend, timeout=TIMEOUT)
        yield context
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and "gloo" not in str(error):  # gloo raises a plain RuntimeError
            raise
        raise RunError(
            f"another rank ended or cannot be reached ({str(error).splitlines()[0]}). See its output, then start all "
            "nodes again: they continue from the last checkpoint"
        ) from error
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
