"""The problem type in which any number of labels is right, or none."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from training.problems.base import LabelProblem, f1
from training.problems.estimates import Estimate, average, mean

THRESHOLDS = sorted((i / 20 for i in range(1, 20)), key=lambda threshold: abs(threshold - 0.5))
"""Candidates from 0.05 to 0.95; of equally good ones, the one nearest to 0.5 wins."""

MIN_TEXTS = 10
"""Minimum number of dev texts with a label, and without it, to choose a threshold: that of fewer is mostly chance."""


@dataclass(frozen=True)
class MultiLabel(LabelProblem):
    """Scores are the probability of each label. The best seed has the highest micro F1: with few dev texts, the macro
    F1 depends on rare labels, which are mostly chance."""

    kind = "multi-label classifier"
    chosen = "micro_f1"

    def losses(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Binary cross-entropy in nats, mean over the labels."""
        return F.binary_cross_entropy_with_logits(logits, targets, reduction="none").mean(1)

    def scores(self, logits: Tensor) -> Tensor:
        return logits.sigmoid()

    def picked(self, scores: Tensor) -> Tensor:
        return scores > scores.new_tensor(self.thresholds or (THRESHOLDS[0],))

    def figures(self, scores: Tensor, targets: Tensor) -> dict[str, Estimate]:
        """F1 over all decisions, the mean F1 of the labels, and the share of texts with all labels right."""
        picked, true = self.picked(scores), self.picked(targets)
        return {
            "micro_f1": f1((picked & true).sum(1), picked.sum(1), true.sum(1)),
            "macro_f1": average([label.f1 for label in self.label_figures(scores, targets).values()]),
            "all_labels_right": mean((picked == true).all(1)),
        }

    def decisions(self, scores: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        picked = self.picked(scores)
        return scores.where(picked, 1 - scores).flatten(), (picked == self.picked(targets)).flatten()

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

    def tuned(self, scores: Tensor, targets: Tensor) -> MultiLabel:
        """The problem with the threshold of each label that has the highest F1 on dev, or 0.5 for labels of few
        texts."""
        true = targets > 0.5
        sizes = [((scores > each) & true, (scores > each).sum(0) + true.sum(0)) for each in THRESHOLDS]
        f1s = torch.stack([2 * both.sum(0) / size.clamp(min=1) for both, size in sizes])  # (thresholds, labels)
        is_known = torch.minimum(true.sum(0), (~true).sum(0)) >= MIN_TEXTS
        best = f1s.argmax(0) * is_known  # 0.5 is the first threshold
        return replace(self, thresholds=tuple(THRESHOLDS[i] for i in best.tolist()))
