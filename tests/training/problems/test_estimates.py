"""Figures and their standard errors, against those of many samples."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from training.problems.estimates import Estimate, average, correlation, mean, ratio, root

FIGURES: dict[str, Callable[[Tensor, Tensor], Estimate]] = {
    "mean": lambda x, _: mean(x),
    "ratio": lambda x, y: ratio(x.abs(), y.abs()),
    "average": lambda x, y: average([mean(x), ratio(y, x.abs())]),
    "root": lambda x, _: root(mean(x.square())),
    "correlation": correlation,
    "difference": lambda x, y: mean(x) - mean(y),
}


@pytest.mark.parametrize("figure", FIGURES.values(), ids=FIGURES)
def test_standard_error_is_the_spread_over_samples(figure: Callable[[Tensor, Tensor], Estimate]) -> None:
    generator = torch.Generator().manual_seed(1)
    found = []
    for _ in range(1000):
        x, noise = torch.randn(2, 200, generator=generator)
        found.append(figure(1 + x, x + 0.5 * noise))
    spread = torch.tensor([each.value for each in found]).std().item()
    assert sum(each.standard_error for each in found) / len(found) == pytest.approx(spread, rel=0.1)


def test_estimate_of_an_accuracy_has_its_binomial_error() -> None:
    right = torch.tensor([True] * 9 + [False])
    assert mean(right).value == pytest.approx(0.9)
    assert mean(right).standard_error == pytest.approx(math.sqrt(0.9 * 0.1 / 10))


def test_difference_of_equal_answers_has_no_error() -> None:
    right = torch.tensor([True, False, True])
    assert (mean(right) - mean(right)).standard_error == 0


def test_figure_that_texts_do_not_define_is_nan_and_counts_in_no_average() -> None:
    nothing, ones = torch.zeros(3), torch.ones(3)
    assert math.isnan(ratio(nothing, nothing).value)
    assert math.isnan(correlation(ones, torch.arange(3)).value)
    assert math.isnan(average([ratio(nothing, nothing)]).value)
    assert average([ratio(nothing, nothing), mean(ones)]).value == 1
    assert root(mean(nothing)).standard_error == 0
