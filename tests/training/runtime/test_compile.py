"""Trials and their verdicts."""

from __future__ import annotations

import shutil

import pytest
import torch

from model import BertForPreTraining
from model.packing import PackedBatch
from tests.conftest import tiny_config
from training.runtime.compile import compile_if_it_pays, without_trace


def test_on_a_cpu_layers_are_compiled_only_on_demand() -> None:
    encoder = BertForPreTraining(tiny_config()).encoder
    assert not compile_if_it_pays(encoder, "auto", lambda: pytest.fail("no trial is needed"))
    assert not compile_if_it_pays(encoder, False, lambda: pytest.fail("no trial is needed"))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, on import of its compiler
def test_a_compiler_that_fails_is_no_reason_not_to_train() -> None:
    encoder = BertForPreTraining(tiny_config()).encoder

    def broken() -> None:
        raise RuntimeError("no compiler here")

    assert not compile_if_it_pays(encoder, True, broken)
    assert all(layer._compiled_call_impl is None for layer in encoder.layers)


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile on a CPU needs g++")
@pytest.mark.filterwarnings("ignore")  # torch's own, in its compiler
def test_compiled_layers_compute_the_same_gradients() -> None:
    model = BertForPreTraining(tiny_config()).eval()  # without dropout
    model.initialise(torch.Generator().manual_seed(1))
    batch = PackedBatch.pack([[2, 5, 6, 7, 3], [2, 8, 3]])

    def gradients() -> list[torch.Tensor]:
        model.zero_grad()
        model(batch)[:, :16].square().sum().backward()
        return [p.grad.clone() for p in model.encoder.parameters() if p.grad is not None]

    plain = gradients()
    assert compile_if_it_pays(model.encoder, True, lambda: model(batch).sum().backward())
    for one, other in zip(plain, gradients(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def test_trials_leave_neither_gradients_nor_random_numbers_behind() -> None:
    model = torch.nn.Linear(2, 2)
    before = torch.get_rng_state()
    with without_trace(model):
        model(torch.rand(1, 2)).sum().backward()
    assert torch.equal(torch.get_rng_state(), before)
    assert model.weight.grad is None
