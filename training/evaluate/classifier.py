"""Figures of a classifier on a test set, beside those of other models on the same texts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from training.metrics.classification import Bin, calibration_error_by_chance, expected_calibration_error, reliability
from training.metrics.domains import large_parts, mean_of, rows_by_domain
from training.metrics.texts import EvaluatedTexts
from training.problems.base import Problem
from training.problems.estimates import Estimate, Figure

OURS = "this model"
"""Name of the evaluated model in a table."""

BAG = "TF-IDF + linear SVM"
"""Name of the bag of words in a table."""

NOISE = 2.0
"""Number of standard errors below which a difference may be chance."""

SHOWN_WRONG, SHOWN_CHARACTERS = 10, 200
"""Number of wrong answers in a report, and of the first characters of each text."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """`Problem.compared` of this model and of the bag of words, on the same texts."""

    ours: float
    bag: float
    gain: float
    """Difference in favour of this model."""
    standard_error: float
    """Standard error of the gain, from paired answers."""

    @property
    def is_noise(self) -> bool:
        """Whether the gain may be chance."""
        return abs(self.gain) <= NOISE * self.standard_error


@dataclass(frozen=True, slots=True)
class WrongAnswer:
    """A text with a wrong answer."""

    text: str
    """Its first characters."""
    place: str
    """Its place, such as `reviews.csv, line 7`."""
    label: str
    """The right answer."""
    answer: str
    score: float
    """`Problem.wrongness`"""


@dataclass(frozen=True, slots=True)
class LabelRow:
    """Figures of one label."""

    texts: int
    precision: Figure
    recall: Figure
    f1: Figure


@dataclass(frozen=True, slots=True)
class Domains:
    """`Problem.chosen` over the domains of a test set that have `MIN_OF_EACH_LABEL` texts of each label."""

    count: int
    means: dict[str, Figure]
    """Mean over the domains, by model."""
    worst: str
    """The domain where this model is worst."""
    worst_figure: Figure


@dataclass(frozen=True, slots=True)
class ClassifierReport:
    """A model on one test set in one reading."""

    texts: int
    figures: dict[str, dict[str, Figure]]
    """Figures by model, `OURS` first, and by name."""
    against_bag: Comparison | None
    labels: dict[str, LabelRow]
    calibration_error: float | None
    """Mean gap between confidence and accuracy (Guo et al. 2017), 15 bins of equal width."""
    calibration_error_by_chance: float | None
    """The calibration error that a perfectly calibrated model would show on this number of texts."""
    domains: Domains | None
    only_answer: str | None
    """The model's answer if it is the same for every text, although the texts' targets differ."""
    wrong: list[WrongAnswer]
    """The most wrong answers, in this order."""
    confusion: list[list[int]] | None
    """Counts. Rows: true label; columns: answer."""
    reliability: list[Bin]


def report_on(problem: Problem, scores: Mapping[str, Tensor], part: EvaluatedTexts) -> ClassifierReport:
    """Figures on the texts of a test set.

    Args:
        scores: (texts, outputs) by model, `OURS` first.

    Raises:
        MissingTextError: wrong answers cannot be shown, because only token ids are here.
    """
    targets = torch.from_numpy(part.targets)
    ours = scores[OURS]
    constant = problem.constant_of(targets).expand(len(targets), -1)
    models = {**scores, f"always the {problem.constant}": constant}
    figures = {name: problem.figures(each, targets) for name, each in models.items()}
    decisions = problem.decisions(ours, targets)
    bins = reliability(*decisions) if decisions else []
    answers, right = (set(problem.words(each)) for each in (ours, targets))
    return ClassifierReport(
        texts=len(targets),
        figures={name: {key: Figure.of(each) for key, each in found.items()} for name, found in figures.items()},
        against_bag=_against_bag(problem, figures),
        labels={
            name: LabelRow(label.texts, *map(Figure.of, (label.precision, label.recall, label.f1)))
            for name, label in problem.label_figures(ours, targets).items()
        },
        calibration_error=expected_calibration_error(bins) if bins else None,
        calibration_error_by_chance=calibration_error_by_chance(bins) if bins else None,
        domains=_domains(problem, scores, targets, part.domains),
        only_answer=answers.pop() if len(answers) == 1 < len(right) else None,
        wrong=_wrong(problem, ours, targets, part),
        confusion=problem.confusion(ours, targets),
        reliability=bins,
    )


def _against_bag(problem: Problem, figures: Mapping[str, Mapping[str, Estimate]]) -> Comparison | None:
    """The comparison with a bag of words; None without one, or if the texts do not define the figure."""
    if BAG not in figures:
        return None
    ours, bag = (figures[name][problem.compared] for name in (OURS, BAG))
    gain = bag - ours if problem.lower_is_better else ours - bag
    return None if math.isnan(gain.value) else Comparison(ours.value, bag.value, gain.value, gain.standard_error)


def _wrong(problem: Problem, scores: Tensor, targets: Tensor, part: EvaluatedTexts) -> list[WrongAnswer]:
    wrongness = problem.wrongness(scores, targets)
    answers, labels = problem.words(scores), problem.words(targets)
    order = [i for i in wrongness.argsort(descending=True, stable=True)[:SHOWN_WRONG].tolist() if wrongness[i]]
    return [
        WrongAnswer(_beginning(document.text), document.place, labels[i], answers[i], wrongness[i].item())
        for i, document in zip(order, part.documents(order), strict=True)
    ]


def _beginning(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= SHOWN_CHARACTERS else f"{line[:SHOWN_CHARACTERS]}…"


def _domains(problem: Problem, scores: Mapping[str, Tensor], targets: Tensor, domains: Sequence[str]) -> Domains | None:
    """Figures over domains; None without a large one."""
    rows = {name: chosen for name, chosen in rows_by_domain(domains, targets).items() if name}
    large = large_parts(problem, {name: targets[chosen] for name, chosen in rows.items()})
    if not large:
        return None
    found = {
        model: {name: problem.figures(each[rows[name]], targets[rows[name]])[problem.chosen] for name in large}
        for model, each in scores.items()
    }
    worst = min(large, key=lambda name: problem.merit(found[OURS][name]))
    means = {model: mean_of(list(figures.values())) for model, figures in found.items()}
    return Domains(len(large), means, worst, Figure.of(found[OURS][worst]))
