"""The three problem types on hand-made scores."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from model import BertForSequenceClassification, load_checkpoint
from tests.conftest import MakeCheckpoint
from training.problems.base import Problem
from training.problems.choose import problem_of
from training.problems.multi_label import MultiLabel
from training.problems.regression import Regression
from training.problems.single_label import SingleLabel

ONE, SEVERAL, NUMBER = SingleLabel(("a", "b", "c")), MultiLabel(("a", "b", "c")), Regression(("stars",))


def values(problem: Problem, scores: torch.Tensor, targets: torch.Tensor) -> dict[str, float]:
    return {name: figure.value for name, figure in problem.figures(scores, targets).items()}


def test_problem_of_a_checkpoint_that_names_none_is_one_label() -> None:
    assert isinstance(problem_of(None, ["a", "b"]), SingleLabel)


def test_single_label_figures() -> None:
    scores = torch.tensor([[0.9, 0.1, 0.0], [0.2, 0.7, 0.1], [0.8, 0.2, 0.0], [0.6, 0.4, 0.0]])
    targets = torch.eye(3)[[0, 1, 1, 1]]
    found = ONE.figures(scores, targets)
    assert found["accuracy"].value == 0.5
    assert found["balanced_accuracy"].value == pytest.approx((1 + 1 / 3) / 2), "the third label does not occur"
    assert ONE.confusion(scores, targets) == [[1, 0, 0], [2, 1, 0], [0, 0, 0]]
    assert ONE.words(scores) == ["a", "b", "a", "a"]
    assert ONE.wrongness(scores, targets).tolist() == pytest.approx([0, 0, 0.8, 0.6])
    assert ONE.constant_of(targets).tolist() == [0, 1, 0]
    labels = ONE.label_figures(scores, targets)
    assert (labels["b"].texts, labels["b"].precision.value) == (3, 1)
    assert labels["b"].recall.value == pytest.approx(1 / 3)
    assert labels["b"].f1.value == pytest.approx(1 / 2)
    assert np.isnan(labels["c"].f1.value)


def test_single_label_figures_of_a_rare_label_begin_with_its_average_precision_and_f1() -> None:
    problem = SingleLabel(("ham", "spam"))
    targets = torch.eye(2)[[0] * 19 + [1]]
    scores = torch.tensor([[0.9, 0.1]] * 18 + [[0.4, 0.6], [0.3, 0.7]])
    assert list(values(problem, scores, targets).items())[:2] == [
        ("average precision of spam", 1.0),
        ("F1 of spam", pytest.approx(2 / 3)),
    ]
    assert next(iter(values(problem, scores[1:19], targets[1:19]))) == "accuracy", "no spam occurs"
    assert next(iter(values(problem, scores[10:], targets[10:]))) == "accuracy", "one of ten is not rare"


def test_multi_label_thresholds_are_those_of_the_highest_f1_on_dev() -> None:
    generator = torch.Generator().manual_seed(3)
    chances = torch.rand(2000, 3, generator=generator) * torch.tensor([0.4, 1.0, 0.03])
    targets = (torch.rand(2000, 3, generator=generator) < chances).float()
    targets[:, 2] = torch.eye(2000)[:, :9].sum(1)
    tuned = SEVERAL.tuned(chances, targets)
    assert tuned.thresholds[0] < 0.3, "F1 is 0 at 0.5"
    assert (0.3 <= tuned.thresholds[1] <= 0.5, tuned.thresholds[2]) == (True, 0.5), "nine texts are too few"
    f1s = [each.label_figures(chances, targets)["a"].f1.value for each in (SEVERAL, tuned)]
    assert np.isnan(f1s[0]) or f1s[0] == 0 < f1s[1]
    assert tuned.picked(targets).equal(targets.bool())
    confidence, right = tuned.decisions(torch.tensor([[0.3, 0.2, 0.1]]), torch.tensor([[1.0, 0.0, 0.0]]))
    assert (confidence.tolist(), right.tolist()) == (pytest.approx([0.3, 0.8, 0.9]), [True] * 3)


def test_multi_label_figures() -> None:
    scores = torch.tensor([[0.9, 0.6, 0.1], [0.2, 0.7, 0.1], [0.4, 0.2, 0.3]])
    targets = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    found = values(SEVERAL, scores, targets)
    assert found["micro_f1"] == pytest.approx(4 / 5)
    assert found["macro_f1"] == pytest.approx((1 + 2 / 3) / 2), "no text has the third label, and no answer"
    assert found["all_labels_right"] == pytest.approx(2 / 3)
    assert SEVERAL.words(scores) == ["a, b", "b", "(none)"]
    assert SEVERAL.wrongness(scores, targets).tolist() == pytest.approx([0.6, 0, 0])


def test_multi_label_constant_answer_has_the_highest_micro_f1() -> None:
    targets = torch.tensor([[1.0, 0.0, 1.0]] * 6 + [[0.0, 1.0, 1.0]] * 2 + [[0.0, 0.0, 1.0]] * 2)
    constant = SEVERAL.constant_of(targets)
    assert constant.tolist() == [1, 0, 1]
    best = values(SEVERAL, constant.expand(10, -1), targets)["micro_f1"]
    for other in ([0.0, 0.0, 1.0], [1.0, 1.0, 1.0], [0.0, 1.0, 1.0]):
        assert values(SEVERAL, torch.tensor(other).expand(10, -1), targets)["micro_f1"] < best


def test_regression_figures() -> None:
    scores, targets = torch.tensor([[1.0], [2.0], [5.0]]), torch.tensor([[1.0], [3.0], [2.0]])
    found = values(NUMBER, scores, targets)
    assert found["mean_absolute_error"] == pytest.approx(4 / 3)
    assert found["root_mean_squared_error"] == pytest.approx(np.sqrt(10 / 3))
    assert found["correlation"] == pytest.approx(np.corrcoef([1, 2, 5], [1, 3, 2])[0, 1])
    assert NUMBER.constant_of(targets).tolist() == [2]
    assert NUMBER.words(scores) == ["1", "2", "5"]
    assert NUMBER.merit(NUMBER.figures(scores, targets)["mean_absolute_error"]) < 0


def test_regression_is_trained_in_units_of_the_deviation_and_answers_in_the_tables(
    save_sentiment: MakeCheckpoint,
) -> None:
    fitted = NUMBER.fitted(np.array([[1990.0], [2010.0]], np.float32))
    assert (fitted.offset, fitted.scale) == (2000, 10)
    assert fitted.losses(torch.tensor([[0.5]]), torch.tensor([[2010.0]])).tolist() == [0.25]
    model = load_checkpoint(save_sentiment(id2label={0: "year"}, problem_type="regression")).model
    assert isinstance(model, BertForSequenceClassification)
    before = model.classifier.weight.clone()
    hidden = torch.randn(3, model.config.hidden_size)
    scores = fitted.scores(model.classifier(hidden))
    fitted.fold(model)
    torch.testing.assert_close(NUMBER.scores(model.classifier(hidden)), scores)
    fitted.unfold(model)
    torch.testing.assert_close(model.classifier.weight, before)
