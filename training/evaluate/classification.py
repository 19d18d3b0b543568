"""How good a classifier is on labelled texts, and how honest its confidence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from model.checkpoint import Checkpoint, load_checkpoint
from model.heads import BertForSequenceClassification
from training.errors import RunError
from training.examples.labelled import LabelledTexts, encode_texts
from training.runtime.device import evaluating
from training.sources.documents import Document


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
    """Document of each answer, ascending: one that is read as text and as a pair has two answers."""

    def report(self) -> ClassificationReport:
        """Figures of these answers."""
        return classification_report(self.logits, self.labels)


def load_classifier(folder: Path, labels: Sequence[str]) -> Checkpoint:
    """The classifier in a folder.

    Raises:
        RunError: it is not a classifier, or has other labels.
    """
    checkpoint = load_checkpoint(folder)
    if not isinstance(checkpoint.model, BertForSequenceClassification):
        raise RunError(f"{folder} is not a classifier")
    check_classes(checkpoint, labels)
    return checkpoint


def check_classes(checkpoint: Checkpoint, labels: Sequence[str]) -> None:
    """Raise RunError if a classifier has other labels, or does not choose one of them."""
    found = checkpoint.config.labels
    if checkpoint.config.problem_type not in (None, "single_label_classification"):
        raise RunError(f"{checkpoint.path} is for {checkpoint.config.problem_type}; training chooses one of the labels")
    if found != labels:
        raise RunError(f"{checkpoint.path} has the labels {found}, but finetune.labels are {labels}")


def check_reading(checkpoint: Checkpoint, read: str) -> None:
    """Raise RunError if texts are read as pairs, and the network has one token type."""
    if read != "text" and checkpoint.tokenizer.second_type_id >= checkpoint.config.type_vocab_size:
        raise RunError(f'{checkpoint.path} takes single texts only (its type_vocab_size is 1): set read = "text"')


def classify(checkpoint: Checkpoint, documents: Sequence[Document], labels: Sequence[int], read: str) -> Answers:
    """Answers to documents in memory, read as the service reads them: up to the network's positions.

    Raises:
        RunError: see `check_reading`.
    """
    check_reading(checkpoint, read)
    model, tokenizer = checkpoint.model, checkpoint.tokenizer
    assert isinstance(model, BertForSequenceClassification)
    targets = np.eye(model.config.num_labels, dtype=np.float32)[list(labels)]
    texts = encode_texts(documents, targets, read, tokenizer, model.config.max_position_embeddings)
    return predict_classification(model, texts)


def predict_classification(
    model: BertForSequenceClassification, texts: LabelledTexts, most: int | None = None
) -> Answers:
    """Answers to all documents in all their readings, or to at most `most` documents, evenly spaced."""
    device = next(model.parameters()).device
    documents: list[int] = []
    logits, labels = [], []
    with evaluating(model):
        for chosen, batch in texts.batches(most):
            documents += chosen
            logits.append(model(batch.to(device).packed).float().cpu())
            labels.append(batch.labels)
    order = torch.tensor(documents).argsort(stable=True)
    return Answers(torch.cat(logits)[order], torch.cat(labels)[order], sorted(documents))


def classification_report(logits: Tensor, labels: Tensor) -> ClassificationReport:
    """Figures of logits (texts, labels) against true labels (texts,)."""
    count = logits.shape[1]
    confidence, answer = logits.softmax(1).max(1)
    confusion = (labels * count + answer).bincount(minlength=count**2).view(count, count)
    bins = reliability(confidence, answer == labels)
    accuracy = (answer == labels).double().mean().item()
    return ClassificationReport(
        examples=len(labels),
        accuracy=accuracy,
        standard_error=math.sqrt(accuracy * (1 - accuracy) / len(labels)),
        balanced_accuracy=balanced_accuracy(answer, labels),
        majority_accuracy=confusion.sum(1).max().item() / len(labels),
        loss=F.cross_entropy(logits, labels).item(),
        expected_calibration_error=expected_calibration_error(bins),
        calibration_error_by_chance=calibration_error_by_chance(bins),
        confusion=confusion.tolist(),
        reliability=bins,
    )


def balanced_accuracy(answers: Tensor, labels: Tensor) -> float:
    """Mean of the recalls of the labels that occur; both arguments are (texts,)."""
    recalls = [(answers[labels == label] == label).double().mean().item() for label in labels.unique()]
    return sum(recalls) / len(recalls)


def reliability(confidence: Tensor, right: Tensor, bins: int = 15) -> list[Bin]:
    """Answers by confidence in bins of equal width; both arguments are (answers,)."""
    index = (confidence.double() * bins).long().clamp_(max=bins - 1)
    counts = index.bincount(minlength=bins)
    sums = [index.bincount(values.double(), minlength=bins) for values in (confidence, right)]
    means = [(total / counts.clamp(min=1)).tolist() for total in sums]
    return [Bin(*row) for row in zip(counts.tolist(), *means, strict=True)]


def expected_calibration_error(bins: Sequence[Bin]) -> float:
    """Mean gap between confidence and accuracy over all answers (Guo et al. 2017, section 2)."""
    return float(np.average([abs(b.confidence - b.accuracy) for b in bins], weights=[b.count for b in bins]))


def calibration_error_by_chance(bins: Sequence[Bin]) -> float:
    """Expected value of `expected_calibration_error` if every confidence were honest (consistency of Bröcker & Smith
    2007, with a normal distribution in place of their resampling)."""
    mean = float(np.average([b.standard_error for b in bins], weights=[b.count for b in bins]))
    return math.sqrt(2 / math.pi) * mean
