"""Scores fine-tuned classifiers on dev, and chooses among several seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from training.metrics.classification import Answers
from training.metrics.domains import large_parts, mean_of


@dataclass(frozen=True, slots=True)
class SeedResult:
    """Figures of one seed's weights on dev; None without a dev part."""

    seed: int
    dev_score: float | None
    """`Problem.merit` as a mean over domains (`dev_figures`): higher is better."""
    dev_loss: float | None
    dev_error: float | None
    """Standard error of the score."""


def dev_figures(answers: Mapping[str, Answers]) -> dict[str, float]:
    """`dev_score`, `dev_loss` and `dev_error`: means over the domains of all dev sources.

    Domains without enough texts of each label are left out, unless all are. A source without domains is one domain.

    Args:
        answers: answers by source.
    """
    parts = {f"{name} {domain}": part for name, each in answers.items() for domain, part in each.by_domain().items()}
    problem = next(iter(answers.values())).problem
    chosen = large_parts(problem, {name: part.targets for name, part in parts.items()}) or list(parts)
    estimates = [parts[name].figures()[problem.chosen] for name in chosen]
    score = sum(map(problem.merit, estimates)) / len(chosen)
    loss = sum(parts[name].loss for name in chosen) / len(chosen)
    return {"dev_score": score, "dev_loss": loss, "dev_error": mean_of(estimates).standard_error or 0.0}


def best_seed(results: Sequence[SeedResult]) -> SeedResult:
    """The result with the best score on dev, then with the lowest loss, then the first. A missing figure is the
    worst."""

    def merits(result: SeedResult) -> list[float]:
        score = math.nan if result.dev_score is None else result.dev_score
        loss = math.nan if result.dev_loss is None else result.dev_loss
        return [-math.inf if math.isnan(value) else value for value in (score, -loss)]

    return max(results, key=merits)
