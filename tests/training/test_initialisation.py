"""Positions as waves: continued beyond what was learned."""

from __future__ import annotations

import torch

from model import BertForPreTraining
from tests.conftest import tiny_config
from training.initialisation import attend_to_neighbours, extend_positions


def test_a_linear_map_of_the_waves_is_continued() -> None:
    encoder = BertForPreTraining(tiny_config(max_position_embeddings=256)).encoder
    attend_to_neighbours(encoder)
    positions = encoder.embeddings.position_embeddings.weight
    waves = positions[:, : encoder.config.head_dim].detach()
    mixed = waves @ torch.randn(waves.shape[1], positions.shape[1])
    with torch.no_grad():
        positions[:128] = mixed[:128]
    extend_positions(encoder, 128)
    assert torch.equal(positions[:128], mixed[:128])
    error = (positions[128:] - mixed[128:]).norm() / mixed[128:].norm()
    assert error < 0.15
