"""The log of a run, over resumes."""

from __future__ import annotations

from pathlib import Path

import pytest

from training.errors import RunError
from training.loop.log import RunLog
from training.loop.state import TrainState


def test_run_log_lines_are_read_back(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "deep" / "log.jsonl")
    log.write("train", TrainState(step=3, tokens=30, seconds=60), {"loss": 1.5})
    assert list(log) == [{"event": "train", "step": 3, "tokens": 30, "minutes": 1.0, "loss": 1.5}]


def test_run_log_without_a_file_is_empty(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "log.jsonl")
    log.rewind(3)
    assert list(log) == []


def test_run_log_rewind_drops_later_and_incomplete_lines(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "log.jsonl")
    for step in (1, 2, 3):
        log.write("train", TrainState(step=step), {})
    log.file.write_text(log.file.read_text() + '{"event": "tra')
    log.rewind(2)
    assert [line["step"] for line in log] == [1, 2]
    assert log.file.read_text().endswith("\n")


def test_run_log_on_a_full_disk_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").symlink_to("/dev/full")
    with pytest.raises(RunError, match=r"log\.jsonl: cannot be written: No space left"):
        RunLog(tmp_path / "log.jsonl").write("train", TrainState(), {})


def test_run_log_passes_every_line_to_its_listener(tmp_path: Path) -> None:
    heard: list[tuple[str, int]] = []

    class Ears:
        def write(self, event: str, state: TrainState, figures: object) -> None:
            heard.append((event, state.step))

    RunLog(tmp_path / "log.jsonl", Ears()).write("train", TrainState(step=2), {})
    assert heard == [("train", 2)]
