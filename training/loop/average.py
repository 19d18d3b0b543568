"""Means of weights: along a run, and of several checkpoints (Izmailov et al. 2018, https://arxiv.org/abs/1803.05407;
Wortsman et al. 2022, https://arxiv.org/abs/2203.05482)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from model.checkpoint import load_checkpoint
from training.errors import RunError
from training.export.checkpoint_dir import write_directory


def average(checkpoints: Sequence[Path], target: Path) -> Path:
    """Write the mean of checkpoints of one lineage: one went on from another, or all began with the same
    pretrained weights. The mean of others knows nothing. Configuration and tokenizer are those of the first.

    Raises:
        RunError: they do not fit together, or there is only one.
    """
    if len(checkpoints) < 2:
        raise RunError("average needs two checkpoints or more")
    first, *others = [load_checkpoint(folder) for folder in checkpoints]
    total = first.model.state_dict()
    for other in others:
        weights = other.model.state_dict()
        if {name: w.shape for name, w in weights.items()} != {name: w.shape for name, w in total.items()}:
            raise RunError(f"{other.path} has other weights than {first.path}: only equal shapes have a mean")
        if other.tokenizer.to_json() != first.tokenizer.to_json():
            raise RunError(f"{other.path} has another vocabulary than {first.path}")
        if other.config.labels != first.config.labels:
            raise RunError(f"{other.path} has other labels than {first.path}")
        total = {name: weight + weights[name] for name, weight in total.items()}
    first.model.load_state_dict({name: weight / len(checkpoints) for name, weight in total.items()})
    write_directory(target, first.model, first.tokenizer, torch.float32)
    return target


class RunningMean:
    """The mean of a network's weights over moments of its training. At a rate that is still high the network
    swings around a better one than it ever is; the mean is nearer to that. (torch's `AveragedModel` copies the
    module, and so what `torch.compile` has made of it.)"""

    def __init__(self, network: nn.Module) -> None:
        self.network = network
        self.count = 0
        """Moments so far"""
        self._mean: list[Tensor] = []

    def add(self) -> None:
        """Count in the weights as they are now."""
        self.count += 1
        if self.count == 1:
            self._mean = [weight.detach().clone() for weight in self.network.parameters()]
        else:
            for mean, weight in zip(self._mean, self.network.parameters(), strict=True):
                mean.lerp_(weight.detach(), 1 / self.count)

    def clear(self) -> None:
        """Forget all."""
        self.count, self._mean = 0, []

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The network has the mean of its weights meanwhile, if there is one."""
        self.exchange()
        try:
            yield
        finally:
            self.exchange()

    def exchange(self) -> None:
        """Give the network the mean, if there is one, and keep what it had in its place."""
        if self.count:
            for mean, weight in zip(self._mean, self.network.parameters(), strict=True):
                own = weight.detach().clone()
                weight.data.copy_(mean)
                mean.copy_(own)

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"count": self.count, "mean": self._mean}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.count = state["count"]
        on = next(self.network.parameters()).device
        self._mean = [mean.to(on) for mean in state["mean"]]
