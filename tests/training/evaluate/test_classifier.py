"""Figures of a classifier on a test set, from hand-made scores."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import cast

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from training.corpus.encode import label_column, target_rows
from training.evaluate import classifier
from training.evaluate.classifier import BAG, OURS
from training.metrics import domains
from training.metrics.texts import EvaluatedTexts
from training.problems.base import Problem
from training.problems.multi_label import MultiLabel
from training.problems.regression import Regression
from training.problems.single_label import SingleLabel
from training.sources.documents import Document
from training.sources.labels import Target

ONE, SEVERAL, NUMBER = SingleLabel(("a", "b")), MultiLabel(("a", "b")), Regression(("stars",))


@dataclass
class Texts:
    """Texts in memory in place of `EvaluatedTexts`."""

    targets: NDArray[np.float32]
    domains: list[str]
    found: list[Document]

    def documents(self, chosen: Sequence[int]) -> list[Document]:
        return [self.found[i] for i in chosen]


def part(*targets: Target, by: str = "", texts: Sequence[Document] = (), outputs: int = 2) -> EvaluatedTexts:
    """Texts with these targets; each letter of `by` is the domain of a text, a blank stands for none."""
    documents = list(texts) or [Document((f"text {i}",)) for i in range(len(targets))]
    domains = [letter.strip() for letter in by.ljust(len(targets))]
    return cast("EvaluatedTexts", Texts(target_rows(label_column(targets), outputs), domains, documents))


def report(problem: Problem, ours: Tensor, texts: EvaluatedTexts, **others: Tensor) -> classifier.ClassifierReport:
    models = {OURS: ours, **others}
    return classifier.report_on(
        {name: lambda _, found=found: (problem, found) for name, found in models.items()}, texts
    )


def test_report_has_each_model_beside_the_constant_answer() -> None:
    texts = part(0, 1, 1, 1)
    made = report(ONE, torch.eye(2)[[0, 0, 1, 1]], texts, bag=torch.eye(2)[[1, 0, 1, 1]])
    accuracies = {name: figures["accuracy"].value for name, figures in made.figures.items()}
    assert accuracies == {OURS: 0.75, "bag": 0.5, "always answering b": 0.75}
    assert (made.texts, made.confusion) == (4, [[1, 0], [1, 2]])
    assert made.labels["b"].texts == 3


def test_report_compares_paired_answers_with_the_bag() -> None:
    texts = part(*[0, 1] * 8)
    right, wrong = torch.eye(2)[[0, 1] * 8], torch.eye(2)[[1, 0]]
    ours, bag = torch.cat([wrong, right[2:]]), torch.cat([wrong, wrong, right[4:]])
    found = report(ONE, ours, texts, **{BAG: bag}).against
    assert (found[BAG].figure, found[BAG].gain, found[BAG].verdict) == ("accuracy", 0.125, "neither better nor worse")
    assert found[BAG].standard_error == pytest.approx((0.125 * 0.875 / 16) ** 0.5, rel=0.1), "they differ on two texts"
    assert (found["always answering a"].gain, found["always answering a"].verdict) == (0.375, "better")
    assert report(ONE, bag, texts, **{BAG: right}).against[BAG].verdict == "worse"
    assert BAG not in report(ONE, ours, texts).against


def test_report_of_numbers_gains_by_smaller_errors() -> None:
    texts = part(*[(1.0,), (4.0,)] * 8)
    near = torch.tensor([[1.5], [4.5]]).repeat(8, 1)
    found = report(NUMBER, near, texts, **{BAG: near + 1}).against[BAG]
    assert (found.gain, found.verdict) == (1, "better")


def test_report_shows_the_surest_wrong_answers_with_their_places() -> None:
    texts = [Document((f"so  {word}\n" + "x" * 300,), place=f"a.csv, line {n}") for n, word in enumerate("abc")]
    scores = torch.tensor([[0.4, 0.6], [0.9, 0.1], [0.2, 0.8]])
    first, second = report(ONE, scores, part(0, 0, 0, texts=texts)).wrong
    assert (first.place, first.label, first.answer) == ("a.csv, line 2", "a", "b")
    assert first.score == pytest.approx(0.8)
    assert first.text == "so c " + "x" * 195 + "…"
    assert second.place == "a.csv, line 0"


def test_report_of_several_labels() -> None:
    made = report(SEVERAL, torch.tensor([[0.9, 0.8], [0.4, 0.7]]), part((1.0, 1.0), (0.0, 0.0)))
    assert made.figures[OURS]["all_labels_right"].value == 0.5
    assert made.confusion is None
    assert made.calibration_error is not None
    assert made.same_answer is None
    same = report(SEVERAL, torch.tensor([[0.4, 0.3], [0.1, 0.2]]), part((1.0, 1.0), (0.0, 1.0)))
    assert (same.same_answer, same.wrong) == ("(none)", []), "an order of answers that are alike says nothing"


def test_report_of_numbers_has_no_labels_and_no_confidence() -> None:
    made = report(NUMBER, torch.tensor([[1.5], [4.0]]), part((1.0,), (4.0,)))
    assert made.figures[OURS]["mean_absolute_error"].value == 0.25
    assert made.figures["always answering 2.5"]["mean_absolute_error"].value == 1.5
    assert made.figures["always answering 2.5"]["correlation"].value is None
    assert (made.labels, made.calibration_error, made.confusion, made.reliability) == ({}, None, None, [])
    assert "NaN" not in json.dumps(asdict(made))


def test_domains_weigh_alike_and_the_worst_has_enough_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(domains, "MIN_OF_EACH_LABEL", 1)
    texts = part(0, 0, 0, 1, 0, 1, 1, 1, by="xxxxyyyz")
    answers = torch.eye(2)[[0, 0, 0, 0, 0, 1, 1, 1]]  # the only 1 of the first domain is answered 0
    found = report(ONE, answers, texts).domains
    assert found is not None
    assert (found.count, found.means[OURS].value) == (2, 0.75), "the last has one label only"
    assert (found.worst, found.worst_figure.value) == ("x", 0.5)
    monkeypatch.setattr(domains, "MIN_OF_EACH_LABEL", 2)
    assert report(ONE, answers, texts).domains is None


def test_domains_of_numbers_have_the_largest_error_as_the_worst(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(domains, "MIN_OF_EACH_LABEL", 2)
    texts = part((1.0,), (2.0,), (1.0,), (2.0,), by="xxyy")
    found = report(NUMBER, torch.tensor([[1.0], [2.0], [3.0], [4.0]]), texts).domains
    assert found is not None
    assert (found.worst, found.worst_figure.value, found.means[OURS].value) == ("y", 2, 1)
