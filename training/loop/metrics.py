"""Means of a run's metrics over some steps, kept on the device until they are logged."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from training.errors import RunError
from training.loop.checkpoint import TrainState


class MetricWindow:
    """Metrics of the steps since the last line of the log: losses in nats, a gradient norm without a unit, tokens per
    second over all ranks, and FLOP/s of this rank as a share of its peak."""

    def __init__(self, names: Sequence[str], state: TrainState, peak_flops: float | None = None) -> None:
        self.names = names
        self.peak_flops = peak_flops
        self.flops = 0
        self.learning_rate = 0.0
        self._tokens, self._seconds = state.tokens, state.seconds
        self._metrics: list[Tensor] = []
        self._norms: list[Tensor] = []

    def add(self, metrics: Tensor, norm: Tensor, flops: int, learning_rate: float) -> None:
        """Add one step.

        Args:
            metrics: (names, 2) sum and count of each metric.
            norm: () norm of the gradient.
            flops: of the forward and backward passes of this rank.
        """
        self.flops += flops
        self.learning_rate = learning_rate
        self._metrics.append(metrics)
        self._norms.append(norm)

    def check_finite(self, step: int) -> None:
        """Raise RunError if a gradient was not finite: such weights are never saved, evaluated or exported."""
        for norm in torch.stack(self._norms).tolist():
            if not math.isfinite(norm):
                raise RunError(
                    f"the gradient's norm is {norm} by step {step}: start again under another name with a lower "
                    "learning_rate or a higher warmup_fraction"
                )

    def sums(self) -> list[float]:
        """Sums and counts of this rank's metrics over the window, flat."""
        return torch.stack(self._metrics).double().sum(0).flatten().tolist()

    def summary(self, state: TrainState, sums: Sequence[float]) -> dict[str, float]:
        """Figures for a line of the log, without metrics that no example has, such as a loss of pairs.

        Args:
            sums: `sums()`, added up over the ranks.
        """
        seconds = max(state.seconds - self._seconds, 1e-9)
        pairs = zip(self.names, sums[::2], sums[1::2], strict=True)
        figures = {name: total / count for name, total, count in pairs if count}
        figures["gradient_norm"] = torch.stack(self._norms).mean().item()
        figures["learning_rate"] = self.learning_rate
        figures["tokens_per_second"] = (state.tokens - self._tokens) / seconds
        if self.peak_flops:
            figures["matmul_utilisation"] = self.flops / seconds / self.peak_flops
        return figures
