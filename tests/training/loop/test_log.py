"""The log of a run, over resumes."""

from __future__ import annotations

from pathlib import Path

from training.loop.checkpoint import TrainState
from training.loop.log import RunLog, flatten


def test_run_log_lines_are_read_back(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "deep" / "log.jsonl")
    log.write("train", TrainState(step=3, tokens=30, seconds=60), {"loss": 1.5})
    assert list(log) == [{"event": "train", "step": 3, "tokens": 30, "minutes": 1.0, "loss": 1.5}]


def test_run_log_rewind_makes_the_folder_where_another_node_has_written_until_now(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "seed-1" / "log.jsonl")
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


def test_flatten_joins_nested_keys() -> None:
    flat = flatten({"seed": 1, "pretrain": {"batch_tokens": 2, "examples": {"short_length": 8}}})
    assert flat == {"seed": 1, "pretrain.batch_tokens": 2, "pretrain.examples.short_length": 8}
