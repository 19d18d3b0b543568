"""Values of a label column: counts, spellings, combinations, what is left out."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from model.tokenizer import SPECIAL_TOKENS, Tokenizer
from tests.training.classify.tables import planned, reviews, surveyed, write_csv, written
from training.classify.start import PRETRAINED
from training.corpus.prepare import prepare_labelled
from training.errors import SourceError
from training.sources.labels import labelled as labelled_documents


def labelled(labels: list[Any]) -> list[dict[str, Any]]:
    """A row for each label."""
    return [{"body": f"{row['body']} {i}", "label": labels[i]} for i, row in enumerate(reviews(len(labels)))]


def test_labels_are_told_with_their_counts_and_what_is_left_out(tmp_path: Path) -> None:
    rows = labelled(["late"] * 30 + ["broken "] * 15 + [" broken"] * 5 + ["", " ", "odd"])
    table = write_csv(tmp_path / "tickets.csv", [*rows, {"body": "", "label": "late"}])
    plan = planned(table, tmp_path / "out")
    assert plan.summary.splitlines() == [
        f"{table}: 51 texts (text: body; labels: label)",
        "labels: late (30), broken (20)",
        "left out: 2 texts without a label",
        "left out: labels with one text: odd (1)",
        "trains twice: without the held-out texts for the report, then on all (finetune.all_rows=false: once)",
        "takes as long as the texts need; --minutes N limits the time",
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
    recipe = written(plan)["finetune"]
    assert recipe["labels"] == {"a": "a", "b": "b", "c": ""}
    assert (recipe["test"][0]["path"], recipe["test_fraction"]) == (str(test), 0.0)
    lines = "".join(f"__label__a {row['body']}\n__label__b {row['body']}\n" for row in labelled(["a"] * 20))
    (tmp_path / "lines.txt").write_text(lines)
    with pytest.raises(SourceError, match=r"the test table has no text with a label of .*; it needs the same"):
        surveyed(tmp_path / "lines.txt", "--format", "fasttext", "--test", str(test))


def test_labels_and_columns_are_compared_and_written_with_composed_characters(tmp_path: Path) -> None:
    """macOS writes names of folders, and some programs texts, with decomposed ones."""
    rows = labelled(["scho\u0308n", "schön", "übel"] * 20)
    table = write_csv(tmp_path / "t.csv", [{"body": row["body"], "Gro\u0308ße": row["label"]} for row in rows])
    plan = planned(table, tmp_path / "out", "--label", "Größe", *NETWORK)
    assert written(plan)["finetune"]["labels"] == {"schön": "schön", "übel": "übel"}
    override = "finetune.labels={'scho\u0308n'='scho\u0308n', 'u\u0308bel'='u\u0308bel'}"
    plan = planned(table, tmp_path / "out", "--label", "Größe", override, *NETWORK)
    assert plan.recipe.finetune.label_names == ["schön", "übel"]
    assert {target for _, target in labelled_documents(plan.recipe.finetune.train[0], plan.recipe)} == {0, 1}


def test_labels_with_two_texts_are_trained_on(tmp_path: Path) -> None:
    rows = labelled(["a", "b"] * 20)
    rows += [{"body": f"some text {i}", "label": f"rare {i % 9}"} for i in range(18)]
    plan = planned(write_csv(tmp_path / "train.csv", rows), tmp_path / "out", "finetune.test_fraction=0.8")
    assert all(written(plan)["finetune"]["labels"].values())
    prepare_labelled(plan.recipe, Tokenizer.from_vocab(SPECIAL_TOKENS), tmp_path)  # else a label without a text


# --- several labels in a cell --------------------------------------------------------------------------------------

NETWORK = (f"finetune.pretrained={PRETRAINED}",)
"""States a network, so that none is tried on the texts."""
TAGS = [["price"], ["service"], ["price", "service"], ["taste", "price"], ["taste"], ["service", "taste"]]


@pytest.mark.parametrize("separator", ["; ", "|", ","])
def test_labels_in_combinations_are_separated(tmp_path: Path, separator: str) -> None:
    found = surveyed(write_csv(tmp_path / "tags.csv", labelled([separator.join(tags) for tags in TAGS * 5])))
    assert (found.problem, found.train.separator) == ("multi_label_classification", separator.strip())
    assert found.counts.values == {"price": 15, "service": 15, "taste": 15}


@pytest.mark.parametrize("as_text", [None, str, json.dumps])
def test_labels_of_lists_are_several(tmp_path: Path, as_text: Callable[[Any], str] | None) -> None:
    """Also if a CSV table has the list as Python or JSON write it."""
    rows = labelled([as_text(tags) if as_text else tags for tags in TAGS * 5])
    table = tmp_path / "tags.jsonl"
    table.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = surveyed(write_csv(tmp_path / "tags.csv", rows) if as_text else table)
    assert (found.problem, found.train.separator) == ("multi_label_classification", None)
    assert found.counts.values == {"price": 15, "service": 15, "taste": 15}


@pytest.mark.parametrize(("yes", "no"), [("1", "0"), ("1.0", ""), ("True", "false")])
def test_labels_may_have_a_column_each(tmp_path: Path, yes: str, no: str) -> None:
    names = ("price", "service", "taste")
    marked = [{name: yes if name in tags else no or "0" * (not tags) for name in names} for tags in [*TAGS, []] * 5]
    rows = [{"body": row["body"]} | marks for row, marks in zip(labelled([""] * 35), marked, strict=True)]
    plan = planned(write_csv(tmp_path / "t.csv", rows), tmp_path / "out", "--label", "price, Service,4", *NETWORK)
    assert "a text may have several labels, because each label has a column" in plan.summary
    assert "t.csv: 35 texts (text: body; labels: price, service, taste)" in plan.summary
    recipe = written(plan)["finetune"]
    assert (recipe["train"][0]["label"], recipe["labels"]) == ([*names], {name: name for name in names})
    targets = [target for _, target in labelled_documents(plan.recipe.finetune.train[0], plan.recipe)]
    assert targets == [tuple(float(name in tags) for name in names) for tags in [*TAGS, []] * 5]
    with pytest.raises(SourceError, match=r"the label(?s:.*)--text body --label price,service,taste"):
        surveyed(tmp_path / "t.csv")
    rows[7]["taste"] = "WAHR"
    message = r"t\.csv, line 9: the field 'taste' is 'WAHR'; replace its values by 1 and 0, or write .* --separator$"
    with pytest.raises(SourceError, match=message):
        planned(write_csv(tmp_path / "t.csv", rows), tmp_path / "out", "--label", "price,service,taste")


@pytest.mark.parametrize(
    ("tags", "missing", "none", "mark"),
    [
        ({"tags": "price;service"}, {"tags": ""}, {"tags": "[]"}, "[]"),
        ({"price": "1", "service": "0"}, {"price": "", "service": " "}, {"price": "0", "service": ""}, "0"),
    ],
)
def test_labels_that_are_missing_are_left_out_and_no_contradiction(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, tags: Any, missing: Any, none: Any, mark: str
) -> None:
    """With several labels, too. A text with none of them says so."""
    other = {"tags": "price"} if "tags" in tags else {"price": "0", "service": "1"}
    rows = [{"body": row["body"]} | each for row, each in zip(labelled([""] * 44), [tags, other] * 22, strict=True)]
    rows += [{"body": row["body"]} | missing for row in rows[:3]] + [{"body": f"{mark} of them"} | none]
    options = ("--label", ",".join(tags), *["--separator", ";"][: 2 * ("tags" in tags)], *NETWORK)
    plan = planned(write_csv(tmp_path / "t.csv", rows), tmp_path / "out", *options)
    assert "t.csv: 45 texts (" in plan.summary
    assert f"without a label\nto train on texts that have none of the labels, write {mark} into" in plan.summary
    targets = [target for _, target in labelled_documents(plan.recipe.finetune.train[0], plan.recipe)]
    assert (len(targets), targets[-1]) == (45, (0, 0))
    prepare_labelled(plan.recipe, Tokenizer.from_vocab(SPECIAL_TOKENS), tmp_path)
    assert "different labels" not in caplog.text


def test_labels_in_combinations_of_another_separator_are_noted(tmp_path: Path) -> None:
    table = write_csv(tmp_path / "tags.csv", labelled(["#".join(tags) for tags in TAGS * 10]))
    plan = planned(table, tmp_path / "out", *NETWORK)
    assert "labels look like combinations separated by '#': if they are, add --separator '#'" in plan.summary
    for stated in (("--separator", "#"), ("source.separator=#",)):
        found = surveyed(table, *stated)
        assert found.problem == "multi_label_classification"
        assert found.counts.values == {"price": 30, "service": 30, "taste": 30}
    with pytest.raises(SourceError, match=r"has 6 different values in 10 rows, .*: if they are, add --separator '#'"):
        surveyed(
            write_csv(table, labelled(["#".join(tags) for tags in (TAGS * 5)[:10]] + [""] * 10)), "--label", "label"
        )


@pytest.mark.parametrize("as_dictionary", [False, True])
def test_labels_have_the_names_of_a_parquet_file(tmp_path: Path, as_dictionary: bool) -> None:
    """As the library `datasets` writes them, and pandas."""
    rows, numbers, names = labelled([""] * 60), [*range(5), -1] * 10, [f"topic {i}" for i in range(30)]
    label = pyarrow.array([names[number] for number in numbers]).dictionary_encode() if as_dictionary else numbers
    feature = {"names": names, "_type": "ClassLabel"}
    features = {"body": {"dtype": "string", "_type": "Value"}, "label": feature, "old": [feature]}
    table = pyarrow.table({"body": [row["body"] for row in rows], "label": label})
    if not as_dictionary:
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    found = surveyed(tmp_path / "a.parquet").labels
    assert sorted(filter(None, found.values())) == sorted(names[:5] + names[29:] * as_dictionary)
    assert len(found) == 6


@pytest.mark.parametrize("form", ["{}", "{}%"])
def test_labels_may_be_numbers_with_a_decimal_comma_or_percent(tmp_path: Path, form: str) -> None:
    rows = [{"text": row["body"], "price": "3,20", "label": row["label"]} for row in labelled(["4,5", "3,0", "5"] * 9)]
    for row in rows:
        row["label"] = form.format(row["label"])
    table = write_csv(tmp_path / "numbers.csv", rows, delimiter=";")
    with pytest.raises(SourceError, match=r"holds 3 different numbers, (?s:.*)add: finetune\.problem_type=regression"):
        surveyed(table, "--label", "label")
    plan = planned(table, tmp_path / "out", "--label", "label", "finetune.problem_type=regression", *NETWORK)
    targets = [target for _, target in labelled_documents(plan.recipe.finetune.train[0], plan.recipe)]
    assert targets == [(4.5,), (3,), (5,)] * 9


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
        (["1,5", "2,5", "1,0", "2,0", "1,2"], ("finetune.problem_type=single_label_classification",)),
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
