"""Values of a label column to the labels of a model."""

from __future__ import annotations

from typing import Any

import pytest

from training.errors import SourceError
from training.recipe import FinetuneConfig
from training.sources.documents import Document
from training.sources.labels import with_label_index
from training.sources.tables import label_value

STARS = {"1": "NEGATIVE", "2": "NEGATIVE", "3": "", "4": "POSITIVE", "5": "POSITIVE"}


def document(label: Any, number: int = 7) -> Document:
    return Document("text", ("text",), label_value(label), origin="a.csv, line", number=number)


def labels_of(labels: dict[str, str], *values: Any) -> list[int]:
    return [index for _, index in with_label_index(map(document, values), labels)]


def test_with_label_index_merges_values_and_leaves_some_out() -> None:
    assert labels_of(STARS, "1", 2, 3.0, "4", 5) == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("value", "spelled"),
    [(1, "1"), (1.0, "1"), ("1", "1"), (True, "True"), (0.5, "0.5"), ("pos", "pos"), (0, "0")],
)
def test_with_label_index_compares_values_as_a_recipe_spells_them(value: Any, spelled: str) -> None:
    assert labels_of({spelled: "A"}, value) == [0]


@pytest.mark.parametrize("missing", [None, "", float("nan")])
def test_with_label_index_missing_label_is_an_error_unless_it_is_left_out(missing: Any) -> None:
    with pytest.raises(SourceError, match=r'a\.csv, line 7: has no label; fill it, remove the row, or leave .*"" = ""'):
        labels_of(STARS, missing)
    assert labels_of({**STARS, "": ""}, missing, "1") == [0]


def test_with_label_index_unknown_value_is_an_error() -> None:
    with pytest.raises(
        SourceError,
        match=r"a\.csv, line 7: label '6' is not in finetune.labels \('1', '2', '3', '4', '5'\); name",
    ):
        labels_of(STARS, 6)


def test_label_names_are_in_the_order_in_which_they_appear() -> None:
    assert FinetuneConfig(labels=STARS).label_names == ["NEGATIVE", "POSITIVE"]
    swapped = {"5": "GOOD", "1": "BAD", "4": "GOOD", "3": "", "2": "SO-SO"}
    assert FinetuneConfig(labels=swapped).label_names == ["GOOD", "BAD", "SO-SO"]
