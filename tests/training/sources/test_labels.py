"""Values of a label column to the labels of a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.training.sources.reading import jsonl, write
from training.errors import SourceError
from training.recipe import FinetuneConfig, Recipe, SourceConfig
from training.sources.labels import labelled

STARS = {"1": "NEGATIVE", "2": "NEGATIVE", "3": "", "4": "POSITIVE", "5": "POSITIVE"}


def labels_of(folder: Path, labels: dict[str, str], *values: Any, separator: str | None = None, **more: Any) -> Any:
    """Targets of these values of the label column."""
    write(folder / "a.jsonl", jsonl([{"text": "text", "label": value} for value in values]))
    recipe = Recipe(name="test", data=folder, finetune=FinetuneConfig(labels=labels, **more))
    source = SourceConfig(path="a.jsonl", label="label", separator=separator)
    return [target for _, target in labelled(source, recipe)]


def test_labelled_merges_values_and_leaves_some_out(tmp_path: Path) -> None:
    assert labels_of(tmp_path, STARS, "1", 2, 3.0, "4", 5) == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("value", "spelled"),
    [(1, "1"), (1.0, "1"), ("1", "1"), (True, "true"), (0.5, "0.5"), ("pos", "pos"), (" pos\t", "pos"), (0, "0")],
)
def test_labelled_compares_values_as_a_recipe_spells_them(tmp_path: Path, value: Any, spelled: str) -> None:
    assert labels_of(tmp_path, {spelled: "A", "other": "B"}, value) == [0]


def test_labelled_value_of_a_csv_that_pandas_wrote_as_a_float_is_the_integer(tmp_path: Path) -> None:
    assert labels_of(tmp_path, {"1": "A", "2": "B"}, "1.0", "2.00") == [0, 1]
    assert labels_of(tmp_path, {"1": "A", "1.0": "B"}, "1.0", "1") == [1, 0], "a value that is named goes first"
    with pytest.raises(SourceError, match=r"label '1\.5' is not in finetune\.labels"):
        labels_of(tmp_path, {"1": "A", "2": "B"}, "1.5")


@pytest.mark.parametrize("missing", [None, "", " ", float("nan"), "\\N"])
def test_labelled_missing_label_is_an_error_unless_it_is_left_out(tmp_path: Path, missing: Any) -> None:
    message = r'a\.jsonl, line 1: has no label; fill it, remove the row, or leave .*"" = ""'
    with pytest.raises(SourceError, match=message):
        labels_of(tmp_path, STARS, missing)
    assert labels_of(tmp_path, {**STARS, "": ""}, missing, "1") == [0]


def test_labelled_unknown_value_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(
        SourceError,
        match=r"a\.jsonl, line 1: label '6' is not in finetune.labels \('1', '2', '3', '4', '5'\); name",
    ):
        labels_of(tmp_path, STARS, 6)


@pytest.mark.parametrize("cell", ["{price,service}", "['price' 'service']"])
def test_labelled_list_in_another_notation_is_an_error(tmp_path: Path, cell: str) -> None:
    """As PostgreSQL and numpy write it."""
    with pytest.raises(SourceError, match=r"line 1: .*price.* looks like a list; write lists as JSON does"):
        labels_of(tmp_path, {cell: "A", "[B]": "B"}, cell)
    assert labels_of(tmp_path, {"[A]": "A", "[B]": "B"}, "[B]") == [1]


def test_labelled_error_names_twenty_of_many_labels(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"finetune\.labels \('0', .*'19' and 480 more\); name"):
        labels_of(tmp_path, {str(number): f"label {number}" for number in range(500)}, "other")


def test_labelled_several_labels_of_a_text_that_may_have_one_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"line 1: has the labels 1, 2; a text has one, unless finetune.problem_type"):
        labels_of(tmp_path, STARS, [1, 2])


def test_labelled_several_labels_are_numbers_for_each(tmp_path: Path) -> None:
    labels = {"new": "NEW", "used": "USED", "second hand": "USED", "?": ""}
    cells = [["used", "new"], "second hand ;used", " new ; ? ;", [], "[]", "?"]
    several = {"separator": ";", "problem_type": "multi_label_classification"}
    assert labels_of(tmp_path, labels, *cells, **several) == [(1, 1), (0, 1), (1, 0), (0, 0), (0, 0), (0, 0)]
    assert labels_of(tmp_path, labels | {"": ""}, "", None, [None], ";", "new", **several) == [(1, 0)]
    with pytest.raises(SourceError, match=r"line 2: has no label; fill it, .*; for a text with none of several labels"):
        labels_of(tmp_path, labels, "new", "", **several)
    with pytest.raises(SourceError, match=r"line 2: label 'old' is not in finetune.labels \('new', 'used'"):
        labels_of(tmp_path, labels, "new", ["used", "old"], problem_type="multi_label_classification")


def test_labelled_numbers_need_no_labels(tmp_path: Path) -> None:
    assert labels_of(tmp_path, {}, 1, 2.5, "-3e2", problem_type="regression") == [(1,), (2.5,), (-300,)]
    assert labels_of(tmp_path, {}, "1,5", "2", "1,25", problem_type="regression") == [(1.5,), (2,), (1.25,)]
    no = "is not a number, or not in the notation of the rows before"
    for value, message in (("good", no), (None, "has no number"), ([1, 2], no), (1.5, no), ("2%", no), ("1,234", no)):
        with pytest.raises(SourceError, match=rf"a\.jsonl, line 2: .*{message}; write it as 1\.5"):
            labels_of(tmp_path, {}, "1,5", value, problem_type="regression")


def test_label_name_of_a_regression_is_that_of_its_column() -> None:
    source = SourceConfig(path="a.jsonl", label="stars")
    assert FinetuneConfig(train=(source,), problem_type="regression").label_names == ["stars"]
