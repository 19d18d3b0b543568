"""Figures and their standard errors, against those of many samples."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score
from torch import Tensor

from training.problems.estimates import Estimate, average, average_precision, correlation, mean, ratio, root

FIGURES: dict[str, Callable[[Tensor, Tensor], Estimate]] = {
    "mean": lambda x, _: mean(x),
    "ratio": lambda x, y: ratio(x.abs(), y.abs()),
    "average": lambda x, y: average([mean(x), ratio(y, x.abs())]),
    "root": lambda x, _: root(mean(x.square())),
    "correlation": correlation,
    "average precision": lambda x, y: average_precision(x, y > 1.5),
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


@pytest.mark.parametrize("count", [0, 9, 10])
def test_error_of_a_share_is_half_of_wilsons_interval_and_never_0(count: int) -> None:
    right, n = torch.arange(10) < count, 10
    limits = np.roots([1 + 1 / n, -(2 * count / n + 1 / n), (count / n) ** 2])  # (p - count/n)² = p (1 - p) / n
    half = abs(limits[0] - limits[1]) / 2
    assert mean(right).value == count / n
    assert mean(right).standard_error == pytest.approx(half)
    assert ratio(right & right, right | ~right).standard_error == pytest.approx(half)
    difference = mean(right) - mean(right)
    assert 0 < difference.standard_error < mean(torch.arange(10) < 9).standard_error


def test_average_precision_is_that_of_scikit_learn_with_equal_scores() -> None:
    scores, true = torch.tensor([0.9, 0.5, 0.5, 0.5, 0.2, 0.1]), torch.tensor([1, 1, 0, 0, 1, 0]).bool()
    assert average_precision(scores, true).value == pytest.approx(average_precision_score(true, scores))


def test_figure_that_texts_do_not_define_is_nan_and_counts_in_no_average() -> None:
    nothing, ones = torch.zeros(3), torch.ones(3)
    assert math.isnan(ratio(nothing, nothing).value)
    assert math.isnan(correlation(ones, torch.arange(3)).value)
    assert math.isnan(average([ratio(nothing, nothing)]).value)
    assert average([ratio(nothing, nothing), mean(ones)]).value == 1
    assert root(mean(nothing)).standard_error == 0
