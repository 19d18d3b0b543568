"""How good a classifier is on labelled texts, and how honest its confidence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from model.heads import BertForSequenceClassification
from training.evaluate.mode import evaluating
from training.examples.labelled import LabelledTexts


@dataclass(frozen=True, slots=True)
class Bin:
    """Answers of about the same confidence."""

    count: int
    confidence: float
    accuracy: float

    @property
    def standard_error(self) -> float:
        """Standard error of the accuracy if the confidence is honest."""
        return math.sqrt(max(self.confidence * (1 - self.confidence), 0.0) / self.count) if self.count else 0.0


@dataclass(frozen=True, slots=True)
class ClassificationReport:
    """Figures of a classifier on one labelled source."""

    examples: int
    accuracy: float
    standard_error: float
    """Of the accuracy."""
    balanced_accuracy: float
    """Mean of the recalls of the labels that occur."""
    majority_accuracy: float
    """Accuracy of always answering the most frequent label."""
    loss: float
    """Mean cross-entropy in nats."""
    expected_calibration_error: float
    """Mean gap between confidence and accuracy (Guo et al. 2017), 15 bins of equal width."""
    calibration_error_by_chance: float
    """The same for a perfectly calibrated model on as few texts."""
    confusion: list[list[int]]
    """Rows: true label; columns: answer."""
    reliability: list[Bin]
    """The 15 bins, from unsure to sure."""

    def summary(self) -> dict[str, float]:
        """Figures for a line of the log."""
        names = ("accuracy", "balanced_accuracy", "loss", "expected_calibration_error")
        return {name: round(getattr(self, name), 4) for name in names}


@dataclass(frozen=True, slots=True)
class Answers:
    """What a classifier says to many texts."""

    logits: Tensor
    """(answers, labels) float32 on the CPU."""
    labels: Tensor
    """(answers,) true labels."""
    documents: list[int]
    """Document of each answer: one that is read as text and as a pair has two answers."""

    def report(self) -> ClassificationReport:
        """Figures of these answers."""
        return classification_report(self.logits, self.labels)


def predict_classification(model: BertForSequenceClassification, texts: LabelledTexts) -> Answers:
    """Answers to all documents in all their readings."""
    device = next(model.parameters()).device
    documents: list[int] = []
    logits, labels = [], []
    with evaluating(model):
        for chosen, batch in texts.batches():
            documents += chosen
            logits.append(model(batch.to(device).packed).float().cpu())
            labels.append(batch.labels)
    return Answers(torch.cat(logits), torch.cat(labels), documents)


def classification_report(logits: Tensor, labels: Tensor) -> ClassificationReport:
    """Figures of logits (texts, labels) against true labels (texts,)."""
    confidence, answer = logits.softmax(1).max(1)
    right = answer == labels
    bins = reliability(confidence, right)
    counts = labels.bincount(minlength=logits.shape[1])
    confusion = torch.zeros(logits.shape[1], logits.shape[1], dtype=torch.int64)
    confusion.index_put_((labels, answer), torch.ones_like(labels), accumulate=True)
    recalls = confusion.diagonal()[counts > 0] / counts[counts > 0]
    accuracy = right.double().mean().item()
    return ClassificationReport(
        examples=len(labels),
        accuracy=accuracy,
        standard_error=math.sqrt(accuracy * (1 - accuracy) / len(labels)),
        balanced_accuracy=recalls.double().mean().item(),
        majority_accuracy=counts.max().item() / len(labels),
        loss=F.cross_entropy(logits, labels).item(),
        expected_calibration_error=expected_calibration_error(bins),
        calibration_error_by_chance=calibration_error_by_chance(bins),
        confusion=confusion.tolist(),
        reliability=bins,
    )


def reliability(confidence: Tensor, right: Tensor, bins: int = 15) -> list[Bin]:
    """Answers by confidence in bins of equal width; both arguments are (answers,)."""
    index = (confidence.double() * bins).long().clamp_(max=bins - 1)
    counts = index.bincount(minlength=bins)
    sums = [index.bincount(values.double(), minlength=bins) for values in (confidence, right)]
    means = [(total / counts.clamp(min=1)).tolist() for total in sums]
    return [Bin(*row) for row in zip(counts.tolist(), *means, strict=True)]


def expected_calibration_error(bins: Sequence[Bin]) -> float:
    """Mean gap between confidence and accuracy over all answers (Guo et al. 2017, section 2)."""
    total = sum(b.count for b in bins)
    return sum(b.count * abs(b.confidence - b.accuracy) for b in bins) / total


def calibration_error_by_chance(bins: Sequence[Bin]) -> float:
    """Expected value of `expected_calibration_error` if every confidence were honest (consistency of Bröcker & Smith
    2007, with a normal distribution in place of their resampling)."""
    total = sum(b.count for b in bins)
    return math.sqrt(2 / math.pi) * sum(b.count * b.standard_error for b in bins) / total
