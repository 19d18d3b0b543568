"""The benchmark without HTTP, beside engines of which some are not installed."""

from __future__ import annotations

import json
import multiprocessing
import sys
from pathlib import Path

import pytest

from benchmarks import offline, results

MISSING = ("ctranslate2", "onnx", "onnxruntime", "openvino")


def test_offline_leaves_out_what_is_not_installed_and_saves_the_rest(
    pretrained: Path,
    sentiment: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "tiny").mkdir()
    for directory in (pretrained, sentiment):
        (tmp_path / "tiny" / directory.name.removeprefix("tiny-")).symlink_to(directory)
    for name in MISSING:
        (tmp_path / f"{name}.py").write_text(f'raise ImportError("No module named {name!r}")')
    file = tmp_path / "result.json"
    arguments = ["--sentences", "8", "--rounds", "1", "--checkpoints", str(tmp_path / "tiny")]
    monkeypatch.setattr(sys, "argv", ["offline", *arguments, "--dtypes", "float32", "int8", "--json", str(file)])
    monkeypatch.syspath_prepend(tmp_path)  # also of the process that computes
    offline.main()
    for process in multiprocessing.active_children():
        process.kill()
        process.join()
    printed = capsys.readouterr().out
    left_out = [line for line in printed.splitlines() if line.startswith("left out: ")]
    assert len(left_out) == 6  # three engines in two precisions
    assert left_out[0].endswith("No module named 'openvino'; to install it: pip install '.[bench]'")
    made = json.loads(file.read_text())
    ours = ["ours, {}", "ours, not sorted, {}"]
    float32, int8 = ([name.format(dtype) for name in ours] for dtype in ("float32", "int8"))
    assert list(made["rows"]) == [*float32, "transformers, float32", *int8]
    assert all(figures[0] > 0 for figures in made["rows"].values())
    assert results.table(made) in printed
