"""The mean of a network's weights over the end of its training (Izmailov et al. 2018, https://arxiv.org/abs/1803.05407)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn


class WeightAverage:
    """Uniform mean of the weights at several steps. While the learning rate is high, weights move around a better
    point, and the mean is closer to it.

    torch's `AveragedModel` is not used, because it copies the module with the code that `torch.compile` generated.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.count = 0
        """Steps in the mean."""
        self._mean: list[Tensor] = []

    def update(self) -> None:
        """Include the current weights in the mean."""
        self.count += 1
        if self.count == 1:
            self._mean = [weight.detach().clone() for weight in self.model.parameters()]
        else:
            for mean, weight in zip(self._mean, self.model.parameters(), strict=True):
                mean.lerp_(weight.detach(), 1 / self.count)

    def reset(self) -> None:
        """Empty the mean."""
        self.count, self._mean = 0, []

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange the model's weights with the mean, if there is one."""
        if self.count:
            for mean, weight in zip(self._mean, self.model.parameters(), strict=True):
                own = weight.detach().clone()
                weight.copy_(mean)
                mean.copy_(own)

    def state_dict(self) -> dict[str, Any]:
        """State for a checkpoint."""
        return {"count": self.count, "mean": self._mean}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of a checkpoint."""
        self.count = state["count"]
        device = next(self.model.parameters()).device
        self._mean = [mean.to(device) for mean in state["mean"]]
