"""Means over the domains of texts: their shops, hosts or apps."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

from torch import Tensor

from training.problems.base import Problem
from training.problems.estimates import Estimate, Figure

MIN_OF_EACH_LABEL = 50
"""Minimum number of texts of each label for a separate figure of a domain: with fewer, it is mostly chance."""


def rows_by_domain(domains: Sequence[str], targets: Tensor) -> dict[str, list[int]]:
    """Indices of the texts of each domain, without domains whose texts all have the same target.

    Args:
        domains: domain of each text, "" without one.
        targets: (texts, outputs)
    """
    rows: dict[str, list[int]] = defaultdict(list)
    for number, domain in enumerate(domains):
        rows[domain].append(number)
    return {domain: chosen for domain, chosen in rows.items() if len(targets[chosen].unique(dim=0)) > 1}


def large_parts(problem: Problem, targets: Mapping[str, Tensor]) -> list[str]:
    """Names of the parts that have `MIN_OF_EACH_LABEL` texts of each label."""
    return [name for name, each in targets.items() if problem.rarest(each) >= MIN_OF_EACH_LABEL]


def mean_of(estimates: Sequence[Estimate]) -> Figure:
    """Mean of figures of different texts, which have independent errors."""
    errors = [estimate.standard_error for estimate in estimates]
    value = sum(estimate.value for estimate in estimates) / len(estimates)
    return Figure(value, math.hypot(*errors) / len(estimates))
