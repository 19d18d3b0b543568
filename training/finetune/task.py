"""The loss of fine-tuning, on top of a pretrained encoder."""

from __future__ import annotations

import torch
from torch import Tensor

from model.checkpoint import Model
from model.heads import BertForSequenceClassification, Pooler
from training.examples.batches import ClassificationBatch
from training.examples.labelled import TRUNCATION
from training.loop.trainer import TrainingLoss
from training.problems.base import Problem
from training.recipe import SINGLE_LABEL, FinetuneConfig

DROPOUT = 0.1
"""Dropout of hidden states (Devlin et al. 2018, appendix A.3). Attention has none, so that the variable-length kernel
can be used."""


def classifier_from(start: Model, config: FinetuneConfig, seed: int) -> BertForSequenceClassification:
    """The pretrained encoder and pooler under a new last layer. A classifier with the same labels is returned
    unchanged, to be trained further."""
    shape = start.config.replace(
        hidden_dropout_prob=DROPOUT,
        attention_probs_dropout_prob=0.0,
        id2label=dict(enumerate(config.label_names)),
        problem_type=config.problem_type,
        thresholds=None,
        truncation=TRUNCATION,
    )
    model = BertForSequenceClassification(shape)
    model.initialise(torch.Generator().manual_seed(seed))
    if keeps_last_layer(start, config):
        model.load_state_dict(start.state_dict())
        return model.train()
    pooler: Pooler | None
    if isinstance(start, BertForSequenceClassification):
        pooler = start.pooler
    else:
        pooler = start.next_sentence.pooler if start.next_sentence else None
    model.encoder.load_state_dict(start.encoder.state_dict())
    if pooler is not None:
        model.pooler.load_state_dict(pooler.state_dict())
    return model.train()


def keeps_last_layer(start: Model, config: FinetuneConfig) -> bool:
    """Whether the network to start from is a classifier of the same labels and problem type."""
    if not isinstance(start, BertForSequenceClassification):
        return False
    found = start.config.labels, start.config.problem_type or SINGLE_LABEL
    return found == (config.label_names, config.problem_type)


class ClassificationLoss(TrainingLoss):
    """Loss of a micro-batch of texts. Its denominator is the mean number of texts in a micro-batch. So every text has
    the same weight, independent of its neighbours' lengths."""

    metric_names = ("loss",)
    model: BertForSequenceClassification

    def __init__(self, problem: Problem, model: BertForSequenceClassification, texts_per_batch: float) -> None:
        super().__init__()
        self.problem = problem
        self.model = model
        self.texts_per_batch = texts_per_batch

    def forward(self, batch: ClassificationBatch) -> tuple[Tensor, Tensor]:
        """() loss, and (1, 2) sum of the losses and number of texts."""
        logits = self.model(batch.packed).float()  # (sequences, outputs)
        is_text = ~batch.targets[:, 0].isnan()
        total = (self.problem.losses(logits, batch.targets.nan_to_num()) * is_text).sum()
        return total / self.texts_per_batch, torch.stack([total, is_text.sum().float()]).detach()[None]
