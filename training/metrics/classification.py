"""Predictions of a classifier for labelled texts, and the calibration of its confidence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from model.checkpoint import Checkpoint, load_checkpoint
from model.heads import BertForSequenceClassification
from model.packing import PackedBatch
from model.tokenizer import Tokenizer
from training.errors import RunError
from training.examples.labelled import LabelledTexts, encode_texts
from training.metrics.domains import rows_by_domain
from training.problems.base import Problem
from training.problems.choose import problem_of
from training.problems.estimates import Estimate
from training.recipe import SINGLE_LABEL, FinetuneConfig
from training.runtime.device import check_finite, evaluating
from training.sources.documents import Document


@dataclass(frozen=True, slots=True)
class Bin:
    """Answers of about the same confidence."""

    count: int
    confidence: float
    accuracy: float

    @property
    def standard_error(self) -> float:
        """Standard error of the accuracy if the confidence is calibrated."""
        return math.sqrt(max(self.confidence * (1 - self.confidence), 0.0) / self.count) if self.count else 0.0


@dataclass(frozen=True, slots=True)
class Answers:
    """Predictions of a classifier for a number of texts."""

    problem: Problem
    logits: Tensor
    """(answers, outputs) float32 on the CPU."""
    targets: Tensor
    """(answers, outputs) the correct scores."""
    documents: list[int]
    """Document of each answer, ascending. A document that is read as text and as a pair has two answers."""
    domains: Sequence[str] = ()
    """Domain of each answer, "" without one; empty if no document has one."""

    @property
    def scores(self) -> Tensor:
        """(answers, outputs) the scores that the service would return."""
        return self.problem.scores(self.logits)

    @property
    def loss(self) -> float:
        """Mean loss of the texts."""
        return self.problem.losses(self.logits, self.targets).mean().item()

    def by_domain(self) -> dict[str, Answers]:
        """The answers in each domain. They are in one group if there are no domains, or if no domain has texts with
        different targets."""
        rows = rows_by_domain(self.domains, self.targets)
        parts = {name: self._only(chosen) for name, chosen in rows.items()}
        return parts or {"": self}

    def _only(self, rows: list[int]) -> Answers:
        documents, domains = [self.documents[i] for i in rows], [self.domains[i] for i in rows]
        return Answers(self.problem, self.logits[rows], self.targets[rows], documents, domains)

    def figures(self) -> dict[str, Estimate]:
        """Figures of the quality of the answers."""
        return self.problem.figures(self.scores, self.targets)

    def summary(self) -> dict[str, float]:
        """Figures for a line of the log."""
        figures = {name: figure.value for name, figure in self.figures().items()} | {"loss": self.loss}
        return {name: round(value, 4) for name, value in figures.items() if not math.isnan(value)}


def load_classifier(folder: Path, config: FinetuneConfig) -> Checkpoint:
    """The classifier in a folder.

    Raises:
        RunError: it is not a classifier, or of another problem type, or has other labels. Their order may differ.
    """
    checkpoint = load_checkpoint(folder)
    if not isinstance(checkpoint.model, BertForSequenceClassification):
        raise RunError(f"{folder} is not a classifier")
    found, kind = checkpoint.config.labels, checkpoint.config.problem_type or SINGLE_LABEL
    if kind != config.problem_type:
        raise RunError(f"{checkpoint.path} is for {kind}, but finetune.problem_type is {config.problem_type}")
    if sorted(found) != sorted(config.label_names):
        remedy = "if they mean the same, write the recipe's into id2label of its config.json, each at its number"
        raise RunError(
            f"{checkpoint.path} has the labels {found}, but finetune.labels are {config.label_names}; {remedy}"
        )
    return checkpoint


def check_reading(
    checkpoint: Checkpoint, read: str = "text", longest: int = 0, tokenizer: Tokenizer | None = None
) -> None:
    """Check that a network can read some texts.

    Args:
        read: how they are read; pretraining has pairs.
        longest: tokens of the longest.
        tokenizer: tokenizer with which they were prepared; None for the network's own.

    Raises:
        RunError: it has too few positions, another vocabulary, or one token type and so no pairs.
    """
    config, own, path = checkpoint.config, checkpoint.tokenizer, checkpoint.path
    if tokenizer and own.to_json() != tokenizer.to_json():
        fault = "has another vocabulary, or other model_input_names, than the prepared text"
        raise RunError(f"{path} {fault}: name a network with the vocabulary of the run")
    if longest > config.max_position_embeddings:
        limits = "lower max_length, or long_length in pretraining"
        raise RunError(f"{path} has {config.max_position_embeddings} positions, not {longest}: {limits}")
    if read != "text" and own.second_type_id >= config.type_vocab_size:
        remedy = 'set read = "text", or begin with another network'
        raise RunError(f"{path} takes single texts only (its type_vocab_size is 1), not pairs: {remedy}")


def classify(checkpoint: Checkpoint, documents: Sequence[Document], read: str) -> Answers:
    """Classify documents in memory. They are read as the service reads them: up to the network's positions.

    Raises:
        RunError: see `check_reading`.
    """
    check_reading(checkpoint, read)
    model, tokenizer = checkpoint.model, checkpoint.tokenizer
    assert isinstance(model, BertForSequenceClassification)
    targets = np.full((len(documents), model.config.num_labels), np.nan, np.float32)
    texts = encode_texts(documents, targets, read, tokenizer, model.config.max_position_embeddings)
    return predict_classification(model, texts)


def predict_classification(
    model: BertForSequenceClassification, texts: LabelledTexts, most: int | None = None
) -> Answers:
    """Classify all documents in all their readings, or at most `most` documents, evenly spaced.

    Raises:
        RunError: see `check_finite`.
    """
    device = next(model.parameters()).device
    documents: list[int] = []
    logits, targets = [], []
    step = max(1, -(-len(texts) // most)) if most else 1
    with evaluating(model):
        for chosen, batch in texts.batches(texts.documents[::step].tolist()):
            documents += chosen
            logits.append(classifier_logits(model, batch.to(device).packed).cpu())
            check_finite(logits[-1])
            targets.append(batch.targets)
    order = torch.tensor(documents).argsort(stable=True)
    problem = problem_of(model.config.problem_type, model.config.labels)
    documents.sort()
    domains = () if texts.domains is None else [domain.decode() for domain in texts.domains[documents].tolist()]
    return Answers(problem, torch.cat(logits)[order], torch.cat(targets)[order], documents, domains)


def classifier_logits(model: BertForSequenceClassification, packed: PackedBatch) -> Tensor:
    """(sequences, outputs) logits of a packed batch in an evaluation. Heads compute in float32, as in the service."""
    hidden = model.encoder(packed)  # (sequences, hidden)
    with torch.autocast(hidden.device.type, enabled=False):
        logits: Tensor = model.classifier(model.pooler(hidden.float()))
    return logits


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
    """The calibration error that a perfectly calibrated model would show on this number of texts: its expected value
    (consistency of Bröcker & Smith 2007, with a normal distribution in place of their resampling)."""
    mean = float(np.average([b.standard_error for b in bins], weights=[b.count for b in bins]))
    return math.sqrt(2 / math.pi) * mean
