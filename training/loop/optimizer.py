"""AdamW, or Muon for the matrices of the layers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from training.runtime.device import choose_precision

BETAS, EPSILON = (0.9, 0.98), 1e-6
"""Of AdamW, as RoBERTa has them (Liu et al. 2019, section 3.1)."""

MUON_MOMENTUM = 0.95

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


class Muon(torch.optim.Optimizer):
    """Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon), with updates of AdamW's size, so that one
    learning rate serves both (Liu et al. 2025, https://arxiv.org/abs/2502.16982, section 2.2).

    `torch.optim.Muon` orthogonalises in bfloat16, which takes 40 times as long where a processor has no instructions
    for it, and one matrix after another. Here equal shapes are one batch of products.

    Args:
        matrices: each of shape (outputs, inputs).
        fused: three such matrices one above the other, as queries, keys and values are; each is orthogonalised alone.
        dtype: of the products.
    """

    def __init__(
        self, matrices: Sequence[nn.Parameter], fused: Sequence[nn.Parameter], lr: float, dtype: torch.dtype
    ) -> None:
        groups = [{"params": list(matrices), "parts": 1}, {"params": list(fused), "parts": 3}]
        super().__init__(groups, {"lr": lr, "weight_decay": MUON_DECAY})
        self.dtype = dtype

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        assert closure is None
        directions: dict[torch.Size, list[Tensor]] = {}
        targets: dict[torch.Size, list[Tensor]] = {}
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                weight.mul_(1 - group["lr"] * group["weight_decay"])
                direction = self._momentum(weight)
                for part, target in zip(direction.chunk(group["parts"]), weight.chunk(group["parts"]), strict=True):
                    directions.setdefault(part.shape, []).append(part)
                    targets.setdefault(part.shape, []).append(target)
        rate = self.param_groups[0]["lr"]
        for shape, parts in directions.items():
            scale = 0.2 * math.sqrt(max(shape))  # the root mean square of AdamW's updates is about 0.2
            for target, update in zip(targets[shape], orthogonalise(torch.stack(parts), self.dtype), strict=True):
                target.sub_(update, alpha=rate * scale)

    def _momentum(self, weight: Tensor) -> Tensor:
        """Nesterov's momentum of the gradient."""
        assert weight.grad is not None
        state = self.state[weight]
        if not state:
            state["momentum"] = torch.zeros_like(weight)
        momentum: Tensor = state["momentum"].lerp_(weight.grad, 1 - MUON_MOMENTUM)
        return weight.grad.lerp(momentum, MUON_MOMENTUM)


def orthogonalise(matrices: Tensor, dtype: torch.dtype) -> Tensor:
    """(N, rows, columns) -> the same shape, with the singular values of each matrix brought to between about 0.7 and
    1.2, by five Newton-Schulz iterations in `dtype` with Jordan's coefficients."""
    tall = matrices.shape[1] > matrices.shape[2]
    x = (matrices.mT if tall else matrices).to(dtype)
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(5):
        gram = x @ x.mT
        polynomial = torch.baddbmm(gram, gram, gram, beta=-4.7750, alpha=2.0315)
        x = torch.baddbmm(x, polynomial, x, beta=3.4445)
    return (x.mT if tall else x).to(matrices.dtype)


def make_optimizer(
    model: nn.Module, learning_rate: float, kind: str = "adamw"
) -> torch.optim.Optimizer | CombinedOptimizer:
    """AdamW (Loshchilov & Hutter 2017), without decay on biases and norms. With `muon`, the matrices of the encoder's
    layers have `Muon`; embeddings and heads keep AdamW. `model.zero_grad()` clears the gradients of both."""
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
    if not fused:
        return adamw
    precision = choose_precision(fused[0].device)
    return CombinedOptimizer([Muon(separate, fused, learning_rate, precision), adamw])
