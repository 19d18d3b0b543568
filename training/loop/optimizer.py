"""AdamW with the settings of RoBERTa, and one step of it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

CLIP_NORM = 1.0
"""The gradient's norm is clipped to this (Devlin et al. 2018, published code)."""

BETAS, EPSILON = (0.9, 0.98), 1e-6
"""AdamW's settings in RoBERTa (Liu et al. 2019, section 3.1)."""

ADAMW_DECAY = 0.01
"""Weight decay of matrices (Devlin et al. 2018, appendix A.2). Biases and norms have none."""


def make_optimizer(model: nn.Module, learning_rate: float, embedding_factor: float = 1.0) -> torch.optim.AdamW:
    """AdamW (Loshchilov & Hutter 2017, https://arxiv.org/abs/1711.05101), without decay on biases and norms.

    Gradients are allocated here and stay where they are: a CUDA graph that allocated them would use their memory for
    something else at its next replay (pytorch#169545).

    Args:
        embedding_factor: learning rate of the embeddings, relative to that of the other weights. Each group of weights
            has its `factor`.
    """
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, weight in model.named_parameters():
        if weight.grad is None:
            weight.grad = torch.zeros_like(weight)
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


def update_weights(model: nn.Module, optimizer: torch.optim.AdamW) -> Tensor:
    """Clip the gradient, take a step and set the gradient to 0. A gradient that is not finite changes no weight.

    Returns:
        () norm of the gradient.
    """
    norm = nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
    optimizer.found_inf = (~norm.isfinite()).float()  # type: ignore[attr-defined]  # 1 skips the step, on the device
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    return norm
