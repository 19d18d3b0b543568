"""The interface of the three problem types, named as in `transformers`."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model.heads import BertForSequenceClassification
from training.problems.estimates import Estimate, Figure, ratio

Floats = NDArray[np.float32]


F = TypeVar("F", Estimate, Figure)


@dataclass(frozen=True, slots=True)
class LabelFigures(Generic[F]):
    """Figures of one label."""

    texts: int
    """Texts that have the label."""
    precision: F
    recall: F
    f1: F


@dataclass(frozen=True)
class Problem(ABC):
    """One problem type with the names of its outputs.

    Logits, scores and targets are (texts, outputs). The service returns scores. Targets are the scores of a perfect
    model.
    """

    names: tuple[str, ...]
    thresholds: tuple[float, ...] = ()
    """Scores above which a text has each of several labels; empty: 0.5."""

    kind: ClassVar[str]
    """Kind of model in a model card."""
    chosen: ClassVar[str]
    """Name of the figure on dev that chooses among seeds."""
    lower_is_better: ClassVar[bool] = False
    """Whether lower values of `chosen`, and of the first of `figures`, are better."""

    def fitted(self, labels: NDArray[Any]) -> Self:
        """The problem with values that depend on the training texts.

        Args:
            labels: column of the texts to train on; see `training.corpus.encode.label_column`.
        """
        return self

    def fold(self, model: BertForSequenceClassification) -> None:
        """Write the values of `fitted` into the last layer, so that the model's own scores are right."""

    def unfold(self, model: BertForSequenceClassification) -> None:
        """Undo `fold`, for a classifier that is trained further."""

    def tuned(self, scores: Tensor, targets: Tensor) -> Self:
        """The problem with the thresholds that fit the scores of dev texts best."""
        return self

    @abstractmethod
    def losses(self, logits: Tensor, targets: Tensor) -> Tensor:
        """(texts,) loss of each text."""

    @abstractmethod
    def scores(self, logits: Tensor) -> Tensor:
        """The scores that the service returns for these logits."""

    @abstractmethod
    def words(self, scores: Tensor) -> list[str]:
        """The answer to each text in words."""

    @abstractmethod
    def figures(self, scores: Tensor, targets: Tensor) -> dict[str, Estimate]:
        """Figures of the quality of the scores. The first one is compared with those of other models."""

    @abstractmethod
    def constant_of(self, targets: Tensor) -> Tensor:
        """(outputs,) scores of the best answer that is the same for every text."""

    @abstractmethod
    def wrongness(self, scores: Tensor, targets: Tensor) -> Tensor:
        """(texts,) how wrong each answer is; 0 if it is right."""

    def rarest(self, targets: Tensor) -> int:
        """Number of texts of the rarest label, or of all texts. If it is small, figures are mostly chance."""
        return len(targets)

    def merit(self, figure: Estimate) -> float:
        """A `chosen` figure as a number where higher is better; the worst one where it is not defined."""
        value = -figure.value if self.lower_is_better else figure.value
        return value if not math.isnan(value) else -math.inf if self.lower_is_better else 0.0

    def decisions(self, scores: Tensor, targets: Tensor) -> tuple[Tensor, Tensor] | None:
        """(decisions,) confidence of each decision, and whether it is right; None for a regression."""
        return None

    def confusion(self, scores: Tensor, targets: Tensor) -> list[list[int]] | None:
        """Texts by true label (rows) and answer (columns); None if an answer is not one label."""
        return None

    def label_figures(self, scores: Tensor, targets: Tensor) -> dict[str, LabelFigures[Estimate]]:
        """Figures of each label; none without labels."""
        return {}


class LabelProblem(Problem):
    """A problem whose outputs are labels, some of which an answer picks."""

    @abstractmethod
    def picked(self, scores: Tensor) -> Tensor:
        """(texts, labels) whether the answer has each label."""

    def words(self, scores: Tensor) -> list[str]:
        """The labels of each answer."""
        rows = self.picked(scores).tolist()
        found = (", ".join(name for name, picked in zip(self.names, row, strict=True) if picked) for row in rows)
        return [words or "(none)" for words in found]

    def label_figures(self, scores: Tensor, targets: Tensor) -> dict[str, LabelFigures[Estimate]]:
        """Precision, recall and F1 of each label."""
        picked, true = self.picked(scores).T, self.picked(targets).T  # (labels, texts)
        both = picked & true
        return {
            name: LabelFigures(int(t.sum()), ratio(b, p), ratio(b, t), f1(b, p, t))
            for name, b, p, t in zip(self.names, both, picked, true, strict=True)
        }


def f1(both: Tensor, picked: Tensor, true: Tensor) -> Estimate:
    """F1 from counts per text, each (texts,): labels that are right, answered and true."""
    return ratio(2 * both.long(), picked.long() + true.long())


def one_hot(index: Tensor, count: int) -> Tensor:
    """(texts,) -> (texts, count) bool"""
    return index[:, None] == torch.arange(count, device=index.device)
