"""The log over resumes, and means over a window of steps."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from training.errors import RunError
from training.loop.checkpoint import Progress
from training.loop.log import RunLog, Window


def test_lines_can_be_read_back(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "deep" / "log.jsonl")
    log.write("train", Progress(step=3, tokens=30, seconds=60), {"loss": 1.5})
    assert list(log) == [{"event": "train", "step": 3, "tokens": 30, "minutes": 1.0, "loss": 1.5}]


def test_a_log_without_a_file_is_empty(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "log.jsonl")
    log.rewind(3)
    assert list(log) == []


def test_rewinding_forgets_later_and_broken_lines(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "log.jsonl")
    for step in (1, 2, 3):
        log.write("train", Progress(step=step), {})
    log.file.write_text(log.file.read_text() + '{"event": "tra')
    log.rewind(2)
    assert [line["step"] for line in log] == [1, 2]
    assert log.file.read_text().endswith("\n")


def test_a_full_disk_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").symlink_to("/dev/full")
    with pytest.raises(RunError, match=r"log\.jsonl: cannot be written: No space left"):
        RunLog(tmp_path / "log.jsonl").write("train", Progress(), {})


def test_a_window_means_figures_and_measures_speed() -> None:
    window = Window(("loss",), Progress(tokens=100, seconds=1.0), peak_flops=1000.0)
    for loss, norm in ((2.0, 3.0), (4.0, 5.0)):
        window.add(torch.tensor([loss]), torch.tensor(norm), flops=500, rate=0.1)
    assert window.read(Progress(tokens=300, seconds=3.0)) == {
        "loss": 3.0,
        "gradient_norm": 5.0,
        "learning_rate": 0.1,
        "tokens_per_second": 100.0,
        "mfu": 0.5,
    }
    assert window.norms == [3.0, 5.0]


def test_one_norm_that_is_not_finite_shows(tmp_path: Path) -> None:
    window = Window(("loss",), Progress())
    for norm in (1.0, float("inf"), 2.0):
        window.add(torch.zeros(1), torch.tensor(norm), flops=0, rate=0.1)
    assert window.read(Progress())["gradient_norm"] == float("inf")
