"""The loss of pretraining: masked LM and next sentence over packed pairs, and the relations of a teacher."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from model.bert import BertEncoder
from model.heads import BertForPreTraining
from training.examples.batches import PretrainingBatch
from training.examples.pairs import IGNORE_INDEX
from training.loop.trainer import TrainingLoss
from training.pretrain.relations import RelationLoss


class PretrainingLoss(TrainingLoss):
    """Sum of the masked-LM and the next-sentence loss of a micro-batch (Devlin et al. 2018, section 3.1), and of the
    relation loss if there is a teacher."""

    model: BertForPreTraining
    metric_names = ("loss", "mlm_loss", "nsp_loss", "relation_loss")

    def __init__(self, model: BertForPreTraining, teacher: BertEncoder | None = None) -> None:
        super().__init__()
        self.model = model
        self.relations = RelationLoss(teacher, model.encoder) if teacher else None

    def forward(self, batch: PretrainingBatch) -> tuple[Tensor, Tensor]:
        """() loss in nats, and (4, 2) sum and count of the total, masked-LM, next-sentence and relation loss."""
        model, packed = self.model, batch.packed
        assert model.next_sentence is not None
        hidden = model(packed)  # (R, hidden)
        word_logits = model.masked_lm(hidden.index_select(0, batch.masked_rows))  # (M, vocab)
        next_logits = model.next_sentence(hidden.index_select(0, batch.cls_rows))  # (S, 2)
        mlm, masked = _sum_and_count(word_logits, batch.masked_ids)
        nsp, labelled = _sum_and_count(next_logits, batch.next_labels)
        loss = mlm / masked.clamp(min=1) + nsp / labelled.clamp(min=1)
        one = torch.ones_like(loss)
        relations, taught = (self.relations(packed), one) if self.relations else (0 * one, 0 * one)
        loss = loss + relations
        return loss, torch.stack([loss, one, mlm, masked, nsp, labelled, relations, taught]).detach().view(4, 2)


def _sum_and_count(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Summed cross-entropy over the labels that are not IGNORE_INDEX, and their number as a float."""
    total = F.cross_entropy(logits.float(), labels, ignore_index=IGNORE_INDEX, reduction="sum")
    return total, (labels != IGNORE_INDEX).sum().float()
