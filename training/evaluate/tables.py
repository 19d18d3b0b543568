"""A report as Markdown with aligned columns, which is readable in a terminal."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, sqrt

from training.evaluate.classifier import OURS, ClassifierReport
from training.metrics.domains import MIN_OF_EACH_LABEL
from training.metrics.pretraining import PretrainingReport
from training.metrics.texts import PAIR
from training.problems.base import LabelFigures
from training.problems.estimates import Figure

WEAKEST_LABELS = 20
"""Maximum rows of a test set in the table of labels."""

REMEDY = "More {} will help most, then more {}, or another network to start from (finetune.pretrained)."


@dataclass(frozen=True, slots=True)
class Report:
    """Results of a run's models; empty for a model that does not exist."""

    pretraining: dict[str, PretrainingReport] = field(default_factory=dict)
    """Reports by name of the held-out source."""
    classification: dict[str, ClassifierReport] = field(default_factory=dict)
    """Reports by name of the test source; with `PAIR` for its texts that are also read as pairs."""
    problem_type: str | None = None
    labels: list[str] = field(default_factory=list)
    thresholds: dict[str, float] = field(default_factory=dict)
    """Score of each of several labels above which a text has it; empty: 0.5, or one label."""
    origin: str = ""
    """The texts and the training in words."""
    seed: int | None = None
    """Seed of the classifier; None if this run did not train it."""
    passes: float | None = None
    """How often its training has read the texts."""
    seeds: dict[int, dict[str, Figure]] = field(default_factory=dict)
    """Figures of each seed by name, if there are several seeds: `Problem.chosen` on dev, then the first figure on
    each test source and the mean of `Problem.chosen` over its domains."""
    weights: dict[str, str] = field(default_factory=dict)
    """Hashes of the evaluated weights, by name of the model."""
    not_evaluated: dict[str, str] = field(default_factory=dict)
    """The reason why a model is not evaluated, by its name."""


def tables(report: Report) -> dict[str, str]:
    """The results of each model as Markdown, by its name."""
    found = {}
    if report.classification:
        limits = ", ".join(f"{name} {score:g}" for name, score in report.thresholds.items())
        limits = limits and f" A label counts if its score is above its threshold, chosen on dev: {limits}."
        parts = [*_verdicts(report), f"{report.origin}{limits}\n", _classification_table(report)]
        parts += [
            *_calibration_sentences(report),
            *_domain_sentences(report),
            _label_table(report),
            _seed_table(report.seeds),
        ]
        found["classifier"] = "\n".join(filter(None, parts))
    if report.pretraining:
        found["pretrained"] = _pretraining_table(report.pretraining)
    return found


def wrong_answers(report: Report) -> str:
    """The most wrong answers of each test set. They are not in `tables`, because cards are published and texts may be
    private."""
    found = []
    for name, test in report.classification.items():
        if test.wrong and not name.endswith(PAIR):  # the same texts are listed as single ones
            lines = [
                f"{number}. {each.place}: {each.label}, answered {each.answer} "
                f"(wrong by {_number(each.score)})\n   `{each.text.replace('`', chr(39))}`\n"
                for number, each in enumerate(test.wrong, 1)
            ]
            found.append("".join([f"Most wrong answers, {name}:\n\n", *lines]))
    return "\n".join(found)


def _verdicts(report: Report) -> list[str]:
    """Sentences for each test set: whether the classifier is better than a bag of words and than the best answer that
    is always the same. Bold ones come first."""
    wanted = ["labelled texts", "time to train (minutes, passes)"]
    remedy = REMEDY.format(*(wanted[::-1] if (report.passes or 1) < 1 else wanted))  # most texts are not read yet
    found = [_verdict(name, test, remedy) for name, test in report.classification.items() if test.against]
    return sorted(found, key=lambda sentence: not sentence.startswith("**"))


def _verdict(name: str, test: ClassifierReport, remedy: str) -> str:
    """A sentence with the comparisons. Those that the model loses come first. It is bold, with the remedy, if one is
    lost, or if the model is no better than the constant answer."""
    clauses = []
    for other, found in sorted(test.against.items(), key=lambda item: item[1].verdict != "worse"):
        values = " against ".join(_number(test.figures[model][found.figure].value or 0.0) for model in (OURS, other))
        difference = _cell(Figure(abs(found.gain), found.standard_error))
        clauses.append(
            f"{found.verdict} than {other} ({title_of(found.figure)} {values}, a difference of {difference})"
        )
    clauses += [f"all answers are the same: {test.same_answer}"] * bool(test.same_answer)
    sentence = f"{name}: {', '.join(clauses)}."
    is_useless = [*test.against.values()][-1].verdict != "better"  # than the constant answer
    return f"**{sentence} {remedy}**\n" if is_useless or clauses[0].startswith("worse") else f"{sentence}\n"


