"""The benchmark without HTTP, beside engines of which some are not installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks import results

MISSING = ("ctranslate2", "onnx", "onnxruntime", "openvino")


def test_offline_leaves_out_what_is_not_installed_and_saves_the_rest(
    pretrained: Path, sentiment: Path, tmp_path: Path
) -> None:
    (tmp_path / "tiny").mkdir()
    for directory in (pretrained, sentiment):
        (tmp_path / "tiny" / directory.name.removeprefix("tiny-")).symlink_to(directory)
    for name in MISSING:
        (tmp_path / f"{name}.py").write_text(f'raise ImportError("No module named {name!r}")')
    file = tmp_path / "result.json"
    command = [sys.executable, "-m", "benchmarks.offline", "--sentences", "8", "--rounds", "1"]
    path = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    done = subprocess.run(
        [*command, "--checkpoints", str(tmp_path / "tiny"), "--dtypes", "float32", "int8", "--json", str(file)],
        cwd=Path(__file__).parents[2],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    left_out = [line for line in done.stdout.splitlines() if line.startswith("left out: ")]
    assert len(left_out) == 6  # three engines in two precisions
    assert left_out[0].endswith("No module named 'openvino'; to install it: pip install '.[bench]'")
    made = json.loads(file.read_text())
    ours = ["ours, {}", "ours, not sorted, {}"]
    float32, int8 = ([name.format(dtype) for name in ours] for dtype in ("float32", "int8"))
    assert list(made["rows"]) == [*float32, "transformers, float32", *int8]
    assert all(figures[0] > 0 for figures in made["rows"].values())
    assert results.table(made) in done.stdout
