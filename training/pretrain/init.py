"""Where training starts: the same plain BERT, with weights that are quicker to learn from.

A post-layer-norm BERT first learns word frequencies, then sits on a plateau until some head finds out how to
look at neighbouring words; a short run can spend its whole budget there. Starting with heads that already do
(in the spirit of mimetic initialisation, Trockman & Kolter 2023) skips that. The result is an ordinary
checkpoint: only the initial values differ. experiments/LOG.md has the measurements.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from model.bert import BertEncoder, BertLayer

NEIGHBOURS = (-1, 1, -2, 2, -3, 3)
"""Where the first heads of the first layer look; further heads stay random."""
_POSITION_SCALE = 0.03
_QUERY_KEY_SCALE = 0.8
_SLOWEST = 100.0
"""Ratio of the fastest to the slowest frequency: enough fast ones to tell neighbours apart."""


def zero_residual(model: nn.Module) -> None:
    """Zero the last linear of each residual branch, so that every layer starts as the identity."""
    for name, part in model.named_modules():
        if name.endswith((".attention_output", ".output")) and isinstance(part, nn.Linear):
            nn.init.zeros_(part.weight)


@torch.no_grad()
def attend_to_neighbours(encoder: BertEncoder) -> None:
    """Give positions a wave each in the first `head_dim` dimensions, and first-layer heads the rotations by
    which the query of position i meets the key of position i + offset."""
    width = _width(encoder)
    frequencies = _frequencies(width)
    positions = encoder.embeddings.position_embeddings.weight  # (max_position_embeddings, hidden)
    positions.mul_(0.1)[:, :width] = _POSITION_SCALE * math.sqrt(2) * _waves(positions.shape[0], frequencies)
    first = encoder.layers[0]
    assert isinstance(first, BertLayer)
    heads = first.query_key_value.weight.view(3, encoder.config.num_attention_heads, -1, positions.shape[1])
    for head, offset in zip(range(heads.shape[1]), NEIGHBOURS, strict=False):
        heads[0, head, :width, :width] = _QUERY_KEY_SCALE * _rotation(offset * frequencies)
        heads[1, head, :width, :width] = _QUERY_KEY_SCALE * torch.eye(width)


def _width(encoder: BertEncoder) -> int:
    return 2 * (encoder.config.head_dim // 2)


def _frequencies(width: int) -> Tensor:
    return 0.9 * math.pi * _SLOWEST ** (-torch.arange(width // 2) / (width // 2))


def _waves(positions: int, frequencies: Tensor) -> Tensor:
    """A sine and a cosine of each frequency at each position: (positions, 2 frequencies)"""
    angles = torch.arange(positions)[:, None] * frequencies
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1)


def _rotation(angles: Tensor) -> Tensor:
    """Block-diagonal matrix that turns each (sin, cos) pair by its angle: (pairs,) -> (2 pairs, 2 pairs)"""
    sin, cos = angles.sin(), angles.cos()
    return torch.block_diag(*torch.stack([torch.stack([cos, sin], -1), torch.stack([-sin, cos], -1)], -2))
