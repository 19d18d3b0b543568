"""AdamW with the settings of RoBERTa."""

from __future__ import annotations

import torch
from torch import nn

BETAS, EPSILON = (0.9, 0.98), 1e-6
"""AdamW's settings in RoBERTa (Liu et al. 2019, section 3.1)."""

ADAMW_DECAY = 0.01
"""Weight decay of matrices (Devlin et al. 2018, appendix A.2). Biases and norms have none."""


def make_optimizer(model: nn.Module, learning_rate: float, embedding_factor: float = 1.0) -> torch.optim.AdamW:
    """AdamW (Loshchilov & Hutter 2017, https://arxiv.org/abs/1711.05101), without decay on biases and norms.

    Args:
        embedding_factor: learning rate of the embeddings, relative to that of the other weights. Each group of weights
            has its `factor`.
    """
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, weight in model.named_parameters():
        factor = embedding_factor if ".embeddings." in name else 1.0
        groups.setdefault((ADAMW_DECAY if weight.ndim > 1 else 0.0, factor), []).append(weight)
    return torch.optim.AdamW(
        [
            {"params": weights, "weight_decay": decay, "factor": factor, "lr": factor * learning_rate}
            for (decay, factor), weights in sorted(groups.items(), key=lambda item: item[0], reverse=True)
        ],
        lr=learning_rate,
        betas=BETAS,
        eps=EPSILON,
        fused=True,
    )
