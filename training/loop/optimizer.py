"""AdamW, or Muon for the matrices of the layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

BETAS, EPSILON = (0.9, 0.98), 1e-6
"""Of AdamW, as RoBERTa has them (Liu et al. 2019, section 3.1)."""

ADAMW_DECAY, MUON_DECAY = 0.01, 0.1
"""Weight decay of matrices (Devlin et al. 2018, appendix A.2; Liu et al. 2025, section 3.1). Biases and norms have
none."""


class CombinedOptimizer:
    """Several optimizers as one, each for its own parameters."""

    def __init__(self, parts: Sequence[torch.optim.Optimizer]) -> None:
        self.parts = parts

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return [group for part in self.parts for group in part.param_groups]

    def step(self) -> None:
        for part in self.parts:
            part.step()

    def state_dict(self) -> dict[str, Any]:
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        for part, state in zip(self.parts, state_dict["parts"], strict=True):
            part.load_state_dict(state)


class SplitMuon(torch.optim.Muon):
    """Muon (Jordan et al. 2024), scaled to AdamW's update size (Liu et al. 2025, section 2.2). A fused
    query-key-value matrix is orthogonalised as its three matrices, because each is a projection."""

    def __init__(self, fused: Sequence[nn.Parameter], others: Sequence[nn.Parameter], lr: float) -> None:
        self._fused = [(weight, [nn.Parameter(part) for part in weight.detach().chunk(3)]) for weight in fused]
        matrices = [*others, *(part for _, parts in self._fused for part in parts)]
        super().__init__(matrices, lr=lr, weight_decay=MUON_DECAY, adjust_lr_fn="match_rms_adamw")

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for weight, parts in self._fused:
            grads: Sequence[Tensor | None] = [None] * 3 if weight.grad is None else weight.grad.chunk(3)
            for part, grad in zip(parts, grads, strict=True):
                part.grad = grad  # the parts share the fused matrix's memory, but have no gradient of their own
        super().step(closure)  # type: ignore[no-untyped-call]
        for _, parts in self._fused:
            for part in parts:
                part.grad = None  # it would keep the fused matrix's gradient in memory


def make_optimizer(
    model: nn.Module, learning_rate: float, kind: str = "adamw"
) -> torch.optim.Optimizer | CombinedOptimizer:
    """AdamW (Loshchilov & Hutter 2017), without decay on biases and norms. With `muon`, the matrices of the encoder's
    layers have `SplitMuon`; embeddings and heads keep AdamW. `model.zero_grad()` clears the gradients of both."""
    matrices = {name: weight for name, weight in model.named_parameters() if weight.ndim > 1}
    layers = {name: weight for name, weight in matrices.items() if kind == "muon" and "encoder.layers." in name}
    fused = [weight for name, weight in layers.items() if "query_key_value" in name]
    separate = [weight for name, weight in layers.items() if "query_key_value" not in name]
    decaying = [weight for name, weight in matrices.items() if name not in layers]
    exempt = [weight for weight in model.parameters() if weight.ndim < 2]
    adamw = torch.optim.AdamW(
        [{"params": decaying, "weight_decay": ADAMW_DECAY}, {"params": exempt, "weight_decay": 0.0}],
        lr=learning_rate,
        betas=BETAS,
        eps=EPSILON,
        fused=True,
    )
    return CombinedOptimizer([SplitMuon(fused, separate, learning_rate), adamw]) if fused else adamw
