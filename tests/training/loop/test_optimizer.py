"""Which weights decay, and the rate over a run."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from model import BertForPreTraining, Tokenizer
from tests.conftest import tiny_config
from training.loop.optimizer import make_optimizer, rate_factor, set_rate
from training.recipe import FinetuneConfig, PretrainConfig


def test_biases_and_layer_norms_do_not_decay() -> None:
    model = BertForPreTraining(tiny_config())
    optimizer = make_optimizer(model, PretrainConfig(tokens=1))
    decays = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    for name, parameter in model.named_parameters():
        exempt = name.endswith(".bias") or "norm" in name
        assert decays[id(parameter)] == (0.0 if exempt else 0.01), name
    assert len(decays) == len(list(model.parameters()))


def test_the_tied_decoder_is_one_parameter() -> None:
    model = BertForPreTraining(tiny_config())
    parameters = [p for g in make_optimizer(model, PretrainConfig(tokens=1)).param_groups for p in g["params"]]
    assert len({id(p) for p in parameters}) == len(parameters)


def test_the_configuration_reaches_the_optimizer() -> None:
    config = FinetuneConfig(betas=(0.8, 0.9), eps=1e-5, weight_decay=0.2)
    group = make_optimizer(nn.Linear(2, 2), config).param_groups[0]
    assert (group["betas"], group["eps"], group["weight_decay"]) == ((0.8, 0.9), 1e-5, 0.2)


@given(st.floats(0, 1), st.floats(0, 1))
def test_the_rate_stays_between_zero_and_the_peak(progress: float, warmup: float) -> None:
    assert 0 <= rate_factor(progress, warmup) <= 1


def test_the_rate_rises_to_the_peak_and_falls_to_zero() -> None:
    factors = [rate_factor(p / 100, 0.06) for p in range(101)]
    assert factors[0] == 0
    assert factors[6] == pytest.approx(1)
    assert factors[100] == 0
    assert factors[:7] == sorted(factors[:7])
    assert factors[6:] == sorted(factors[6:], reverse=True)


def test_no_warm_up_starts_at_the_peak() -> None:
    assert rate_factor(0.0, 0.0) == 1


def test_the_rate_is_set_in_every_group(tokenizer: Tokenizer) -> None:
    optimizer = make_optimizer(BertForPreTraining(tiny_config()), PretrainConfig(tokens=1))
    set_rate(optimizer, 0.5)
    assert {group["lr"] for group in optimizer.param_groups} == {0.5}
    assert all(isinstance(group["lr"], float) for group in optimizer.param_groups)
    assert torch.is_tensor(optimizer.param_groups[0]["params"][0])


def test_muon_gets_the_layers_matrices_and_no_other() -> None:
    model = BertForPreTraining(tiny_config())
    optimizer = make_optimizer(model, PretrainConfig(tokens=1, optimizer="muon"))
    scaled = {id(p) for group in optimizer.param_groups if "rate_scale" in group for p in group["params"]}
    for name, parameter in model.named_parameters():
        assert (id(parameter) in scaled) == ("layers." in name and parameter.ndim == 2), name
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(list(model.parameters()))


def test_a_rate_set_before_or_after_loading_reaches_both_optimizers() -> None:
    model = BertForPreTraining(tiny_config())
    optimizer = make_optimizer(model, PretrainConfig(tokens=1, optimizer="muon"))
    optimizer.load_state_dict(optimizer.state_dict())
    set_rate(optimizer, 0.0)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    before = {name: p.clone() for name, p in model.named_parameters()}
    optimizer.step()
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    set_rate(optimizer, 0.1)
    optimizer.step()
    assert not any(torch.equal(p, before[name]) for name, p in model.named_parameters())


def test_a_level_rate_falls_only_at_the_end() -> None:
    factors = [rate_factor(p / 100, 0.1, 0.2) for p in range(101)]
    assert factors[10:80] == [1.0] * 70
    assert factors[81:] == sorted(factors[81:], reverse=True)
    assert factors[100] == 0
