"""The problem type in which one of several labels is right."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from training.problems.base import LabelProblem, one_hot
from training.problems.estimates import Estimate, mean


@dataclass(frozen=True)
class SingleLabel(LabelProblem):
    """Scores are probabilities of the labels, whose sum is 1. Targets may be such probabilities, too: soft labels."""

    kind = "classifier"
    chosen = "balanced_accuracy"
    compared = "accuracy"
    constant = "most frequent label"

    def losses(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy in nats; 0 for a row of zeros."""
        return F.cross_entropy(logits, targets, reduction="none")

    def scores(self, logits: Tensor) -> Tensor:
        return logits.softmax(1)

    def words(self, scores: Tensor) -> list[str]:
        return [self.names[i] for i in scores.argmax(1).tolist()]

    def picked(self, scores: Tensor) -> Tensor:
        return one_hot(scores.argmax(1), len(self.names))

    def figures(self, scores: Tensor, targets: Tensor) -> dict[str, Estimate]:
        """Accuracy, and the mean of the recalls of the labels that occur."""
        label = targets.argmax(1)
        right = (scores.argmax(1) == label).double()
        counts = label.bincount(minlength=len(self.names))
        recalls = label.bincount(right, minlength=len(self.names)) / counts.clamp(min=1)
        occurring = int((counts > 0).sum())
        influences = (right - recalls[label]) * len(label) / (counts[label] * occurring)
        balanced = Estimate(recalls.sum().item() / occurring, influences)
        return {"accuracy": mean(right), "balanced_accuracy": balanced}

    def decisions(self, scores: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        confidence, answer = scores.max(1)
        return confidence, answer == targets.argmax(1)

    def confusion(self, scores: Tensor, targets: Tensor) -> list[list[int]]:
        count = len(self.names)
        cells = targets.argmax(1) * count + scores.argmax(1)
        return cells.bincount(minlength=count**2).view(count, count).tolist()

    def constant_of(self, targets: Tensor) -> Tensor:
        return one_hot(targets.sum(0).argmax()[None], len(self.names))[0].float()

    def wrongness(self, scores: Tensor, targets: Tensor) -> Tensor:
        """The score of a wrong answer."""
        confidence, right = self.decisions(scores, targets)
        return confidence * ~right

    def rarest(self, targets: Tensor) -> int:
        return int(targets.sum(0).min())
