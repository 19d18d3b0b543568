"""Figures of a classifier on a test set, beside those of other models on the same texts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from training.metrics.classification import Bin, calibration_error_by_chance, expected_calibration_error, reliability
from training.metrics.domains import large_parts, mean_of, rows_by_domain
from training.metrics.texts import EvaluatedTexts
from training.problems.base import LabelFigures, Problem
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
    """The first figure of `Problem.figures` of this model and of another one, on the same texts."""

    figure: str
    """Its name."""
    gain: float
    """Difference in favour of this model."""
    standard_error: float
    """Standard error of the gain, from paired answers."""
    verdict: str
    """`better`, `worse`, or `neither better nor worse` if the gain may be chance."""


Scores = Callable[[EvaluatedTexts], tuple[Problem, Tensor]]
"""A model: a function of texts that returns the problem, with the model's thresholds, and (texts, outputs) scores."""


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
class Domains:
    """`Problem.chosen` over the domains of a test set that have `MIN_OF_EACH_LABEL` texts of each label."""

    figure: str
    """Name of the figure."""
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
    against: dict[str, Comparison]
    """Comparisons with the bag of words, and last with the best answer that is the same for every text."""
    labels: dict[str, LabelFigures[Figure]]
    calibration_error: float | None
    """Mean gap between confidence and accuracy (Guo et al. 2017), 15 bins of equal width."""
    calibration_error_by_chance: float | None
    """The calibration error that a perfectly calibrated model would show on this number of texts."""
    domains: Domains | None
    same_answer: str | None
    """The answer to all texts; None if they have several."""
    wrong: list[WrongAnswer]
    """The most wrong answers, in this order; none if all answers are the same."""
    confusion: list[list[int]] | None
    """Counts. Rows: true label; columns: answer."""
    reliability: list[Bin]


def report_on(models: Mapping[str, Scores], part: EvaluatedTexts) -> ClassifierReport:
    """Figures on the texts of a test set.

    Args:
        models: by name, `OURS` first.

    Raises:
        MissingTextError: wrong answers cannot be shown, because only token ids are here.
    """
    targets = torch.from_numpy(part.targets)
    scored = {name: scores_of(part) for name, scores_of in models.items()}
    problem, ours = scored[OURS]
    constant = problem.constant_of(targets).expand(len(targets), -1)
    answered = {**scored, f"always answering {problem.words(constant[:1])[0]}": (problem, constant)}
    figures = {name: own.figures(scores, targets) for name, (own, scores) in answered.items()}
    decisions, answers = problem.decisions(ours, targets), {*problem.words(ours)}
    same_answer = min(answers) if len(answers) == 1 < len(targets) else None
    bins = reliability(*decisions) if decisions else []
    return ClassifierReport(
        texts=len(targets),
        figures={name: {key: Figure.of(each) for key, each in found.items()} for name, found in figures.items()},
        against=_comparisons(problem, figures),
        labels={
            name: LabelFigures(label.texts, *map(Figure.of, (label.precision, label.recall, label.f1)))
            for name, label in problem.label_figures(ours, targets).items()
        },
        calibration_error=expected_calibration_error(bins) if bins else None,
        calibration_error_by_chance=calibration_error_by_chance(bins) if bins else None,
        domains=_domains(scored, targets, part.domains),
        same_answer=same_answer,
        wrong=[] if same_answer else _wrong(problem, ours, targets, part),
        confusion=problem.confusion(ours, targets),
        reliability=bins,
    )


def _comparisons(problem: Problem, figures: Mapping[str, Mapping[str, Estimate]]) -> dict[str, Comparison]:
    """The comparisons with the other models, without those that the texts do not define."""
    found, figure = {}, next(iter(figures[OURS]))
    for name in [*figures][1:]:
        ours, theirs = figures[OURS][figure], figures[name][figure]
        gain = theirs - ours if problem.lower_is_better else ours - theirs
        if not math.isnan(gain.value):
            is_noise = abs(gain.value) <= NOISE * gain.standard_error
            verdict = "neither better nor worse" if is_noise else "better" if gain.value > 0 else "worse"
            found[name] = Comparison(figure, gain.value, gain.standard_error, verdict)
    return found


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


def _domains(scored: Mapping[str, tuple[Problem, Tensor]], targets: Tensor, domains: Sequence[str]) -> Domains | None:
    """Figures over domains; None without a large one."""
    problem, _ = scored[OURS]
    rows = {name: chosen for name, chosen in rows_by_domain(domains, targets).items() if name}
    large = large_parts(problem, {name: targets[chosen] for name, chosen in rows.items()})
    if not large:
        return None
    found = {
        model: {name: own.figures(each[rows[name]], targets[rows[name]])[own.chosen] for name in large}
        for model, (own, each) in scored.items()
    }
    worst = min(large, key=lambda name: problem.merit(found[OURS][name]))
    means = {model: mean_of(list(figures.values())) for model, figures in found.items()}
    return Domains(problem.chosen, len(large), means, worst, Figure.of(found[OURS][worst]))
