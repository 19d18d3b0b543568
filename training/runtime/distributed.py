"""One process, or several that `torchrun` started: each computes its share of a step, and all sum gradients."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

PATIENCE = timedelta(hours=2)
"""How long processes wait for the first, which alone evaluates and writes."""


@dataclass(frozen=True, slots=True)
class Processes:
    """What a process must know of the others. The default is to be alone."""

    rank: int = 0
    world: int = 1
    local_rank: int = 0

    @property
    def first(self) -> bool:
        """Whether this process logs, evaluates and saves."""
        return self.rank == 0

    def sums(self, numbers: Sequence[float]) -> list[float]:
        """Each number summed over the processes, on the CPU: no device has to wait."""
        if self.world == 1:
            return list(numbers)
        total = torch.tensor(numbers, dtype=torch.float64)
        dist.all_reduce(total)
        return total.tolist()

    def sum_(self, tensors: Sequence[Tensor]) -> None:
        """Sum tensors of one dtype and device over the processes, in place."""
        if self.world == 1:
            return
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        dist.all_reduce(flat)
        parts = flat.split([tensor.numel() for tensor in tensors])
        for tensor, part in zip(tensors, parts, strict=True):
            tensor.copy_(part.view_as(tensor))

    def wait(self) -> None:
        """Until every process is here."""
        self.sums([0.0])


def launched() -> int:
    """How many processes `torchrun` started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


@contextmanager
def processes() -> Iterator[Processes]:
    """Join the other processes, by NCCL between GPUs and by gloo between CPUs; leave them at the end."""
    if launched() == 1:
        yield Processes()
        return
    dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo", timeout=PATIENCE)
    try:
        yield Processes(dist.get_rank(), dist.get_world_size(), int(os.environ["LOCAL_RANK"]))
    finally:
        dist.destroy_process_group()
