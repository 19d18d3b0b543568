"""Means of a run's metrics over some steps, kept on the device until they are logged."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from training.errors import RunError
from training.loop.checkpoint import TrainState
from training.runtime.device import DIVERGED_REMEDY

MAX_SKIPPED = 3
"""Maximum number of skipped steps in a row. A single batch may overflow; more of them mean that training diverges."""

logger = logging.getLogger(__name__)


class MetricWindow:
    """Metrics of the steps since the last line of the log. Means leave out steps that were skipped, because their
    gradient was not finite.

    They are losses in nats, a gradient norm without a unit, and tokens per second over all ranks. One is of this rank:
    the share of time in which it waited for batches (on a CPU, made them).
    """

    def __init__(self, names: Sequence[str], state: TrainState) -> None:
        self.names = names
        self.waited = 0.0
        self.learning_rate = 0.0
        self._tokens, self._seconds = state.tokens, state.seconds
        self._metrics: list[Tensor] = []
        self._norms: list[Tensor] = []
        self._counted = self._skipped = 0

    def add(self, metrics: Tensor, norm: Tensor, learning_rate: float, waited: float) -> None:
        """Add one step.

        Args:
            metrics: (names, 2) sum and count of each metric.
            norm: () norm of the gradient.
            waited: seconds of waiting for its batches.
        """
        self.waited += waited
        self.learning_rate = learning_rate
        self._metrics.append(metrics.where(norm.isfinite(), 0.0))
        self._norms.append(norm)

    def count_skipped(self, state: TrainState) -> None:
        """Count the skipped steps up to this one.

        Raises:
            RunError: there are more than `MAX_SKIPPED` in a row.
        """
        before = self._skipped
        for norm in torch.stack(self._norms[self._counted :]).tolist():
            is_skipped = not math.isfinite(norm)
            self._skipped += is_skipped
            state.skipped_in_row = (state.skipped_in_row + 1) * is_skipped
            if state.skipped_in_row > MAX_SKIPPED:
                raise RunError(
                    f"the gradient's norm is {norm} by step {state.step}, as in {MAX_SKIPPED} steps before, which were "
                    f"skipped: {DIVERGED_REMEDY}"
                )
        self._counted = len(self._norms)
        if self._skipped > before:
            more = self._skipped - before
            logger.warning("skipped steps: %d up to step %d, because their gradient is not finite", more, state.step)

    def sums(self) -> list[float]:
        """Sums and counts of this rank's metrics over the window, flat."""
        return torch.stack(self._metrics).double().sum(0).flatten().tolist()

    def summary(self, state: TrainState, sums: Sequence[float]) -> dict[str, float]:
        """Figures for a line of the log, without metrics that no example has, such as a loss of pairs. Call
        `count_skipped` first.

        Args:
            sums: `sums()`, added over the ranks.
        """
        seconds = max(state.seconds - self._seconds, 1e-9)
        triples = zip(self.names, sums[::2], sums[1::2], strict=True)
        figures = {name: total / count for name, total, count in triples if count}
        norms = torch.stack(self._norms)
        if self._skipped < len(norms):
            figures["gradient_norm"] = norms[norms.isfinite()].mean().item()
        if self._skipped:
            figures["skipped_steps"] = self._skipped
        figures["learning_rate"] = self.learning_rate
        figures["tokens_per_second"] = (state.tokens - self._tokens) / seconds
        figures["batch_wait"] = self.waited / seconds
        return figures
