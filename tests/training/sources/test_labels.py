"""Values of a label column to the labels of a model."""

from __future__ import annotations

from typing import Any

import pytest

from training.errors import RecipeError, SourceError
from training.recipe import FinetuneConfig, load_recipe
from training.sources.documents import Document
from training.sources.labels import with_model_labels
from training.sources.tables import label_value

STARS = {"1": "NEGATIVE", "2": "NEGATIVE", "3": "", "4": "POSITIVE", "5": "POSITIVE"}


def document(label: Any, number: int = 7) -> Document:
    return Document("text", ("text",), label_value(label), origin="a.csv, line", number=number)


def labels_of(labels: dict[str, str], *values: Any) -> list[str | None]:
    return [found.label for found in with_model_labels(map(document, values), labels)]


def test_with_model_labels_merges_values_and_leaves_some_out() -> None:
    assert labels_of(STARS, "1", 2, 3.0, "4", 5) == ["NEGATIVE", "NEGATIVE", "POSITIVE", "POSITIVE"]


@pytest.mark.parametrize(
    ("value", "spelled"),
    [(1, "1"), (1.0, "1"), ("1", "1"), (True, "True"), (0.5, "0.5"), ("pos", "pos"), (0, "0")],
)
def test_with_model_labels_compares_values_as_a_recipe_spells_them(value: Any, spelled: str) -> None:
    assert labels_of({spelled: "A"}, value) == ["A"]


@pytest.mark.parametrize("missing", [None, "", float("nan")])
def test_with_model_labels_missing_label_is_an_error_unless_it_is_left_out(missing: Any) -> None:
    with pytest.raises(
        SourceError, match=r'a\.csv, line 7: has no label; fill it, or leave such rows out: .*"" = ""'
    ):
        labels_of(STARS, missing)
    assert labels_of({**STARS, "": ""}, missing, "1") == ["NEGATIVE"]


def test_with_model_labels_unknown_value_is_an_error() -> None:
    with pytest.raises(
        SourceError, match=r"a\.csv, line 7: label '6' is none of '1', '2', '3', '4', '5'; name every"
    ):
        labels_of(STARS, 6)


def test_label_names_are_in_the_order_in_which_they_appear() -> None:
    assert FinetuneConfig(labels=STARS).label_names == ["NEGATIVE", "POSITIVE"]
    swapped = {"5": "GOOD", "1": "BAD", "4": "GOOD", "3": "", "2": "SO-SO"}
    assert FinetuneConfig(labels=swapped).label_names == ["GOOD", "BAD", "SO-SO"]


@pytest.mark.parametrize("labels", ['{"1"="A"}', '{"1"="A","2"="A"}', '{"1"="A","2"=""}', "{}"])
def test_label_names_must_be_two_or_more(labels: str) -> None:
    with pytest.raises(RecipeError, match="labels must have two or more different names"):
        load_recipe("quick", [f"finetune.labels={labels}"])
