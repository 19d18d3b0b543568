"""How good a model is, on text it has not seen, beside what a trivial guess would score."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from model.heads import BertForPreTraining, BertForSequenceClassification
from model.tokenizer import Tokenizer
from training.corpus.prepare import Corpus
from training.examples.batches import ClassificationBatch, PretrainingBatch, collate_pretraining
from training.examples.pairs import (
    ALONE,
    IS_NEXT,
    KINDS,
    NEXT,
    NOT_NEXT,
    RANDOM,
    Example,
    ExampleMaker,
    Vocabulary,
    unmasked,
)
from training.recipe import ExamplesConfig
from training.runtime.compile import uncompiled
from training.runtime.device import autocast, choose_precision

EVALUATION_SEED = 20181011
"""Of masks and pairs in every evaluation, so that all models answer the same questions."""

BATCH = 64


@dataclass(frozen=True, slots=True)
class PretrainingReport:
    """Masked LM at 15%, and next sentence with nothing masked, on one held-out source."""

    examples: int
    masked: int
    mlm_loss: float
    """Nats per masked token"""
    mlm_accuracy: float
    unigram_entropy: float
    """What the best guess without context loses: the entropy of this source's own tokens, in nats"""
    unigram_accuracy: float
    """How often the most frequent token is right"""
    nsp_accuracy: float | None
    """Over all pairs; a coin scores 0.5; None where no document has two sentences"""
    nsp_accuracy_random: float | None
    """Over true pairs and second segments from another document, each weighing half"""
    nsp_recall: dict[str, float]
    """Share answered rightly by kind of pair"""

    def summary(self) -> dict[str, float]:
        """The figures for a line of the log."""
        figures = {
            "mlm_loss": self.mlm_loss,
            "mlm_accuracy": self.mlm_accuracy,
            "nsp_accuracy": self.nsp_accuracy,
            "nsp_accuracy_random": self.nsp_accuracy_random,
        }
        return {name: round(figure, 4) for name, figure in figures.items() if figure is not None}


@dataclass(frozen=True, slots=True)
class Bin:
    """Answers of about the same confidence."""

    count: int
    confidence: float
    accuracy: float

    @property
    def standard_error(self) -> float:
        """Of the accuracy, if the confidence is honest."""
        return math.sqrt(max(self.confidence * (1 - self.confidence), 0.0) / self.count) if self.count else 0.0


@dataclass(frozen=True, slots=True)
class ClassificationReport:
    """A classifier on one labelled source."""

    examples: int
    accuracy: float
    majority_accuracy: float
    """What always answering the most frequent label scores"""
    loss: float
    expected_calibration_error: float
    """Guo et al. 2017, 15 bins of equal width over the confidence"""
    calibration_error_by_chance: float
    """The same for a model that is as sure and perfectly honest, on so few texts"""
    confusion: list[list[int]]
    """Rows: true label; columns: answer"""
    reliability: list[Bin]
    """The 15 bins, from unsure to sure"""

    def summary(self) -> dict[str, float]:
        """The figures for a line of the log."""
        figures = {
            "accuracy": self.accuracy,
            "loss": self.loss,
            "expected_calibration_error": self.expected_calibration_error,
        }
        return {name: round(figure, 4) for name, figure in figures.items()}


def evaluate_pretraining(
    model: BertForPreTraining,
    heldout: Mapping[str, Corpus],
    tokenizer: Tokenizer,
    config: ExamplesConfig,
    *,
    examples: int,
) -> dict[str, PretrainingReport]:
    """Evaluate on the same examples every time: pairs of each kind as by default, whatever the training does.
    15% of the tokens are masked, but not where the question is which sentences follow: nobody who asks a
    service that has masked them."""
    config = ExamplesConfig(
        sequence_length=config.sequence_length,
        short_fraction=config.short_fraction,
        sentence_pair_fraction=config.sentence_pair_fraction,
    )
    vocabulary = Vocabulary.of(tokenizer)
    reports = {}
    for name, corpus in heldout.items():
        maker = ExampleMaker(corpus, vocabulary, config, EVALUATION_SEED)
        chosen = [maker(0, i) for i in range(min(examples, len(maker.starts(0))))]
        words = predict_pretraining(model, chosen)
        pairs = predict_pretraining(model, [unmasked(example) for example in chosen])
        reports[name] = _report(words, pairs, unigram_shares(corpus, tokenizer.unk_id))
    return reports


def predict_pretraining(model: BertForPreTraining, examples: Sequence[Example]) -> PretrainingAnswers:
    """Answers to examples, in order."""
    cuts = range(0, len(examples), BATCH)
    with evaluating(model):
        answers = [_predict(model, collate_pretraining(examples[at : at + BATCH])) for at in cuts]
    return PretrainingAnswers(*(np.concatenate(column) for column in zip(*answers, strict=True)))