def _classification_table(report: Report) -> str:
    tests = report.classification
    names = list(dict.fromkeys(name for test in tests.values() for name in test.figures[OURS]))
    rows = [
        [name, f"{test.texts:,}", model, *(_cell(figures.get(figure, Figure(None, None))) for figure in names)]
        for name, test in tests.items()
        for model, figures in test.figures.items()
    ]
    return _table(["test set", "texts", "answers of", *map(title_of, names)], *rows)


def _calibration_sentences(report: Report) -> list[str]:
    return [
        f"{name}: calibration error {test.calibration_error:.4f}; a perfectly calibrated model would show "
        f"{test.calibration_error_by_chance:.4f} on as few texts.\n"
        for name, test in report.classification.items()
        if test.calibration_error is not None
    ]


def _domain_sentences(report: Report) -> list[str]:
    """A sentence for each test set with domains."""
    sentences = []
    for name, test in report.classification.items():
        if (found := test.domains) is not None:
            means = ", ".join(f"{_cell(figure)} of {model}" for model, figure in found.means.items())
            sentences.append(
                f"{name}: mean {title_of(found.figure)} over {found.count} domains with {MIN_OF_EACH_LABEL} "
                f"texts of each label {means}; worst domain {found.worst}, {_cell(found.worst_figure)}.\n"
            )
    return sentences


def _label_table(report: Report) -> str:
    """Precision, recall and F1 of the labels. In each test set the lowest F1 comes first."""

    def f1(row: tuple[str, LabelFigures[Figure]]) -> float:
        return inf if row[1].f1.value is None else row[1].f1.value

    rows = [
        [name, label, f"{row.texts:,}", *map(_cell, (row.precision, row.recall, row.f1))]
        for name, test in report.classification.items()
        for label, row in sorted(test.labels.items(), key=f1)[:WEAKEST_LABELS]
    ]
    return _table(["test set", "label", "texts", "precision", "recall", "F1"], *rows) if rows else ""


def _seed_table(seeds: Mapping[int, Mapping[str, Figure]]) -> str:
    """Figures of each seed, the mean of each column with its standard error, and the largest difference of seeds."""
    if not seeds:
        return ""
    rows = [[str(seed), *map(_cell, figures.values())] for seed, figures in seeds.items()]
    columns = zip(*(figures.values() for figures in seeds.values()), strict=True)
    means, ranges = zip(*map(_mean_and_range, columns), strict=True)
    return _table(["seed", *next(iter(seeds.values()))], *rows, ["mean", *means], ["largest difference", *ranges])


def _mean_and_range(figures: Sequence[Figure]) -> tuple[str, str]:
    values = [figure.value for figure in figures if figure.value is not None]
    if len(values) < len(figures):
        return "–", "–"
    mean = Figure(statistics.mean(values), statistics.stdev(values) / sqrt(len(values)))
    return _cell(mean), _number(max(values) - min(values))


def _pretraining_table(reports: Mapping[str, PretrainingReport]) -> str:
    head = (
        *("held-out text", "examples", "masked-LM loss", "unigram entropy", "masked-LM accuracy"),
        *("most frequent token", "next sentence, mixed", "next sentence, random documents", "guessing"),
    )
    rows = []
    for name, r in reports.items():
        words = (r.mlm_loss, r.unigram_entropy, r.mlm_accuracy, r.unigram_accuracy)
        cells = ("–" if f is None else f"{f:.3f}" for f in (*words, r.nsp_accuracy, r.nsp_accuracy_random, 0.5))
        rows.append([name, f"{r.examples:,}", *cells])
    return _table(head, *rows)


def _table(*rows: Sequence[str]) -> str:
    """A Markdown table whose first row is its header."""
    escaped = [[cell.replace("|", r"\|") for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*escaped, strict=True)]
    head, *body = (_line(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in escaped)
    return "".join([head, _line("-" * width for width in widths), *body])


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |\n"


def title_of(name: str) -> str:
    """The name of a figure in a text.

    >>> title_of("macro_f1"), title_of("F1 of is_spam")
    ('macro F1', 'F1 of is_spam')
    """
    return name if " " in name else name.replace("_", " ").replace("f1", "F1")


def _cell(figure: Figure) -> str:
    if figure.value is None or figure.standard_error is None:
        return "–"
    return f"{_number(figure.value)} ± {_number(figure.standard_error)}"


def _number(value: float) -> str:
    """Four digits after the point; for the numbers of a regression, five digits in total."""
    return f"{value:.4f}" if abs(value) < 10 else f"{value:.5g}"
