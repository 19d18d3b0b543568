"""AdamW: which weights decay, and a state that is loaded again."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from model import BertForPreTraining
from tests.conftest import tiny_config
from training.loop.optimizer import ADAMW_DECAY, make_optimizer


def groups_by_parameter(optimizer: torch.optim.Optimizer) -> dict[int, dict[str, object]]:
    return {id(p): group for group in optimizer.param_groups for p in group["params"]}


def steps(optimizer: torch.optim.Optimizer, weights: list[nn.Parameter], gradients: list[list[Tensor]]) -> None:
    for step in gradients:
        for weight, gradient in zip(weights, step, strict=True):
            weight.grad = gradient.clone()
        optimizer.step()


def test_adamw_does_not_decay_biases_and_norms() -> None:
    model = BertForPreTraining(tiny_config())
    groups = groups_by_parameter(make_optimizer(model, 1e-3))
    for name, parameter in model.named_parameters():
        exempt = name.endswith(".bias") or "norm" in name
        assert groups[id(parameter)]["weight_decay"] == (0.0 if exempt else ADAMW_DECAY), name
    assert len(groups) == len(list(model.parameters())), "the tied decoder is one parameter"


@pytest.mark.parametrize("loaded", [False, True])
def test_param_groups_set_the_learning_rate_of_every_parameter(loaded: bool) -> None:
    model = BertForPreTraining(tiny_config())
    optimizer = make_optimizer(model, 0.5)
    if loaded:
        optimizer.load_state_dict(optimizer.state_dict())
    before = [p.detach().clone() for p in model.parameters()]
    for rate, moved in ((0.0, False), (0.1, True)):
        for group in optimizer.param_groups:
            group["lr"] = rate
        steps(optimizer, list(model.parameters()), [[torch.randn_like(p) for p in model.parameters()]])
        found = [not torch.equal(one, other) for one, other in zip(before, model.parameters(), strict=True)]
        assert found == [moved] * len(before)
