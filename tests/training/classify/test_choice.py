"""Which columns are chosen, and what is said if they are in doubt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.training.classify.tables import only, planned, reviews, surveyed, write_csv
from training.errors import SourceError


def chosen(folder: Path, rows: list[dict[str, Any]], *arguments: str) -> tuple[tuple[str, ...], str | None]:
    found = surveyed(write_csv(folder / "reviews.csv", rows), *arguments)
    return found.train.text, found.train.label


def refusal(folder: Path, rows: list[dict[str, Any]], *arguments: str) -> str:
    with pytest.raises(SourceError) as error:
        planned(write_csv(folder / "reviews.csv", rows), folder / "out", *arguments)
    assert not (folder / "out").exists()
    return str(error.value)


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (("body", "sentiment"), (("body",), "sentiment")),
        (("id", "title", "verified", "price"), (("title",), "verified")),  # by their values
        (("id", "title", "body", "verified", "sentiment"), (("body",), "sentiment")),  # by their names
    ],
)
def test_columns_that_fit_alone_are_chosen(
    tmp_path: Path, columns: tuple[str, ...], expected: tuple[tuple[str, ...], str]
) -> None:
    assert chosen(tmp_path, only(reviews(), *columns)) == expected


def test_columns_are_named_but_for_case_and_blanks_or_by_their_numbers(tmp_path: Path) -> None:
    rows = [{" Title": row["title"], "a, b": row["body"], "Sentiment ": row["sentiment"]} for row in reviews()]
    both = (" Title", "a, b"), "Sentiment "
    assert chosen(tmp_path, rows, "--text", "title,2", "--label", "sentiment") == both
    assert chosen(tmp_path, rows, "--text", "a, b", "--label", "3") == (("a, b",), "Sentiment ")
    assert chosen(tmp_path, rows, "--text", "a, b", "--label", "Sentiment  ") == (("a, b",), "Sentiment ")


def test_column_called_folder_may_be_the_label(tmp_path: Path) -> None:
    rows = [{"body": row["body"], "folder": row["sentiment"]} for row in reviews()]
    found = surveyed(write_csv(tmp_path / "mails.csv", rows))
    assert found.train.label == "folder"
    assert {*found.counts.values} == {row["sentiment"] for row in reviews()}


@pytest.mark.parametrize(
    ("arguments", "problem", "advice"),
    [
        ((), "several columns may hold the label: 'stars', 'sentiment', 'verified'", "--text title,body --label stars"),
        (("--text", "titel"), "it has no column 'titel'", "--text title,body --label stars"),
        (("--text", "title", "--label", "Label"), "it has no column 'Label'", "--label stars"),
        (("--text", "body", "--label", "body"), "the column 'body' cannot be text and label", "--label stars"),
        (("--text", "id", "--label", "stars"), "the column 'id' holds numbers, not texts", "--label stars"),
        (("--text", "body", "--label", "title"), "'title' has 60 different values in 60 rows", "--label stars"),
        (("--text", "body", "--label", "price"), "'price' holds 60 different numbers", "problem_type=regression"),
        (("--text", "body", "--label", "id"), "'id' holds 60 different numbers", "single_label_classification"),
    ],
)
def test_columns_in_doubt_are_listed_with_examples_and_options(
    tmp_path: Path, arguments: tuple[str, ...], problem: str, advice: str
) -> None:
    said = refusal(tmp_path, reviews(), *arguments)
    first, _, rest = said.partition(". Its columns:\n")
    assert problem in first
    assert advice in rest
    assert "  sentiment       2  negative (30) · positive (30)\n" in rest
    assert "  id             60  1000 · 1001 · 1002\n" in rest


def test_columns_of_a_table_without_a_header_have_numbers(tmp_path: Path) -> None:
    file = write_csv(tmp_path / "reviews.csv", only(reviews(), "body", "sentiment"))
    file.write_text(file.read_text().partition("\n")[2])
    with pytest.raises(SourceError, match=r"'negative' also is a value of that column; add --no-header"):
        surveyed(file)
    found = surveyed(file, "--no-header")
    assert (found.train.text, found.train.label) == (("1",), "2")
    assert found.counts.texts == 60
