"""Values of a label column: counts, spellings, combinations, what is left out."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from model.tokenizer import SPECIAL_TOKENS, Tokenizer
from tests.training.classify.tables import only, planned, reviews, surveyed, write_csv, written
from training.corpus.prepare import prepare_labelled
from training.errors import SourceError


def labelled(labels: list[Any]) -> list[dict[str, Any]]:
    """A row for each label."""
    return [{"body": f"{row['body']} {i}", "label": labels[i]} for i, row in enumerate(reviews(len(labels)))]


def test_labels_are_told_with_their_counts_and_what_is_left_out(tmp_path: Path) -> None:
    rows = labelled(["late"] * 30 + ["broken "] * 15 + [" broken"] * 5 + ["", " ", "odd"])
    table = write_csv(tmp_path / "tickets.csv", [*rows, {"body": "", "label": "late"}])
    plan = planned(table, tmp_path / "out")
    assert plan.summary.splitlines() == [
        f"{table}: 51 texts (column body; labels: column label)",
        "labels: late (30), broken (20)",
        "left out: 2 texts without a label",
        "left out: labels with one text: odd (1)",
        "about 31 texts to train on, 10 for dev, 10 for the report",
        "trains twice: without the held-out texts for the report, then on all (finetune.all_rows=false: once)",
    ]
    assert "trains" not in planned(table, tmp_path / "out", "finetune.all_rows=false").summary
    assert written(plan)["finetune"]["labels"] == {"broken": "broken", "late": "late", "odd": "", "": ""}


def test_labels_that_are_spelled_twice_are_asked_about_with_a_line_to_paste(tmp_path: Path) -> None:
    labels = ["Positive"] * 20 + ["positive"] * 9 + ["POSITIVE"] + ["so so"] * 11 + ["So  So"] * 3 + ["bad"] * 12
    table = write_csv(tmp_path / "reviews.csv", labelled(labels))
    with pytest.raises(SourceError) as error:
        planned(table, tmp_path / "out")
    said = str(error.value)
    assert "  Positive (20), positive (9), POSITIVE (1)\n  so so (11), So  So (3)\n" in said
    (line,) = re.findall(r"add ('finetune\.labels=.*')$", said, re.MULTILINE)
    (override,) = shlex.split(line)
    merged = written(planned(table, tmp_path / "out", override))["finetune"]["labels"]
    assert merged == {"bad": "bad"} | dict.fromkeys(["Positive", "positive", "POSITIVE"], "Positive") | dict.fromkeys(
        ["so so", "So  So"], "so so"
    )
    with pytest.raises(SourceError, match=r"labels names 'Bad', but the column has the values Positive \(20\), bad"):
        planned(table, tmp_path / "out", override.replace(" }", ', "Bad" = "bad" }'))


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["a", "b", "a", "b", "a"], "has 5 rows, but a classifier needs two labels with 10 texts each"),
        (["good"] * 30, r"needs two labels with 10 texts each, better with hundreds; the labels are good \(30\)$"),
        (["good"] * 30 + ["bad"] * 9, r"the labels are good \(30\), bad \(9\)$"),
        ([""] * 30, "no column looks like the label|the labels are none"),
    ],
)
def test_labels_with_too_few_texts_are_refused(tmp_path: Path, labels: list[str], message: str) -> None:
    with pytest.raises(SourceError, match=message):
        planned(write_csv(tmp_path / "few.csv", labelled(labels)), tmp_path / "out")


def test_labels_that_are_whole_numbers_are_sorted_and_read_as_pandas_writes_them(tmp_path: Path) -> None:
    table = write_csv(tmp_path / "stars.csv", labelled(["10.0", "2.0", "", "1"] * 12))
    labels = written(planned(table, tmp_path / "out"))["finetune"]["labels"]
    assert labels == {"1": "1", "2": "2", "10": "10", "": ""}
    assert list(labels)[:3] == ["1", "2", "10"]


def test_labels_of_a_test_table_that_the_table_lacks_are_left_out(tmp_path: Path) -> None:
    table = write_csv(tmp_path / "here" / "train.csv", labelled(["a", "b"] * 20))
    test = write_csv(tmp_path / "elsewhere" / "test.csv", labelled(["a", "b", "c"]))
    plan = planned(table, tmp_path / "out", "--test", str(test))
    assert f"left out of the test table: labels that {table} does not have: c (1)" in plan.summary
    assert "3 for the report" in plan.summary
    recipe = written(plan)["finetune"]
    assert recipe["labels"] == {"a": "a", "b": "b", "c": ""}
    assert (recipe["test"][0]["path"], recipe["test_fraction"]) == (str(test), 0.0)


def test_labels_with_two_texts_are_trained_on(tmp_path: Path) -> None:
    rows = labelled(["a", "b"] * 20)
    rows += [{"body": f"some text {i}", "label": f"rare {i % 9}"} for i in range(18)]
    plan = planned(write_csv(tmp_path / "train.csv", rows), tmp_path / "out", "finetune.test_fraction=0.8")
    assert all(written(plan)["finetune"]["labels"].values())
    prepare_labelled(plan.recipe, Tokenizer.from_vocab(SPECIAL_TOKENS), tmp_path)  # else a label without a text


# --- several labels in a cell --------------------------------------------------------------------------------------

TAGS = [["price"], ["service"], ["price", "service"], ["taste", "price"], ["taste"], ["service", "taste"]]


@pytest.mark.parametrize("separator", ["; ", "|", ","])
def test_labels_in_combinations_are_separated(tmp_path: Path, separator: str) -> None:
    found = surveyed(write_csv(tmp_path / "tags.csv", labelled([separator.join(tags) for tags in TAGS * 5])))
    assert (found.problem, found.train.separator) == ("multi_label_classification", separator.strip())
    assert found.counts.values == {"price": 15, "service": 15, "taste": 15}


def test_labels_of_lists_are_several(tmp_path: Path) -> None:
    rows = only(labelled(TAGS * 5), "body", "label")
    (tmp_path / "tags.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = surveyed(tmp_path / "tags.jsonl")
    assert (found.problem, found.train.separator) == ("multi_label_classification", None)
    assert found.counts.values == {"price": 15, "service": 15, "taste": 15}


def test_labels_in_lists_of_one_element_are_one_label(tmp_path: Path) -> None:
    rows = labelled([["pos"], "pos", ["neg"], ["neg", None], []] * 12)
    (tmp_path / "tags.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = surveyed(tmp_path / "tags.jsonl")
    assert (found.problem, found.train.separator) == (None, None)
    assert found.counts.values == {"pos": 24, "neg": 24}


@pytest.mark.parametrize(
    ("labels", "overrides"),
    [
        (["Food, Drink", "Home, Garden", "Toys"], ()),
        (["1,5", "2,5", "1,0", "2,0", "1,2"], ()),
        (["a;b", "a", "b"], ("finetune.problem_type=single_label_classification",)),
    ],
)
def test_labels_with_a_separator_may_be_one_label(
    tmp_path: Path, labels: list[str], overrides: tuple[str, ...]
) -> None:
    table = write_csv(tmp_path / "tags.csv", labelled(labels * 12), delimiter="\t")
    found = surveyed(table, "--delimiter", "tab", *overrides)
    assert found.train.separator is None
    assert set(found.counts.values) == set(labels)
