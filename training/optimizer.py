"""AdamW with the usual exemptions, and a rate that warms up and decays to zero."""

from __future__ import annotations

import torch
from torch import nn

from training.config import FinetuneConfig, PretrainConfig


def make_optimizer(model: nn.Module, config: PretrainConfig | FinetuneConfig) -> torch.optim.AdamW:
    """AdamW (Loshchilov & Hutter 2017); no decay on biases and layer norms."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=config.betas, eps=config.eps, fused=True)


def rate_factor(progress: float, warmup_fraction: float) -> float:
    """Share of the peak rate at a point of the budget in [0, 1]: up linearly, then down to 0.

    >>> [rate_factor(p, 0.1) for p in (0.05, 0.1, 0.55, 1.0)]
    [0.5, 1.0, 0.5, 0.0]
    """
    if progress < warmup_fraction:
        return progress / warmup_fraction
    if warmup_fraction >= 1:
        return 1.0
    return max(0.0, (1 - progress) / (1 - warmup_fraction))


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate
