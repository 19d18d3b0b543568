"""Figures of a classifier on a test set, beside others that answered the same texts."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from training.evaluate.classification import Bin, calibration_error_by_chance, expected_calibration_error, reliability
from training.problems.base import Problem
from training.problems.estimates import Estimate
from training.report.baselines import Labelled, targets_of

OURS = "this model"
"""Name of the evaluated model in a table."""

MIN_OF_EACH_LABEL = 50
"""Texts of each label that a domain needs to count as the worst one."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure as it is written down."""

    value: float | None
    """None if the texts do not define it."""
    standard_error: float | None

    @classmethod
    def of(cls, estimate: Estimate) -> Figure:
        """The figure of an estimate."""
        if math.isnan(estimate.value):
            return cls(None, None)
        return cls(estimate.value, estimate.standard_error)


@dataclass(frozen=True, slots=True)
class LabelRow:
    """Figures of one label."""

    texts: int
    precision: Figure
    recall: Figure
    f1: Figure


@dataclass(frozen=True, slots=True)
class Domains:
    """`Problem.chosen` over the domains of a test set."""

    means: dict[str, Figure]
    """Mean over the domains, by model."""
    worst: str
    """The domain where this model is worst, of those with `MIN_OF_EACH_LABEL` texts of each label."""
    worst_figure: Figure


@dataclass(frozen=True, slots=True)
class ClassifierReport:
    """A model on one test set in one reading."""

    texts: int
    figures: dict[str, dict[str, Figure]]
    """By model, `OURS` first, and by name."""
    labels: dict[str, LabelRow]
    calibration_error: float | None
    """Mean gap between confidence and accuracy (Guo et al. 2017), 15 bins of equal width."""
    calibration_error_by_chance: float | None
    """The same for a perfectly calibrated model on as few texts."""
    domains: Domains | None
    only_answer: str | None
    """What the model answers to every text, if texts differ in what is right."""
    confusion: list[list[int]] | None
    """Rows: true label; columns: answer."""
    reliability: list[Bin]


def report_on(problem: Problem, scores: Mapping[str, Tensor], part: Labelled) -> ClassifierReport:
    """Figures on the texts of a test set.

    Args:
        scores: (texts, outputs) by model, `OURS` first.
    """
    targets = torch.from_numpy(targets_of(problem, part))
    ours = scores[OURS]
    constant = problem.constant_of(targets).expand(len(targets), -1)
    models = {**scores, f"always the {problem.constant}": constant}
    decisions = problem.decisions(ours, targets)
    bins = reliability(*decisions) if decisions else []
    answers, right = (set(problem.words(each)) for each in (ours, targets))
    return ClassifierReport(
        texts=len(part),
        figures={name: _written(problem.figures(each, targets)) for name, each in models.items()},
        labels={
            name: LabelRow(label.texts, *map(Figure.of, (label.precision, label.recall, label.f1)))
            for name, label in problem.label_figures(ours, targets).items()
        },
        calibration_error=expected_calibration_error(bins) if bins else None,
        calibration_error_by_chance=calibration_error_by_chance(bins) if bins else None,
        domains=_domains(problem, scores, targets, part),
        only_answer=answers.pop() if len(answers) == 1 < len(right) else None,
        confusion=problem.confusion(ours, targets),
        reliability=bins,
    )


def _written(estimates: Mapping[str, Estimate]) -> dict[str, Figure]:
    return {name: Figure.of(estimate) for name, estimate in estimates.items()}


def _domains(problem: Problem, scores: Mapping[str, Tensor], targets: Tensor, part: Labelled) -> Domains | None:
    """None if no domain is large enough to be the worst."""
    rows: dict[str, list[int]] = defaultdict(list)
    for i, (document, _) in enumerate(part):
        rows[document.domain or ""].append(i)
    varied = {name: chosen for name, chosen in rows.items() if len(targets[chosen].unique(dim=0)) > 1}
    found = {
        model: {name: problem.figures(each[chosen], targets[chosen])[problem.chosen] for name, chosen in varied.items()}
        for model, each in scores.items()
    }
    large = [name for name, chosen in varied.items() if name and problem.rarest(targets[chosen]) >= MIN_OF_EACH_LABEL]
    if not large:
        return None
    worst = min(large, key=lambda name: problem.merit(found[OURS][name]))
    means = {model: _mean(list(figures.values())) for model, figures in found.items()}
    return Domains(means, worst, Figure.of(found[OURS][worst]))


def _mean(figures: list[Estimate]) -> Figure:
    """Mean of figures of different texts, whose errors are independent."""
    errors = [figure.standard_error for figure in figures]
    return Figure(sum(figure.value for figure in figures) / len(figures), math.hypot(*errors) / len(figures))
