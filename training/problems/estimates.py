"""Figures of a model on some texts, each with its standard error.

A figure's influences say how far each text moves it (Hampel 1974). Their standard deviation over the square root of the
number of texts is the figure's standard error (Efron 1982, The Jackknife, section 6.3). Two models that answered the
same texts have paired influences, so the error of a difference follows from the differences of the influences.

If all of few texts are right, their influences are 0, but the next text may be wrong. So the error of a share of the
texts is half the width of Wilson's interval (1927) of one standard error: of 5 right answers to 5 texts, it is 0.083.
Other figures between 0 and 1 have this least error, too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure; NaN if these texts do not define it, such as the precision of a label that is never answered."""

    value: float
    influences: Tensor
    """(texts,) float64"""
    one_text: float = 0.0
    """1/n of a figure between 0 and 1 that n texts count for; 0 for numbers of any size."""

    @property
    def standard_error(self) -> float:
        """Standard error of the value, by Wilson's formula with the variance of the influences."""
        variance = self.influences.var(correction=0).item() / len(self.influences)
        return math.sqrt(variance + self.one_text**2 / 4) / (1 + self.one_text)

    def __sub__(self, other: Estimate) -> Estimate:
        """The difference to another figure of the same texts."""
        one_text = math.hypot(self.one_text, other.one_text)
        return Estimate(self.value - other.value, self.influences - other.influences, one_text)


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure as a report shows it."""

    value: float | None
    """The value; None if the texts do not define it."""
    standard_error: float | None

    @classmethod
    def of(cls, estimate: Estimate) -> Figure:
        """The figure of an estimate."""
        if math.isnan(estimate.value):
            return cls(None, None)
        return cls(estimate.value, estimate.standard_error)


def mean(values: Tensor) -> Estimate:
    """Mean of a value per text, (texts,); of booleans, the share that is true."""
    one_text = 1 / len(values) if values.dtype == torch.bool else 0.0
    return Estimate(values.double().mean().item(), values.double(), one_text)


def ratio(numerators: Tensor, denominators: Tensor) -> Estimate:
    """Ratio between 0 and 1 of two sums over the texts, both (texts,). Texts with a denominator count."""
    above, below = numerators.double(), denominators.double()
    if not below.sum():
        return Estimate(math.nan, torch.zeros_like(below))
    value = (above.sum() / below.sum()).item()
    return Estimate(value, (above - value * below) / below.mean(), 1 / int(below.count_nonzero()))


def average(estimates: Sequence[Estimate]) -> Estimate:
    """Mean of several figures of the same texts, each with the same weight; NaNs do not count."""
    defined = [each for each in estimates if not math.isnan(each.value)]
    if not defined:
        return Estimate(math.nan, torch.zeros_like(estimates[0].influences))
    influences = torch.stack([each.influences for each in defined]).mean(0)
    one_text = math.hypot(*(each.one_text for each in defined)) / len(defined)
    return Estimate(sum(each.value for each in defined) / len(defined), influences, one_text)


def average_precision(scores: Tensor, true: Tensor) -> Estimate:
    """Mean over the true texts of the precision among the texts with at least their score; both arguments are (texts,).

    The influences are the derivatives by the texts' weights.
    """
    _, rank = scores.unique(return_inverse=True)  # texts with equal scores have one rank
    weights = torch.ones_like(scores, dtype=torch.float64, requires_grad=True)
    ranks = weights.new_zeros(int(rank.max()) + 1)
    trues, texts = ranks.index_add(0, rank, weights * true), ranks.index_add(0, rank, weights)
    above, of = (each.flip(0).cumsum(0).flip(0) for each in (trues, texts))  # (ranks,) with at least this score
    value = (trues * above / of).sum() / trues.sum()
    (derivatives,) = torch.autograd.grad(value, weights)
    return Estimate(value.item(), derivatives * len(true), 1 / int(true.sum()))


def root(square: Estimate) -> Estimate:
    """Square root of a figure."""
    value = math.sqrt(square.value)
    return Estimate(value, square.influences / (2 * value) if value else torch.zeros_like(square.influences))


def correlation(first: Tensor, second: Tensor) -> Estimate:
    """Pearson correlation of two values per text, both (texts,)."""
    deviations = [values.double() - values.double().mean() for values in (first, second)]
    scales = [deviation.square().mean().sqrt() for deviation in deviations]
    if not all(scales):
        return Estimate(math.nan, torch.zeros_like(deviations[0]))
    a, b = (deviation / scale for deviation, scale in zip(deviations, scales, strict=True))
    value = (a * b).mean().item()
    return Estimate(value, a * b - value * (a.square() + b.square()) / 2)
