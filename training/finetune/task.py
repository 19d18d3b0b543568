"""What a step of fine-tuning computes: cross-entropy of texts, on top of a pretrained encoder."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.heads import BertForPreTraining, BertForSequenceClassification
from training.examples.batches import ClassificationBatch
from training.examples.labelled import TRUNCATION, LabelledStream
from training.loop.flops import classification_flops
from training.recipe import FinetuneConfig

Start = BertForPreTraining | BertForSequenceClassification

DROPOUT = 0.1
"""Of hidden states (Devlin et al. 2018, appendix A.3). Attention has none, which keeps the variable-length kernel."""


def classifier_from(start: Start, config: FinetuneConfig, seed: int) -> BertForSequenceClassification:
    """The pretrained encoder and pooler under a new classifier layer; or a classifier as it is, to train further."""
    shape = start.config.replace(
        hidden_dropout_prob=DROPOUT,
        attention_probs_dropout_prob=0.0,
        id2label=dict(enumerate(config.label_names)),
        truncation=TRUNCATION,
    )
    model = BertForSequenceClassification(shape)
    model.initialise(torch.Generator().manual_seed(seed))
    if isinstance(start, BertForSequenceClassification):
        model.load_state_dict(start.state_dict())
        return model.train()
    model.encoder.load_state_dict(start.encoder.state_dict())
    if start.next_sentence is not None:
        model.pooler.load_state_dict(start.next_sentence.pooler.state_dict())
    return model.train()


class ClassificationLoss(nn.Module):
    """Cross-entropy of a micro-batch against label probabilities. Its denominator is the mean number of texts in a
    micro-batch, so every text has the same weight, whatever its neighbours' lengths are."""

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


class ClassificationTask:
    """A classifier that learns from labelled texts. Implements `training.loop.trainer.Task`."""

    metric_names: tuple[str, ...] = ("loss", "accuracy")

    def __init__(self, model: BertForSequenceClassification, stream: LabelledStream) -> None:
        self.model: nn.Module = model
        self.loss: nn.Module = ClassificationLoss(model, stream.texts_per_batch)
        self.stream = stream
        self._config = model.config

    def flops(self, batch: ClassificationBatch) -> int:
        """See `Task.flops`."""
        return classification_flops(self._config, batch.packed)
