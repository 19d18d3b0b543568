from __future__ import annotations

import pytest
import torch

from model.dropout import Dropout, dropout


@pytest.mark.parametrize("p", [0.001, 0.1, 0.5, 0.999])
def test_dropout_keeps_the_mean(p: float) -> None:
    torch.manual_seed(0)
    x = torch.ones(999, 1001)
    out = dropout(x, p)
    assert (out == 0).float().mean().item() == pytest.approx(p, abs=1 / 256)
    assert out.mean().item() == pytest.approx(1, rel=0.05)
    assert len(out.unique()) == 2


def test_dropout_passes_gradients_where_it_passes_values() -> None:
    torch.manual_seed(0)
    x = (torch.rand(50, 7) + 1).bfloat16().requires_grad_()  # not randn, which gives a 0 now and then
    out = dropout(x, 0.25)
    (grad,) = torch.autograd.grad(out.sum(), x)
    assert ((grad == 0) == (out == 0)).all()
    assert grad[grad != 0].unique().tolist() == pytest.approx([4 / 3], rel=1e-2)


def test_dropout_drops_neighbours_independently() -> None:
    torch.manual_seed(0)
    dropped = dropout(torch.ones(100_000), 0.5) == 0
    for distance in (1, 2, 8, 64):
        both = (dropped[distance:] & dropped[:-distance]).float().mean().item()
        assert both == pytest.approx(0.25, abs=0.01)


def test_dropout_follows_the_seed_and_does_nothing_in_evaluation() -> None:
    drop, x = Dropout(0.3), torch.ones(1000)
    torch.manual_seed(5)
    first, second = drop(x), drop(x)
    torch.manual_seed(5)
    assert (drop(x) == first).all()
    assert (first != second).any()
    assert drop.eval()(x) is x


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_dropout_of_all_or_of_nothing(p: float) -> None:
    assert dropout(torch.ones(9), p).tolist() == [1 - p] * 9
