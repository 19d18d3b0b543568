"""Files that appear whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from training.runtime.files import read_json, write_json, write_tensors


def test_write_json_is_read_back_and_leaves_no_other_file(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"text": "é", "numbers": [1, 2]})
    assert read_json(tmp_path / "a.json") == {"text": "é", "numbers": [1, 2]}
    assert [file.name for file in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.parametrize("content", [None, "", '{"a": '])
def test_read_json_of_a_missing_or_incomplete_file_is_none(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "a.json").write_text(content)
    assert read_json(tmp_path / "a.json") is None


def test_write_tensors_makes_the_folder_and_is_read_back(tmp_path: Path) -> None:
    file = tmp_path / "run" / "state.pt"
    write_tensors(file, {"weight": torch.arange(3)})
    assert torch.load(file, weights_only=True)["weight"].tolist() == [0, 1, 2]
    assert [found.name for found in file.parent.iterdir()] == ["state.pt"]
