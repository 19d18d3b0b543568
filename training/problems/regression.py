"""The problem type whose output is a number."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model.heads import BertForSequenceClassification
from training.problems.base import Problem
from training.problems.estimates import Estimate, correlation, mean, root


@dataclass(frozen=True)
class Regression(Problem):
    """The score is the number, in the unit of the table. The network is trained on numbers with mean 0 and standard
    deviation 1, because its last layer begins near 0 and changes by small steps."""

    offset: float = 0.0
    """Mean of the numbers to train on; 0 once it is folded into the last layer."""
    scale: float = 1.0
    """Standard deviation of the numbers to train on; 1 once it is folded into the last layer."""

    kind = "regression"
    chosen = "root_mean_squared_error"
    lower_is_better = True

    def fitted(self, labels: NDArray[Any]) -> Regression:
        return replace(self, offset=float(labels.mean(dtype=np.float64)), scale=float(labels.std(dtype=np.float64)))

    @torch.no_grad()
    def fold(self, model: BertForSequenceClassification) -> None:
        model.classifier.weight.mul_(self.scale)
        model.classifier.bias.mul_(self.scale).add_(self.offset)

    @torch.no_grad()
    def unfold(self, model: BertForSequenceClassification) -> None:
        model.classifier.weight.div_(self.scale)
        model.classifier.bias.sub_(self.offset).div_(self.scale)

    def losses(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Squared error, in units of the variance."""
        return (logits - (targets - self.offset) / self.scale).square().squeeze(1)

    def scores(self, logits: Tensor) -> Tensor:
        return logits * self.scale + self.offset

    def words(self, scores: Tensor) -> list[str]:
        return [f"{number:.7g}" for number in scores.squeeze(1).tolist()]

    def figures(self, scores: Tensor, targets: Tensor) -> dict[str, Estimate]:
        """Root mean squared and mean absolute error in the unit of the table, and Pearson's correlation."""
        errors = (scores - targets).double().squeeze(1)
        return {
            "root_mean_squared_error": root(mean(errors.square())),
            "mean_absolute_error": mean(errors.abs()),
            "correlation": correlation(scores.squeeze(1), targets.squeeze(1)),
        }

    def constant_of(self, targets: Tensor) -> Tensor:
        return targets.mean(0)

    def wrongness(self, scores: Tensor, targets: Tensor) -> Tensor:
        """The absolute error."""
        return (scores - targets).abs().squeeze(1)
