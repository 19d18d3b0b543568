"""The score on dev, and the best of several seeds."""

from __future__ import annotations

import pytest
import torch

from training.evaluate.classification import Answers
from training.finetune.selection import SeedResult, best_seed, mean_score
from training.problems.choose import problem_of


def test_mean_score_gives_a_source_of_few_texts_little_weight() -> None:
    right, wrong = torch.tensor([[2.0, 0.0], [0.0, 2.0]]), torch.tensor([[0.0, 2.0], [2.0, 0.0]])
    problem, targets = problem_of(None, ["a", "b"]), torch.eye(2)
    answers = {
        "large": Answers(problem, right.repeat(300, 1), targets.repeat(300, 1), list(range(600))),
        "small": Answers(problem, wrong.repeat(5, 1), targets.repeat(5, 1), list(range(10))),
    }
    score, loss = mean_score(answers)
    assert score == pytest.approx(200 / 210)
    assert loss > 0


def test_mean_score_of_a_regression_is_higher_for_smaller_errors() -> None:
    problem, targets = problem_of("regression", ["stars"]), torch.tensor([[1.0], [5.0]])
    near, far = (mean_score({"dev": Answers(problem, targets + error, targets, [0, 1])})[0] for error in (0.5, -2.0))
    assert (near, far) == (-0.5, -2.0)


def test_best_seed_has_the_best_score_then_the_lowest_loss() -> None:
    results = [SeedResult(1, 0.8, 0.3), SeedResult(2, 0.9, 0.5), SeedResult(3, 0.9, 0.4)]
    assert best_seed(results).seed == 3
    assert best_seed([SeedResult(4, None, None)]).seed == 4
