"""Figures of a model on some texts, each with its standard error.

A figure's influences say how far each text moves it (Hampel 1974). Their standard deviation over the square root of the
number of texts is the figure's standard error (Efron 1982, The Jackknife, section 6.3). Two models that answered the
same texts have paired influences, so the error of a difference follows from the differences of the influences.
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

    @property
    def standard_error(self) -> float:
        """Standard error of the value."""
        return self.influences.std(correction=0).item() / math.sqrt(len(self.influences))

    def __sub__(self, other: Estimate) -> Estimate:
        """The difference to another figure of the same texts."""
        return Estimate(self.value - other.value, self.influences - other.influences)


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
    """Mean of a value per text, (texts,)."""
    values = values.double()
    return Estimate(values.mean().item(), values)


def ratio(numerators: Tensor, denominators: Tensor) -> Estimate:
    """Ratio of two sums over the texts, both (texts,)."""
    above, below = numerators.double(), denominators.double()
    if not below.sum():
        return Estimate(math.nan, torch.zeros_like(below))
    value = (above.sum() / below.sum()).item()
    return Estimate(value, (above - value * below) / below.mean())


def average(estimates: Sequence[Estimate]) -> Estimate:
    """Mean of several figures of the same texts, each with the same weight; NaNs do not count."""
    defined = [each for each in estimates if not math.isnan(each.value)]
    if not defined:
        return Estimate(math.nan, torch.zeros_like(estimates[0].influences))
    influences = torch.stack([each.influences for each in defined])
    return Estimate(sum(each.value for each in defined) / len(defined), influences.mean(0))


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