@dataclass(frozen=True, slots=True)
class PretrainingAnswers:
    """What a model said to many examples."""

    losses: NDArray[np.float32]
    """Of each masked token, in nats: (num_masked,)"""
    right: NDArray[np.bool_]
    """Whether the first guess was right: (num_masked,)"""
    follows: NDArray[np.int64]
    """IS_NEXT or NOT_NEXT: (examples,)"""
    kinds: NDArray[np.int64]
    """Index into KINDS: (examples,)"""


def _predict(model: BertForPreTraining, batch: PretrainingBatch) -> tuple[NDArray[Any], ...]:
    assert model.next_sentence is not None
    batch = batch.to(next(model.parameters()).device)
    hidden = model(batch.packed)
    logits = model.masked_lm(hidden[batch.masked_rows]).float()
    follows = model.next_sentence(hidden[batch.cls_rows]).argmax(1)
    losses = F.cross_entropy(logits, batch.masked_ids, reduction="none")
    right = logits.argmax(1) == batch.masked_ids
    return tuple(tensor.cpu().numpy() for tensor in (losses, right, follows, batch.kinds))


def _report(
    words: PretrainingAnswers, pairs: PretrainingAnswers, unigrams: NDArray[np.float64]
) -> PretrainingReport:
    paired = pairs.kinds != ALONE
    correct = pairs.follows == np.where(pairs.kinds == NEXT, IS_NEXT, NOT_NEXT)
    recall = {
        KINDS[kind]: float(correct[pairs.kinds == kind].mean()) for kind in np.unique(pairs.kinds[paired])
    }
    by_topic = [recall[KINDS[kind]] for kind in (NEXT, RANDOM) if KINDS[kind] in recall]
    return PretrainingReport(
        examples=len(words.kinds),
        masked=len(words.losses),
        mlm_loss=float(words.losses.mean()),
        mlm_accuracy=float(words.right.mean()),
        unigram_entropy=float(-(unigrams * np.log(unigrams)).sum()),
        unigram_accuracy=float(unigrams.max()),
        nsp_accuracy=float(correct[paired].mean()) if paired.any() else None,
        nsp_accuracy_random=sum(by_topic) / 2 if len(by_topic) == 2 else None,
        nsp_recall=recall,
    )


def unigram_shares(corpus: Corpus, unk_id: int) -> NDArray[np.float64]:
    """How frequent each token of a corpus is that is asked for, without those that do not occur; sums to 1."""
    counts = corpus.token_counts()
    counts[unk_id] = 0
    return counts[counts > 0] / counts.sum()


def evaluate_classification(
    model: BertForSequenceClassification, batches: Iterable[ClassificationBatch]
) -> ClassificationReport:
    """Evaluate on labelled texts."""
    logits, labels = predict_classification(model, batches)
    return classification_report(logits, labels)


def predict_classification(
    model: BertForSequenceClassification, batches: Iterable[ClassificationBatch]
) -> tuple[Tensor, Tensor]:
    """Logits (texts, num_labels) and true labels (texts,), on the CPU in float32."""
    device = next(model.parameters()).device
    with evaluating(model):
        answers = [(model(batch.to(device).packed).float().cpu(), batch.labels) for batch in batches]
    logits, labels = zip(*answers, strict=True)
    return torch.cat(logits), torch.cat(labels)


def classification_report(logits: Tensor, labels: Tensor) -> ClassificationReport:
    """Figures from the model's logits (texts, num_labels) and true labels (texts,)."""
    confidence, answer = logits.softmax(1).max(1)
    right = answer == labels
    bins = reliability(confidence, right)
    counts = labels.bincount(minlength=logits.shape[1])
    confusion = torch.zeros(logits.shape[1], logits.shape[1], dtype=torch.int64)
    confusion.index_put_((labels, answer), torch.ones_like(labels), accumulate=True)
    return ClassificationReport(
        examples=len(labels),
        accuracy=right.double().mean().item(),
        majority_accuracy=counts.max().item() / len(labels),
        loss=F.cross_entropy(logits, labels).item(),
        expected_calibration_error=expected_calibration_error(bins),
        calibration_error_by_chance=calibration_error_by_chance(bins),
        confusion=confusion.tolist(),
        reliability=bins,
    )


def reliability(confidence: Tensor, right: Tensor, bins: int = 15) -> list[Bin]:
    """Answers by confidence, in bins of equal width; both (answers,)."""
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
    """What `expected_calibration_error` would be on average if every confidence were honest (the consistency of
    Bröcker & Smith 2007, with a normal distribution in place of their resampling)."""
    total = sum(b.count for b in bins)
    return math.sqrt(2 / math.pi) * sum(b.count * b.standard_error for b in bins) / total


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, no gradients, the precision that training uses; all undone at the end."""
    was_training = model.training
    precision = choose_precision(next(model.parameters()).device)
    model.eval()
    try:
        with torch.no_grad(), uncompiled(model), autocast(model, precision):
            yield
    finally:
        model.train(was_training)
