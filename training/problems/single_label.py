"""The problem type in which one of several labels is right."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from training.problems.base import LabelProblem, one_hot
from training.problems.estimates import Estimate, average, average_precision, mean

RARE = 0.1
"""Share of the texts below which one of two labels is rare: always answering the other has an accuracy above 0.9."""


@dataclass(frozen=True)
class SingleLabel(LabelProblem):
    """Scores are probabilities of the labels, whose sum is 1. Targets may be such probabilities, too: soft labels."""

    kind = "classifier"
    chosen = "balanced_accuracy"

    def losses(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy in nats; 0 for a row of zeros."""
        return F.cross_entropy(logits, targets, reduction="none")

    def scores(self, logits: Tensor) -> Tensor:
        return logits.softmax(1)

    def picked(self, scores: Tensor) -> Tensor:
        return one_hot(scores.argmax(1), len(self.names))

    def figures(self, scores: Tensor, targets: Tensor) -> dict[str, Estimate]:
        """Accuracy, and the mean of the recalls of the labels that occur. If one of two labels is rare, its average
        precision and F1 come first. Of models that never answer it, F1 is 0, but average precision tells them apart."""
        label = targets.argmax(1)
        labels, counts = self.label_figures(scores, targets), label.bincount(minlength=len(self.names))
        recall = average([each.recall for each in labels.values()])
        found = {"accuracy": mean(scores.argmax(1) == label), "balanced_accuracy": recall}
        rare = int(counts.argmin())
        if len(counts) == 2 and 0 < counts[rare] < RARE * len(label):
            name, precision = self.names[rare], average_precision(scores[:, rare], label == rare)
            found = {f"average precision of {name}": precision, f"F1 of {name}": labels[name].f1} | found
        return found

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
