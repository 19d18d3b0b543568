"""The best weights on dev, over kills and resumes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from training.errors import RunError
from training.finetune.selection import Best, Score
from training.loop.checkpoint import Progress
from training.loop.log import RunLog


def network(weight: float) -> nn.Linear:
    model = nn.Linear(1, 1)
    nn.init.constant_(model.weight, weight)
    return model


def test_a_higher_accuracy_wins_and_then_a_lower_loss(tmp_path: Path) -> None:
    best = Best(tmp_path / "best.pt")
    offers = [Score(0.5, -1.0), Score(0.7, -2.0), Score(0.7, -1.0), Score(0.6, -0.1)]
    assert [best.offer(step, score, network(step)) for step, score in enumerate(offers)] == [
        True,
        True,
        True,
        False,
    ]
    model = network(9)
    best.restore(model)
    assert model.weight.item() == 2


def test_patience_counts_looks_without_a_better_one(tmp_path: Path) -> None:
    best = Best(tmp_path / "best.pt", patience=2)
    for step, (accuracy, enough) in enumerate(
        [(0.5, False), (0.4, False), (0.6, False), (0.6, False), (0.5, True)]
    ):
        best.offer(step, Score(accuracy, 0.0), network(step))
        assert best.enough is enough


def test_a_resumed_run_remembers_how_long_nothing_was_better(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "log.jsonl")
    first = Best(tmp_path / "best.pt", patience=2)
    for step, accuracy in enumerate([0.5, 0.4]):
        first.offer(step, Score(accuracy, 0.0), network(step))
        log.write("evaluation", Progress(step=step), {})
    again = Best(tmp_path / "best.pt", patience=2)
    again.recall(log)
    assert (again.step, again.score, again.enough) == (0, Score(0.5, 0.0), False)
    again.offer(2, Score(0.1, 0.0), network(2))
    assert again.enough


def test_a_step_that_is_trained_again_is_no_step_without_progress(tmp_path: Path) -> None:
    Best(tmp_path / "best.pt").offer(5, Score(0.5, 0.0), network(5))
    again = Best(tmp_path / "best.pt", patience=1)
    again.recall(RunLog(tmp_path / "log.jsonl"))
    again.offer(5, Score(0.5, 0.0), network(5))
    assert not again.enough


def test_a_damaged_file_is_written_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "best.pt").write_bytes(b"half")
    best = Best(tmp_path / "best.pt")
    best.recall(RunLog(tmp_path / "log.jsonl"))
    assert "cannot be read" in caplog.text
    assert best.offer(1, Score(0.1, 0.0), network(1))
    assert torch.load(tmp_path / "best.pt", weights_only=True)["step"] == 1


def test_what_another_run_left_can_be_forgotten(tmp_path: Path) -> None:
    best = Best(tmp_path / "best.pt")
    best.forget()
    best.offer(5, Score(0.9, 0.0), network(5))
    again = Best(tmp_path / "best.pt")
    again.forget()
    again.recall(RunLog(tmp_path / "log.jsonl"))
    assert again.offer(1, Score(0.1, 0.0), network(1))


def test_a_folder_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="could not be written"):
        Best(tmp_path / "file" / "best.pt").offer(1, Score(0.1, 0.0), network(1))
