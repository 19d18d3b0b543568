"""AdamW and Muon: which weights each has, their decay, and the three matrices of a fused one."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from model import BertForPreTraining
from tests.conftest import tiny_config
from training.loop.optimizer import (
    ADAMW_DECAY,
    MUON_DECAY,
    CombinedOptimizer,
    Muon,
    make_optimizer,
    orthogonalise,
)


def groups_by_parameter(optimizer: torch.optim.Optimizer | CombinedOptimizer) -> dict[int, dict[str, object]]:
    return {id(p): group for group in optimizer.param_groups for p in group["params"]}


def test_adamw_does_not_decay_biases_and_norms() -> None:
    model = BertForPreTraining(tiny_config())
    groups = groups_by_parameter(make_optimizer(model, 1e-3))
    for name, parameter in model.named_parameters():
        exempt = name.endswith(".bias") or "norm" in name
        assert groups[id(parameter)]["weight_decay"] == (0.0 if exempt else ADAMW_DECAY), name
    assert len(groups) == len(list(model.parameters())), "the tied decoder is one parameter"


def test_muon_has_the_matrices_of_the_layers_and_no_other() -> None:
    model = BertForPreTraining(tiny_config())
    optimizer = make_optimizer(model, 1e-3, "muon")
    assert isinstance(optimizer, CombinedOptimizer)
    muon, adamw = optimizer.parts
    matrices = {id(p): p for group in muon.param_groups for p in group["params"]}
    others = groups_by_parameter(adamw)
    assert {group["weight_decay"] for group in muon.param_groups} == {MUON_DECAY}
    for name, parameter in model.named_parameters():
        is_matrix = "encoder.layers." in name and parameter.ndim == 2
        assert (id(parameter) in matrices) == is_matrix, name
        assert (id(parameter) in others) != is_matrix, name


def steps(
    optimizer: torch.optim.Optimizer | CombinedOptimizer, weights: list[nn.Parameter], gradients: list[list[Tensor]]
) -> None:
    for step in gradients:
        for weight, gradient in zip(weights, step, strict=True):
            weight.grad = gradient.clone()
        optimizer.step()


def test_muon_equals_torch_muon_on_three_separate_matrices() -> None:
    torch.manual_seed(0)
    fused, before = nn.Parameter(torch.randn(24, 8)), torch.empty(24, 8)
    before.copy_(fused.detach())
    separate = [nn.Parameter(part.clone()) for part in before.chunk(3)]
    gradients = [torch.randn(24, 8) * scale for scale in (1.0, 0.1, 5.0)]
    steps(Muon([], [fused], 0.02, torch.bfloat16), [fused], [[gradient] for gradient in gradients])
    reference = torch.optim.Muon(separate, lr=0.02, weight_decay=MUON_DECAY, adjust_lr_fn="match_rms_adamw")
    steps(reference, separate, [list(gradient.chunk(3)) for gradient in gradients])
    ours, theirs = fused.detach() - before, torch.cat([part.detach() for part in separate]) - before
    assert (ours - theirs).norm() < 0.01 * theirs.norm(), "both round to bfloat16, in another order"


def test_muon_differs_on_a_matrix_that_is_not_split() -> None:
    torch.manual_seed(0)
    fused = nn.Parameter(torch.randn(24, 8))
    whole = nn.Parameter(fused.detach().clone())
    gradient = torch.randn(24, 8)
    steps(Muon([], [fused], 0.02, torch.float32), [fused], [[gradient]])
    steps(Muon([whole], [], 0.02, torch.float32), [whole], [[gradient]])
    assert not torch.allclose(fused, whole)


def test_muon_without_a_gradient_leaves_the_weights_alone() -> None:
    fused = nn.Parameter(torch.randn(24, 8))
    before = fused.detach().clone()
    Muon([], [fused], 0.02, torch.float32).step()
    assert torch.equal(fused.detach(), before)


@pytest.mark.parametrize("shape", [(3, 8, 8), (2, 32, 8), (2, 8, 32)])
def test_orthogonalise_brings_singular_values_near_one(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    values = torch.linalg.svdvals(orthogonalise(torch.randn(shape), torch.float32))
    assert 0.6 < values.min() <= values.max() < 1.3


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_optimizer_loaded_from_a_state_goes_on_bit_identically(kind: str) -> None:
    torch.manual_seed(0)
    model = BertForPreTraining(tiny_config())
    gradients = [[torch.randn_like(p) for p in model.parameters()] for _ in range(4)]
    optimizer = make_optimizer(model, 0.01, kind)
    steps(optimizer, list(model.parameters()), gradients[:2])
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    steps(optimizer, list(model.parameters()), gradients[2:])

    fresh = BertForPreTraining(tiny_config())
    resumed = make_optimizer(fresh, 0.01, kind)
    fresh.load_state_dict(saved[0])
    resumed.load_state_dict(saved[1])
    steps(resumed, list(fresh.parameters()), gradients[2:])
    for (name, one), other in zip(model.named_parameters(), fresh.parameters(), strict=True):
        assert torch.equal(one, other), name


@pytest.mark.parametrize("kind", ["adamw", "muon"])
@pytest.mark.parametrize("loaded", [False, True])
def test_param_groups_set_the_learning_rate_of_every_parameter(kind: str, loaded: bool) -> None:
    model = BertForPreTraining(tiny_config())
    optimizer = make_optimizer(model, 0.5, kind)
    if loaded:
        optimizer.load_state_dict(optimizer.state_dict())
    before = [p.detach().clone() for p in model.parameters()]
    for rate, moved in ((0.0, False), (0.1, True)):
        for group in optimizer.param_groups:
            group["lr"] = rate
        steps(optimizer, list(model.parameters()), [[torch.randn_like(p) for p in model.parameters()]])
        found = [not torch.equal(one, other) for one, other in zip(before, model.parameters(), strict=True)]
        assert found == [moved] * len(before)
