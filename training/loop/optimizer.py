"""AdamW with the settings of RoBERTa."""

from __future__ import annotations

import torch
from torch import nn

BETAS, EPSILON = (0.9, 0.98), 1e-6
"""Of AdamW, as RoBERTa has them (Liu et al. 2019, section 3.1)."""

ADAMW_DECAY = 0.01
"""Weight decay of matrices (Devlin et al. 2018, appendix A.2). Biases and norms have none."""


def make_optimizer(model: nn.Module, learning_rate: float) -> torch.optim.AdamW:
    """AdamW (Loshchilov & Hutter 2017, https://arxiv.org/abs/1711.05101), without decay on biases and norms."""
    decaying = [weight for weight in model.parameters() if weight.ndim > 1]
    exempt = [weight for weight in model.parameters() if weight.ndim < 2]
    return torch.optim.AdamW(
        [{"params": decaying, "weight_decay": ADAMW_DECAY}, {"params": exempt, "weight_decay": 0.0}],
        lr=learning_rate,
        betas=BETAS,
        eps=EPSILON,
        fused=True,
    )
