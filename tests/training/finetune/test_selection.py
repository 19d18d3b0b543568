"""The score on dev, and the best of several seeds."""

from __future__ import annotations

import pytest
import torch

from training.evaluate.classification import classification_report
from training.finetune.selection import SeedResult, best_seed, mean_score


def test_mean_score_gives_a_source_of_few_texts_little_weight() -> None:
    right, wrong = torch.tensor([[2.0, 0.0], [0.0, 2.0]]), torch.tensor([[0.0, 2.0], [2.0, 0.0]])
    reports = {
        "large": classification_report(right.repeat(300, 1), torch.tensor([0, 1]).repeat(300)),
        "small": classification_report(wrong.repeat(5, 1), torch.tensor([0, 1]).repeat(5)),
    }
    accuracy, loss = mean_score(reports)
    assert accuracy == pytest.approx(200 / 210)
    assert loss > 0


def test_best_seed_is_the_most_accurate_then_the_one_with_the_lowest_loss() -> None:
    results = [SeedResult(1, 0.8, 0.3), SeedResult(2, 0.9, 0.5), SeedResult(3, 0.9, 0.4)]
    assert best_seed(results).seed == 3
    assert best_seed([SeedResult(4, None, None)]).seed == 4
