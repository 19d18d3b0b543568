"""The problem type in which any number of labels is right, or none."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from training.problems.base import LabelProblem, f1
from training.problems.estimates import Estimate, average, mean

THRESHOLD = 0.5
"""Score above which a label is answered."""


@dataclass(frozen=True)
class MultiLabel(LabelProblem):
    """Scores are the probability of each label. The best seed has the highest micro F1: with few dev texts, the macro
    F1 depends on rare labels, which are mostly chance."""

    kind = "multi-label classifier"
    chosen = "micro_f1"
    compared = "micro_f1"
    constant = "most frequent labels"

    def losses(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Binary cross-entropy in nats, mean over the labels."""
        return F.binary_cross_entropy_with_logits(logits, targets, reduction="none").mean(1)

    def scores(self, logits: Tensor) -> Tensor:
        return logits.sigmoid()

    def words(self, scores: Tensor) -> list[str]:
        rows = self.picked(scores).tolist()
        found = (", ".join(name for name, picked in zip(self.names, row, strict=True) if picked) for row in rows)
        return [words or "(none)" for words in found]

    def picked(self, scores: Tensor) -> Tensor:
        return scores > THRESHOLD

    def figures(self, scores: Tensor, targets: Tensor) -> dict[str, Estimate]:
        """F1 over all decisions, the mean F1 of the labels, and the share of texts with all labels right."""
        picked, true = self.picked(scores), self.picked(targets)
        return {
            "micro_f1": f1((picked & true).sum(1), picked.sum(1), true.sum(1)),
            "macro_f1": average([label.f1 for label in self.label_figures(scores, targets).values()]),
            "all_labels_right": mean((picked == true).all(1)),
        }

    def decisions(self, scores: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        right = self.picked(scores) == self.picked(targets)
        return torch.maximum(scores, 1 - scores).flatten(), right.flatten()

    def constant_of(self, targets: Tensor) -> Tensor:
        """The N most frequent labels, where N gives the highest micro F1."""
        counts, order = targets.sum(0).sort(descending=True)
        answered = torch.arange(1, len(counts) + 1)
        best = (2 * counts.cumsum(0) / (answered * len(targets) + counts.sum())).argmax()
        return torch.zeros(len(counts)).index_fill(0, order[: best + 1], 1.0)

    def wrongness(self, scores: Tensor, targets: Tensor) -> Tensor:
        """The confidence of the surest wrong decision."""
        confidence, right = self.decisions(scores, targets)
        return (confidence * ~right).view_as(scores).amax(1)
