"""Attention relations of a teacher (MiniLMv2: Wang et al. 2020, https://arxiv.org/abs/2012.15828).

A relation says how similar the queries of the last layer are to each other, for each token a softmax over the tokens of
its sequence; so do the keys and the values. Queries of all attention heads lie side by side and are cut into relation
heads, so teacher and student may differ in attention heads and hidden size.

Shapes: T packed tokens, B blocks of L tokens, N relation heads, H hidden size of either network, D = H / N.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.bert import BertEncoder
from model.packing import PackedBatch
from training.recipe import BUCKET_TOKENS

BLOCK_TOKENS = BUCKET_TOKENS
"""L: a relation leaves out tokens of its sequence that are in another block. So nothing is padded, all batches of a run
have one shape, and the cost of a token is constant. Of examples with 105 tokens, 81% lie in two blocks."""

MAX_HEADS = 12
"""Maximum number of relation heads. The paper has up to 64; each costs time and memory for 3 L numbers a token."""

_OTHER_SEQUENCE = -1e4
"""Score of a pair of tokens of different sequences, whose share is 0 in float32."""


class RelationLoss(nn.Module):
    """Difference between the relations of a student and those of its teacher, which is not trained.

    Args:
        teacher: its last layer is cut off after the queries, keys and values.
        student: its last layer gets a hook, which keeps them for `forward`.
    """

    def __init__(self, teacher: BertEncoder, student: BertEncoder) -> None:
        super().__init__()
        self.teacher = teacher.requires_grad_(False).eval()
        last: Any = teacher.layers[-1]
        last.forward = lambda hidden, _attention: last.query_key_value(hidden)
        self.heads = math.gcd(teacher.config.hidden_size, student.config.hidden_size, MAX_HEADS)
        self._kept: list[Tensor] = []
        student.layers[-1].register_forward_pre_hook(self._keep)

    def _keep(self, layer: Any, inputs: tuple[Tensor, ...]) -> None:
        if torch.is_grad_enabled():  # not in an evaluation
            self._kept.append(layer.query_key_value(inputs[0]))

    def forward(self, batch: PackedBatch) -> Tensor:
        """() loss in nats, of the batch that the student has just read."""
        with torch.no_grad():
            expected = self.teacher(replace(batch, outputs=None))  # (T, 3H)
        return relation_loss(self._kept.pop(), expected, batch.position_ids, self.heads)


def relation_loss(student: Tensor, teacher: Tensor, position_ids: Tensor, heads: int) -> Tensor:
    """() KL divergence of the student's relations from the teacher's in nats: the mean over tokens and relation heads,
    added over queries, keys and values.

    Args:
        student, teacher: queries, keys and values side by side, (T, 3H); T is a multiple of `BLOCK_TOKENS`.
        position_ids: (T,) position of each token in its own sequence.
        heads: relation heads; they divide both hidden sizes.
    """
    sequence = (position_ids == 0).cumsum(0).view(-1, 1, BLOCK_TOKENS)
    bias = _OTHER_SEQUENCE * (sequence != sequence.transpose(1, 2))[:, None]  # (B, 1, L, L)
    total = bias.new_zeros(())
    for ours, theirs in zip(student.chunk(3, -1), teacher.chunk(3, -1), strict=True):
        found, expected = _relations(ours, bias, heads), _relations(theirs, bias, heads)
        total = total + F.kl_div(found, expected, reduction="sum", log_target=True)
    return total / (len(student) * heads)


def _relations(vectors: Tensor, bias: Tensor, heads: int) -> Tensor:
    """(T, H) -> (B, N, L, L) logarithm of the share of each token (last) in the relation of each token."""
    parts = vectors.view(-1, BLOCK_TOKENS, heads, vectors.shape[1] // heads).transpose(1, 2)  # (B, N, L, D)
    parts = parts * parts.shape[-1] ** -0.25  # so that the products are divided by the root of D
    return (parts @ parts.transpose(2, 3) + bias).log_softmax(-1)
