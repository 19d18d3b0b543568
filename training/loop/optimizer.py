"""AdamW with the usual exemptions, or Muon for the layers' matrices; a rate that warms up and falls to zero."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from training.recipe import FinetuneConfig, PretrainConfig

MUON_RATE = 3.0
"""Muon's rate over AdamW's, beyond the factor that gives both the same step length per weight."""


class Together(torch.optim.Optimizer):
    """Several optimizers, each for its own parameters, as one."""

    def __init__(self, parts: Sequence[torch.optim.Optimizer]) -> None:
        super().__init__([group for part in parts for group in part.param_groups], {})
        self.parts = parts
        self._share()

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        assert closure is None
        for part in self.parts:
            part.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        for part in self.parts:
            part.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        for part, state in zip(self.parts, state_dict["parts"], strict=True):
            part.load_state_dict(state)
        self._share()

    def _share(self) -> None:
        """The same groups, not copies: whoever sets a rate here sets it there."""
        self.param_groups = [group for part in self.parts for group in part.param_groups]


def make_optimizer(model: nn.Module, config: PretrainConfig | FinetuneConfig) -> torch.optim.Optimizer:
    """AdamW (Loshchilov & Hutter 2017); no decay on biases and layer norms. With `optimizer = "muon"` the
    matrices of the encoder's layers get Muon (Jordan et al. 2024), scaled to AdamW's step length (Liu et al.
    2025, section 2.2); embeddings and heads, which Muon is not made for, keep AdamW."""
    muons: list[nn.Parameter] = []
    decaying: list[nn.Parameter] = []
    exempt: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        if parameter.ndim < 2:
            exempt.append(parameter)
        elif config.optimizer == "muon" and "encoder.layers." in name:
            muons.append(parameter)
        else:
            decaying.append(parameter)
    rate, decay = config.learning_rate, config.weight_decay
    adamw = torch.optim.AdamW(
        [{"params": decaying, "weight_decay": decay}, {"params": exempt, "weight_decay": 0.0}],
        lr=rate,
        betas=config.betas,
        eps=config.eps,
        fused=True,
    )
    if not muons:
        return adamw
    muon = torch.optim.Muon(muons, lr=rate, weight_decay=decay, adjust_lr_fn="match_rms_adamw")
    muon.param_groups[0]["rate_scale"] = MUON_RATE
    return Together([muon, adamw])


def rate_factor(progress: float, warmup_fraction: float, decay_fraction: float = 1.0) -> float:
    """Share of the peak rate at a point of the budget in [0, 1]: up linearly, on the level until the last
    `decay_fraction` of the budget, then down to 0.

    >>> [round(rate_factor(p, 0.1), 3) for p in (0.05, 0.1, 0.55, 1.0)]
    [0.5, 1.0, 0.5, 0.0]
    >>> [round(rate_factor(p, 0.1, 0.2), 6) for p in (0.05, 0.1, 0.55, 0.9, 1.0)]
    [0.5, 1.0, 1.0, 0.5, 0.0]
    """
    if progress < warmup_fraction:
        return progress / warmup_fraction
    decay = min(decay_fraction, 1 - warmup_fraction)
    if decay <= 0:
        return 1.0
    return max(0.0, min(1.0, (1 - progress) / decay))


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Of every group, by its own scale."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group.get("rate_scale", 1.0)
