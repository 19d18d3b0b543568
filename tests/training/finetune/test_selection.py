"""The best weights on dev over kills and resumes, and the best of several seeds."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from training.errors import RunError
from training.evaluate.classification import classification_report
from training.finetune.selection import (
    BestCheckpoint,
    Score,
    SeedResult,
    best_seed,
    mean_score,
)


def network(weight: float) -> nn.Linear:
    model = nn.Linear(1, 1)
    nn.init.constant_(model.weight, weight)
    return model


def test_best_checkpoint_is_the_most_accurate_and_then_the_one_with_the_lowest_loss(tmp_path: Path) -> None:
    best = BestCheckpoint(tmp_path / "best.pt")
    scores = [Score(0.5, -1.0), Score(0.7, -2.0), Score(0.7, -1.0), Score(0.6, -0.1)]
    for step, score in enumerate(scores):
        best.update(step, score, network(step))
    assert (best.step, best.score) == (2, scores[2])
    model = network(9)
    best.restore(model)
    assert model.weight.item() == 2


def test_best_checkpoint_without_an_evaluation_restores_nothing(tmp_path: Path) -> None:
    model = network(9)
    BestCheckpoint(tmp_path / "best.pt").restore(model)
    assert model.weight.item() == 9


def test_best_checkpoint_never_keeps_a_nan(tmp_path: Path) -> None:
    best = BestCheckpoint(tmp_path / "best.pt")
    best.update(1, Score(0.5, -1.0), network(1))
    best.update(2, Score(0.5, float("nan")), network(2))
    best.update(3, Score(float("nan"), -0.1), network(3))
    assert best.step == 1


def test_best_checkpoint_of_a_resumed_run_is_loaded(tmp_path: Path) -> None:
    BestCheckpoint(tmp_path / "best.pt").update(5, Score(0.5, -1.0), network(5))
    again = BestCheckpoint(tmp_path / "best.pt")
    again.load(resumed=True)
    assert (again.step, again.score) == (5, Score(0.5, -1.0))
    again.update(6, Score(0.4, -0.5), network(6))
    assert again.step == 5


def test_best_checkpoint_of_another_run_is_deleted(tmp_path: Path) -> None:
    BestCheckpoint(tmp_path / "best.pt").update(5, Score(0.9, 0.0), network(5))
    again = BestCheckpoint(tmp_path / "best.pt")
    again.load(resumed=False)
    again.update(1, Score(0.1, 0.0), network(1))
    assert again.step == 1


def test_best_checkpoint_in_a_folder_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot write the checkpoint"):
        BestCheckpoint(tmp_path / "file" / "best.pt").update(1, Score(0.1, 0.0), network(1))


def test_mean_score_gives_a_source_of_few_texts_little_weight() -> None:
    right, wrong = torch.tensor([[2.0, 0.0], [0.0, 2.0]]), torch.tensor([[0.0, 2.0], [2.0, 0.0]])
    reports = {
        "large": classification_report(right.repeat(300, 1), torch.tensor([0, 1]).repeat(300)),
        "small": classification_report(wrong.repeat(5, 1), torch.tensor([0, 1]).repeat(5)),
    }
    score = mean_score(reports)
    assert score.accuracy == pytest.approx(200 / 210)
    assert score.negative_loss < 0


def test_best_seed_is_the_most_accurate_then_the_one_with_the_lowest_loss() -> None:
    results = [SeedResult(1, 10, 0.8, 0.3), SeedResult(2, 10, 0.9, 0.5), SeedResult(3, 10, 0.9, 0.4)]
    assert best_seed(results).seed == 3
    assert best_seed([SeedResult(4, None, None, None)]).seed == 4
