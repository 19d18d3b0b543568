"""The score on dev, and the best of several seeds."""

from __future__ import annotations

import math

import pytest
import torch

from training.finetune.selection import SeedResult, best_seed, dev_figures
from training.metrics.classification import Answers
from training.problems.choose import problem_of

EYE, PROBLEM = torch.eye(2), problem_of(None, ["a", "b"])
RIGHT, WRONG = [0, 1], [1, 0]


def answered(*domains: tuple[str, list[int], int]) -> Answers:
    """Answers to as many texts of each label in each domain."""
    logits = torch.cat([3 * EYE[answer].repeat(count, 1) for _, answer, count in domains])
    targets = EYE.repeat(len(logits) // 2, 1)
    names = [name for name, _, count in domains for _ in range(2 * count)]
    return Answers(PROBLEM, logits, targets, list(range(len(logits))), names)


def test_dev_figures_are_means_over_the_domains_with_enough_texts() -> None:
    answers = {
        "reviews": answered(("", RIGHT, 60), ("x", WRONG, 60), ("y", WRONG, 5)),
        "imdb": answered(("", RIGHT, 300)),
    }
    figures = dev_figures(answers)
    assert figures["dev_score"] == pytest.approx(2 / 3)
    assert figures["dev_loss"] > 0
    assert 0 < figures["dev_error"] < 0.01


def test_dev_figures_of_few_texts_are_means_over_all_domains() -> None:
    figures = dev_figures({"reviews": answered(("x", RIGHT, 3), ("y", WRONG, 2))})
    assert figures["dev_score"] == 0.5


def test_dev_figures_have_the_standard_error_of_the_mean() -> None:
    half = answered(("", RIGHT, 32), ("", WRONG, 32))
    assert dev_figures({"one": half})["dev_error"] == pytest.approx(0.5 / 128**0.5, rel=0.01)
    assert dev_figures({"one": half, "other": half})["dev_error"] == pytest.approx(0.5 / 256**0.5, rel=0.01)


def test_dev_figures_without_two_labels_are_those_of_all_texts() -> None:
    answers = Answers(PROBLEM, EYE[[0, 0]], EYE[[0, 0]], [0, 1], ["x", "y"])
    assert dev_figures({"one": answers})["dev_score"] == 1


def test_dev_figures_of_a_regression_are_higher_for_smaller_errors() -> None:
    problem, targets = problem_of("regression", ["stars"]), torch.tensor([[1.0], [5.0]])
    near, far = (
        dev_figures({"dev": Answers(problem, targets + error, targets, [0, 1])})["dev_score"] for error in (0.5, -2.0)
    )
    assert (near, far) == (-0.5, -2.0)


def test_best_seed_has_the_best_score_then_the_lowest_loss() -> None:
    results = [SeedResult(1, 0.8, 0.3, 0.1), SeedResult(2, 0.9, 0.5, 0.1), SeedResult(3, 0.9, 0.4, 0.1)]
    assert best_seed(results).seed == 3
    assert best_seed([SeedResult(4, None, None, None)]).seed == 4


@pytest.mark.parametrize("missing", [None, math.nan])
def test_best_seed_has_no_missing_score_if_another_has_one(missing: float | None) -> None:
    """The scores of a regression are below 0."""
    results = [
        SeedResult(1, missing, missing, missing),
        SeedResult(2, -2.0, 9.0, 0.1),
        SeedResult(3, -1.5, missing, 0.1),
    ]
    for order in (results, results[::-1]):
        assert best_seed(order).seed == 3
        assert best_seed([*order, SeedResult(4, -1.5, 9.0, 0.1)]).seed == 4


def test_dev_figures_of_a_regression_without_numbers_are_the_worst() -> None:
    problem, targets = problem_of("regression", ["stars"]), torch.tensor([[1.0], [5.0]])
    assert dev_figures({"dev": Answers(problem, targets * math.nan, targets, [0, 1])})["dev_score"] == -math.inf
