"""Sources to the inputs of shards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from training.corpus.inputs import labelled_inputs, reading_of
from training.recipe import Recipe, SourceConfig
from training.sources.files import size


def test_labelled_inputs_count_the_bytes_of_all_files_for_the_progress_bar(tmp_path: Path) -> None:
    for name in ("train", "test"):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"text": "good", "label": 1}) + "\n")
    train, test = ({"path": f"{name}.jsonl", "label": "label"} for name in ("train", "test"))
    recipe = Recipe(name="x", data=tmp_path, finetune={"train": [train], "test": [test]})  # type: ignore[arg-type]
    *_, last = labelled_inputs(recipe)
    assert last.bytes_read == size([*recipe.finetune.train, *recipe.finetune.test], tmp_path)


@pytest.mark.parametrize(
    ("settings", "reading"),
    [({}, "text"), ({"text": ("a", "b")}, "pair"), ({"text": ("a", "b", "c")}, "text")]
    + [({"text": ("a", "b"), "read": read}, read) for read in ("text", "pair", "both")],
)
def test_reading_of_a_source(settings: dict[str, Any], reading: str) -> None:
    assert reading_of(SourceConfig(path="a.csv", **settings)) == reading
