"""Initial weights from which a plain BERT learns sooner.

A post-layer-norm BERT first learns word frequencies and then stays on a plateau until some head attends to
neighbouring words; a short run can spend its whole budget there. Starting with heads that already do (in the spirit of
mimetic initialisation, Trockman & Kolter 2023, https://arxiv.org/abs/2305.09828) shortens the plateau. The result is an
ordinary checkpoint: only the initial values differ. experiments/LOG.md has the measurements.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from model.bert import BertEncoder, BertLayer

NEIGHBOUR_OFFSETS = (-1, 1, -2, 2, -3, 3)
"""Positions that the first heads of the first layer attend to; further heads stay random."""

_POSITION_SCALE = 0.03
_QUERY_KEY_SCALE = 0.8
"""Best value of the study of 2026-11-21 in experiments/LOG.md (9da4f6a)."""
_FREQUENCY_RATIO = 100.0
"""Ratio of the fastest to the slowest frequency of the position waves: 0.9π to 0.009π in the same study. Slow waves
alone do not tell neighbours apart."""


def zero_residual(model: nn.Module) -> None:
    """Zero the last linear layer of each residual branch, so that every layer starts as the identity."""
    for name, part in model.named_modules():
        if name.endswith((".attention_output", ".output")) and isinstance(part, nn.Linear):
            nn.init.zeros_(part.weight)


@torch.no_grad()
def mimetic_attention_init(encoder: BertEncoder) -> None:
    """Write a wave into the first `head_dim` dimensions of each position embedding. Heads of the first layer get
    rotations by which the query of position i matches the key of position i + offset."""
    width = 2 * (encoder.config.head_dim // 2)
    frequencies = 0.9 * math.pi * _FREQUENCY_RATIO ** (-torch.arange(width // 2) / (width // 2))
    positions = encoder.embeddings.position_embeddings.weight  # (max_position_embeddings, hidden)
    waves = _waves(positions.shape[0], frequencies)
    positions.mul_(0.1)[:, :width] = _POSITION_SCALE * math.sqrt(2) * waves
    first = encoder.layers[0]
    assert isinstance(first, BertLayer)
    heads = first.query_key_value.weight.view(3, encoder.config.num_attention_heads, -1, positions.shape[1])
    for head, offset in zip(range(heads.shape[1]), NEIGHBOUR_OFFSETS, strict=False):
        heads[0, head, :width, :width] = _QUERY_KEY_SCALE * _rotation(offset * frequencies)
        heads[1, head, :width, :width] = _QUERY_KEY_SCALE * torch.eye(width)


def _waves(positions: int, frequencies: Tensor) -> Tensor:
    """(positions, 2 * frequencies) a sine and a cosine of each frequency at each position."""
    angles = torch.arange(positions)[:, None] * frequencies
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1)


def _rotation(angles: Tensor) -> Tensor:
    """(pairs,) -> (2 pairs, 2 pairs): block-diagonal matrix that turns each (sin, cos) pair by its angle."""
    sin, cos = angles.sin(), angles.cos()
    return torch.block_diag(*torch.stack([torch.stack([cos, sin], -1), torch.stack([-sin, cos], -1)], -2))
