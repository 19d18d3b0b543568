"""What a step of fine-tuning is made of: cross-entropy over packed texts, on top of a pretrained encoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.heads import BertForPreTraining, BertForSequenceClassification
from model.tokenizer import Tokenizer
from training.errors import RunError
from training.examples.batches import ClassificationBatch
from training.finetune.dataset import LabelledTexts
from training.loop.checkpoint import Progress
from training.loop.flops import classification_flops
from training.recipe import FinetuneConfig
from training.runtime.distributed import Processes

Start = BertForPreTraining | BertForSequenceClassification

SHORT = 32
"""Tokens of a text that `masked` leaves as it is"""


def classifier_from(start: Start, config: FinetuneConfig, seed: int) -> BertForSequenceClassification:
    """The pretrained encoder and pooler under a fresh classifier; or a classifier as it is, to go on with."""
    attention = config.dropout if config.attention_dropout is None else config.attention_dropout
    shape = start.config.replace(
        hidden_dropout_prob=config.dropout,
        attention_probs_dropout_prob=attention,
        id2label=dict(enumerate(config.label_names)),
        truncation=config.truncation,
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


class ClassificationTask:
    """Batches of random texts; every text once per epoch."""

    def __init__(
        self,
        model: BertForSequenceClassification,
        texts: LabelledTexts,
        tokenizer: Tokenizer,
        config: FinetuneConfig,
        seed: int,
        processes: Processes | None = None,
    ) -> None:
        self.classifier = model
        self.model: nn.Module = model
        self.figures: tuple[str, ...] = ("loss", "accuracy")
        self.texts = texts
        self.tokenizer = tokenizer
        self.config = config
        self.seed = seed
        self.processes = processes or Processes()
        self.device = next(model.parameters()).device
        if min(config.batch, len(texts)) < self.processes.world:
            raise RunError(f"{len(texts)} texts in batches of {config.batch}: too few for all processes")
        self._epoch = (-1, np.empty(0, dtype=np.int64))

    @property
    def steps_per_epoch(self) -> int:
        """The last one with what is left, if there is a text for each process."""
        whole, left = divmod(len(self.texts), self.config.batch)
        return whole + (left >= self.processes.world)

    def micro_batches(self, progress: Progress, spent: float) -> Sequence[ClassificationBatch]:
        """This process's share of the next `batch` texts of the epoch."""
        del spent
        if len(self.texts) - progress.position < self.processes.world:  # not a text for each process
            progress.epoch, progress.position = progress.epoch + 1, 0
        order = self._order(progress.epoch)
        chosen = order[progress.position : progress.position + self.config.batch]
        progress.position += len(chosen)
        own = chosen[self.processes.rank :: self.processes.world].tolist()
        size = self.config.micro_batch or len(own)
        batches = [self.texts.batch(own[at : at + size]) for at in range(0, len(own), size)]
        if fraction := self.config.masked_fraction:
            rng = np.random.default_rng((self.seed, progress.epoch, progress.position, self.processes.rank))
            batches = [masked(batch, fraction, self.tokenizer, rng) for batch in batches]
        return [batch.to(self.device) for batch in batches]

    def losses(self, batch: ClassificationBatch, counts: Sequence[float]) -> Tensor:
        """Part of the step's mean cross-entropy in nats, and of its share of right answers."""
        logits = self.model(batch.packed).float()
        loss = F.cross_entropy(logits, batch.targets, reduction="sum") / counts[0]
        right = (logits.argmax(1) == batch.labels).float().sum() / counts[0]
        return torch.stack([loss, right])

    def flops(self, batch: ClassificationBatch) -> int:
        """Of the forward and backward pass."""
        return classification_flops(self.classifier.config, batch.packed)

    def _order(self, epoch: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        if self._epoch[0] != epoch:
            order = np.random.default_rng((self.seed, epoch)).permutation(len(self.texts))
            self._epoch = (epoch, order)
        return self._epoch[1]


def masked(
    batch: ClassificationBatch, fraction: float, tokenizer: Tokenizer, rng: np.random.Generator
) -> ClassificationBatch:
    """The batch with [MASK] for some tokens of each text that is longer than `SHORT`: a share of them that is
    drawn for the text, between none and `fraction`."""
    packed, lengths = batch.packed, np.array(batch.packed.segments.lengths)
    shares = np.where(lengths > SHORT, rng.uniform(0, fraction, len(lengths)), 0)
    hidden = torch.from_numpy(rng.random(packed.total_tokens) < np.repeat(shares, lengths))
    hidden &= torch.isin(packed.input_ids, torch.tensor(list(tokenizer.special_ids)), invert=True)
    ids = packed.input_ids.masked_fill(hidden, tokenizer.mask_id)
    return replace(batch, packed=replace(packed, input_ids=ids))
