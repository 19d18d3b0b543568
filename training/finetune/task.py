"""What a step of fine-tuning computes: cross-entropy of texts, on top of a pretrained encoder."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from model.checkpoint import Model
from model.heads import BertForSequenceClassification, Pooler
from training.examples.batches import ClassificationBatch
from training.examples.labelled import TRUNCATION
from training.loop.flops import classification_flops
from training.loop.trainer import TrainingLoss
from training.recipe import FinetuneConfig

DROPOUT = 0.1
"""Of hidden states (Devlin et al. 2018, appendix A.3). Attention has none, which keeps the variable-length kernel."""


def classifier_from(start: Model, config: FinetuneConfig, seed: int) -> BertForSequenceClassification:
    """The pretrained encoder and pooler under a new last layer; or a classifier of the same labels as it is, to train
    further."""
    shape = start.config.replace(
        hidden_dropout_prob=DROPOUT,
        attention_probs_dropout_prob=0.0,
        id2label=dict(enumerate(config.label_names)),
        truncation=TRUNCATION,
    )
    model = BertForSequenceClassification(shape)
    model.initialise(torch.Generator().manual_seed(seed))
    if isinstance(start, BertForSequenceClassification):
        if start.config.labels == config.label_names:
            model.load_state_dict(start.state_dict())
            return model.train()
        pooler: Pooler | None = start.pooler
    else:
        pooler = start.next_sentence.pooler if start.next_sentence else None
    model.encoder.load_state_dict(start.encoder.state_dict())
    if pooler is not None:
        model.pooler.load_state_dict(pooler.state_dict())
    return model.train()


class ClassificationLoss(TrainingLoss):
    """Cross-entropy of a micro-batch against label probabilities. Its denominator is the mean number of texts in a
    micro-batch, so every text has the same weight, beside neighbours of any length."""

    model: BertForSequenceClassification
    metric_names = ("loss", "accuracy")

    def __init__(self, model: BertForSequenceClassification, texts_per_batch: float) -> None:
        super().__init__()
        self.model = model
        self.texts_per_batch = texts_per_batch

    def forward(self, batch: ClassificationBatch) -> tuple[Tensor, Tensor]:
        """() loss in nats, and (2, 2) sum and count of loss and accuracy."""
        logits = self.model(batch.packed).float()  # (sequences, labels)
        total = F.cross_entropy(logits, batch.targets, reduction="sum")
        is_text = batch.targets.sum(1) > 0
        texts = is_text.sum().float()
        right = ((logits.argmax(1) == batch.labels) & is_text).sum().float()
        return total / self.texts_per_batch, torch.stack([total, texts, right, texts]).detach().view(2, 2)

    def flops(self, batch: ClassificationBatch) -> int:
        """See `TrainingLoss.flops`."""
        return classification_flops(self.model.config, batch.packed)
