"""Documents of every format and compression, and the errors that users make."""

from __future__ import annotations

import bz2
import gzip
import lzma
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.training.sources.reading import ARTICLES, ROWS, TEXTS, TITLE, WIKITEXT, jsonl, read, table, texts, write
from training.errors import SourceError
from training.recipe import SourceConfig, source_name
from training.sources.documents import FIRST_ROWS, documents

# --- formats


def test_wrapped_lines_of_a_row_or_of_a_labelled_file_are_joined_to_paragraphs(tmp_path: Path) -> None:
    mail = "Dear all,\r\nwe meet \n at noon.\n \n\nYours,\nAnn"
    write(tmp_path / "a.jsonl", jsonl([{"text": mail, "label": "1"}]))
    joined = "Dear all, we meet at noon.\nYours, Ann"
    assert texts(tmp_path, "a.jsonl", lines="wrapped") == [joined]
    assert texts(tmp_path, "a.jsonl", lines="wrapped", label="label") == [joined]
    assert texts(tmp_path, "a.jsonl") == ["Dear all,\nwe meet \n at noon.\n \n\nYours,\nAnn"]
    write(tmp_path / "mail" / "meeting" / "1.txt", mail)
    assert texts(tmp_path, "mail/*/*.txt", lines="wrapped", label="folder") == [joined]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", jsonl(ROWS)),
        ("a.ndjson", "\ufeff" + jsonl(ROWS)),
        ("a.json", jsonl(ROWS).replace("\n", "\r\n\n")),
        ("a.csv", table(",")),
        ("a.csv", "\ufeff" + table(",")),
        ("a.tsv", table("\t")),
    ],
)
def test_columns_become_documents(tmp_path: Path, name: str, content: str) -> None:
    write(tmp_path / name, content)
    found = read(tmp_path, name, label="label", group="title")
    assert [document.text for document in found] == TEXTS
    assert [document.label for document in found] == ["1", "0", "1"]
    assert [document.group for document in found] == ["One", "Two", "Três"]


def test_parquet_columns_become_documents(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.Table.from_pylist(ROWS * 400), tmp_path / "a.parquet")
    assert texts(tmp_path, "a.parquet") == TEXTS * 400
    with pytest.raises(SourceError, match=r"a\.parquet: it has no column 'body'; its columns are 'title', 'text', "):
        read(tmp_path, "a.parquet", text=("body",))
    write(tmp_path / "b.parquet", "no parquet at all, but long enough")
    with pytest.raises(SourceError, match=r"b\.parquet: is not a Parquet file"):
        read(tmp_path, "b.parquet")


def test_several_text_columns_are_paragraphs_and_stay_apart_as_fields(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", jsonl([{"title": "T", "text": "Body."}, {"title": None, "text": "Alone."}]))
    found = read(tmp_path, "a.jsonl", text=("title", "text"))
    assert [document.text for document in found] == ["T\nBody.", "Alone."]
    assert [document.fields for document in found] == [("T", "Body."), ("", "Alone.")]


def test_lists_of_strings_are_paragraphs_or_tokens_and_labels_are_strings(tmp_path: Path) -> None:
    rows = [
        {"text": ["It is one.", "Two."], "label": 3},
        {"text": ["x", "y"], "label": 1.0},
        {"text": "y", "label": None},
    ]
    write(tmp_path / "a.jsonl", jsonl(rows))
    found = read(tmp_path, "a.jsonl", label="label")
    assert [(document.text, document.label) for document in found] == [
        ("It is one.\nTwo.", "3"),
        ("x y", "1"),
        ("y", None),
    ]


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ({"a": 1}, "is an object; write its value or list into the cell"),
        ([["a", "b"]], "is a list in a list; write"),
        (float("inf"), "is inf; write a finite number"),
    ],
)
@pytest.mark.parametrize("key", ["label", "group", "by"])
def test_cells_of_labels_and_groups_that_are_no_value_are_refused_by_name(
    tmp_path: Path, key: str, cell: Any, message: str
) -> None:
    write(tmp_path / "a.jsonl", jsonl([{"text": "x", "odd": "a"}, {"text": "y", "odd": cell}]))
    with pytest.raises(SourceError, match=rf"a\.jsonl, line 2: the field 'odd' {message}"):
        read(tmp_path, "a.jsonl", **{key: "odd"})


def test_cells_that_are_a_list_of_one_element_are_that_element(tmp_path: Path) -> None:
    rows = [{"text": ["One."], "label": ["pos"], "group": [7]}, {"text": ["Two.", None], "label": [], "group": [None]}]
    write(tmp_path / "a.jsonl", jsonl(rows))
    found = read(tmp_path, "a.jsonl", label="label", group="group")
    assert [(each.text, each.label, each.group) for each in found] == [("One.", "pos", "7"), ("Two.", (), None)]
    write(tmp_path / "a.jsonl", jsonl([{"text": "x", "label": ["a", 2], "group": ["a", 2]}]))
    assert [each.label for each in read(tmp_path, "a.jsonl", label="label")] == [("a", "2")]
    with pytest.raises(SourceError, match=r"line 1: the field 'group' is a list of 2 elements, not one value"):
        read(tmp_path, "a.jsonl", group="group")


def test_cells_of_bytes_are_refused_by_name(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"text": ["x"], "label": [b"\xff"]}), tmp_path / "a.parquet")
    with pytest.raises(SourceError, match=r"row 1: the field 'label' is bytes that are not UTF-8"):
        read(tmp_path, "a.parquet", label="label")


def test_html_breaks_and_foreign_newlines_become_newlines(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", jsonl([{"text": "Good.<br /><br />Bad.<BR> Ugly.\r\nEnd."}]))
    assert texts(tmp_path, "a.jsonl") == ["Good.\nBad.\nUgly.\nEnd."]


def test_labelled_texts_keep_html_breaks_as_callers_send_them(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", jsonl([{"text": "Good.<br />Bad.\r\nEnd.", "label": 1}]))
    (document,) = documents(SourceConfig(path="a.jsonl", label="label"), tmp_path)
    assert document.text == "Good.<br />Bad.\nEnd."


def test_spelled_newlines_become_newlines_if_the_source_says_so(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", "text\nAn answer.\\n\\nIt ends.\n")
    assert texts(tmp_path, "a.csv") == ["An answer.\\n\\nIt ends."]  # as in $\nabla$, or C:\new
    (document,) = read(tmp_path, "a.csv", escaped_newlines=True)
    assert document.text == "An answer.\n\nIt ends."


def test_tokens_of_the_treebank_are_read_as_people_type_them_if_the_source_says_so(tmp_path: Path) -> None:
    kept = ["it is n't `` fine '' .", "it 's fine ."]
    write(tmp_path / "a.jsonl", jsonl([{"text": text, "label": 1, "film": "It"} for text in kept]))
    assert texts(tmp_path, "a.jsonl") == kept
    assert texts(tmp_path, "a.jsonl", treebank="joined") == ['it isn\'t "fine".', "it's fine."]
    both = read(tmp_path, "a.jsonl", treebank="both", label="label", group="film")
    assert [document.text for document in both] == [*kept, 'it isn\'t "fine".']  # the other would be no news
    assert {(document.label, document.group) for document in both} == {("1", "It")}


def test_half_a_character_in_json_is_replaced(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", '{"text": "half \\ud83d whole \\ud83d\\ude00"}\n')
    assert texts(tmp_path, "a.jsonl") == ["half \ufffd whole 😀"]


@pytest.mark.parametrize(
    "odd", [{"id": 7}, *({"text": value} for value in (" \n", None, float("nan"), 5, True, {"a": 1}))]
)
def test_rows_whose_text_is_missing_or_no_text_are_skipped_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, odd: dict[str, Any]
) -> None:
    write(tmp_path / "a.jsonl", jsonl([{"text": "good"}, odd, {"text": "bad"}, odd]))
    write(tmp_path / "b.jsonl", jsonl([odd, {"text": "fine"}]))
    assert texts(tmp_path, "*.jsonl", name="reviews") == ["good", "bad", "fine"]
    (message,) = caplog.messages
    assert message.startswith(
        f"reviews: 3 of 6 rows have no text and are skipped (the first is {tmp_path}/a.jsonl, line 2"
    )
    if odd.get("text") == 5:
        assert message.endswith(": 'text' is the int 5, not a text)")


def test_words_for_a_missing_value_are_values_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path / "a.csv", "text,label\ngood,None\n\\N,pos\nbad,\\N\nso,None\nNULL,neg\n")
    found = read(tmp_path, "a.csv", name="reviews", label="label")
    assert [(document.text, document.label) for document in found] == [
        ("good", "None"),
        ("bad", None),
        ("so", "None"),
        ("NULL", "neg"),
    ]
    skipped, text = caplog.messages
    assert skipped.startswith("reviews: 1 of 5 rows have no text and are skipped")
    assert text == (
        "reviews: 1 of 5 rows have 'NULL' in the column 'text'; it is read as a text: if it means that there is none, "
        "empty these cells"
    )


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.csv",
            "Reviews, of May\nid,text,n\n1,good,2\n2,bad,3\n",
            r"seems to begin in line 2, .*: give --first-line 2 \(first_line in a recipe's `table`\)",
        ),
        ("a.json", '{"data": [{"text": "a"}]}', "is JSON, but not an object per line"),
    ],
)
def test_shape_that_is_no_table_is_an_error(tmp_path: Path, name: str, content: str, message: str) -> None:
    write(tmp_path / name, content)
    with pytest.raises(SourceError, match=message):
        read(tmp_path, name)


def test_rows_of_parquet_that_have_no_text_are_skipped_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"text": ["good", None, "bad"]}), tmp_path / "a.parquet")
    assert texts(tmp_path, "a.parquet") == ["good", "bad"]
    assert "a: 1 of 3 rows have no text and are skipped" in caplog.text
    assert "a.parquet, row 2)" in caplog.text


def test_a_column_may_be_missing_in_the_first_rows_but_not_in_a_thousand(tmp_path: Path) -> None:
    late = [*[{"id": 1}] * (FIRST_ROWS - 1), {"id": 2, "text": "late", "label": 1}]
    write(tmp_path / "a.jsonl", jsonl(late))
    assert texts(tmp_path, "a.jsonl", label="label") == ["late"]
    write(tmp_path / "a.jsonl", jsonl([{"id": 1}, *late]))
    with pytest.raises(SourceError, match=r"a\.jsonl, line 1: no column 'text'; there are id"):
        texts(tmp_path, "a.jsonl")


def test_a_column_may_be_missing_in_some_files_of_a_source(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path / "part-0.jsonl", jsonl([{"id": 1}]))
    write(tmp_path / "part-1.jsonl", jsonl([{"id": 2, "text": "good"}]))
    write(tmp_path / "part-2.jsonl", "")
    assert texts(tmp_path, "part-*.jsonl") == ["good"]
    assert "part: 1 of 2 rows have no text and are skipped" in caplog.text


def test_a_table_without_a_header_is_read_by_its_numbers(tmp_path: Path) -> None:
    write(tmp_path / "train.csv", '"2","Great","Loved it"\n"1","Bad","Hated it"\n')
    settings: dict[str, Any] = {"text": ("2", "3"), "label": 1, "table": {"header": False}}
    found = read(tmp_path, "train.csv", **settings)
    assert [(document.fields, document.label) for document in found] == [
        (("Great", "Loved it"), "2"),
        (("Bad", "Hated it"), "1"),
    ]
    named = {"text": ("title", "body"), "label": "stars", "table": {"header": ["stars", "title", "body"]}}
    assert read(tmp_path, "train.csv", **named) == found


@pytest.mark.parametrize(
    ("content", "settings"),
    [
        ("text;label\nschön, sehr;1\n", {}),
        ("text^label\nschön, sehr^1\n", {"table": {"delimiter": "^"}}),
        ("label\tbody\n1\tschön, sehr\n", {"text": ("2",), "label": "1"}),
        ("text,label\n'schön, sehr',1\n", {"table": {"quote": "'"}}),
        ('text,label\n"schön\\, sehr",1\n', {"table": {"escape": "\\"}}),
        ("text,label\nschön\\, sehr,1\n", {"table": {"escape": "\\"}}),
    ],
)
def test_a_tables_dialect_is_stated_or_detected(tmp_path: Path, content: str, settings: dict[str, Any]) -> None:
    write(tmp_path / "a.csv", content)
    found = read(tmp_path, "a.csv", **({"label": "label"} | settings))
    assert [(document.text, document.label) for document in found] == [("schön, sehr", "1")]


@pytest.mark.parametrize("name", ["a.csv", "a.txt"])
def test_an_encoding_is_stated(tmp_path: Path, name: str) -> None:
    write(tmp_path / name, "text\nschön\n".encode("windows-1252"))
    assert texts(tmp_path, name, table={"encoding": "windows-1252"})[0].endswith("schön")
    with pytest.raises(SourceError, match=r"line 2: .*byte 0xf6 is .*: add --encoding .*; in a recipe, .* `table`"):
        texts(tmp_path, name)
    with pytest.raises(SourceError, match="begin with a byte order mark; state --encoding utf-16-le or utf-16-be"):
        texts(tmp_path, name, table={"encoding": "utf-16"})


def test_a_warning_is_logged_once_though_a_source_is_read_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / "a.jsonl", jsonl([{"text": "good"}, {"text": None}]))
    for _ in range(3):
        texts(tmp_path, "a.jsonl")
    assert len(caplog.messages) == 1


def test_a_folders_name_is_the_label_of_its_files(tmp_path: Path) -> None:
    for name, text in {
        "pos/1.txt": "Good.\n\nReally.<br />Yes.\n",
        "neg/2.txt": "Bad.",
        "unsup/3.txt": "So so.",
    }.items():
        write(tmp_path / "train" / name, text)
    found = read(tmp_path, "train/*/*.txt", label="folder")
    assert [(document.text, document.label, document.place) for document in found] == [
        ("Bad.", "neg", f"{tmp_path}/train/neg/2.txt"),
        ("Good.\n\nReally.<br />Yes.", "pos", f"{tmp_path}/train/pos/1.txt"),
        ("So so.", "unsup", f"{tmp_path}/train/unsup/3.txt"),
    ]


def test_files_without_text_are_skipped_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name, text in {"neg/1.txt": "Bad.", "neg/2.txt": " \n", "pos/3.txt": "Good.", "pos/4.txt": ""}.items():
        write(tmp_path / name, text)
    assert texts(tmp_path, "*/*.txt", label="folder", name="reviews") == ["Bad.", "Good."]
    (message,) = caplog.messages
    assert message == f"reviews: 2 of 4 rows have no text and are skipped (the first is {tmp_path}/neg/2.txt)"


def test_empty_tables_among_others_are_not_read_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for number, text in enumerate(["text\ngood\n", "", "text\nbad\n"]):
        write(tmp_path / f"part-{number}.csv", text)
    assert texts(tmp_path, "part-*.csv") == ["good", "bad"]
    assert caplog.messages == [f"{tmp_path}/part-*.csv: 1 of 3 tables are empty (part-1.csv) and are not read"]
    write(tmp_path / "empty" / "a.csv", "")
    with pytest.raises(SourceError, match="empty: all its tables are empty"):
        read(tmp_path, "empty")


def test_a_texts_domain_is_the_value_of_a_column(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", jsonl([{"text": "x", "shop": 1}, {"text": "y"}]))
    assert [document.domain for document in read(tmp_path, "a.jsonl", by="shop")] == ["1", None]


def test_a_table_has_columns_of_its_path_unless_it_has_them_itself(tmp_path: Path) -> None:
    write(tmp_path / "pos/a.csv", "text,folder\ngood,own\n")
    write(tmp_path / "pos/b.jsonl", jsonl([{"text": "fine"}, {"text": "great", "folder": "own"}]))
    found = read(tmp_path, "pos", label="folder")
    assert [document.label for document in found] == ["own", "pos", "own"]
    write(tmp_path / "hive/lang=de/stars=5/part.csv", "text\ngut\n")
    (document,) = read(tmp_path, "hive", label="folder", by="lang", group="stars")
    assert (document.label, document.domain, document.group) == ("5", "de", "5")


def test_names_of_columns_are_alike_in_every_format(tmp_path: Path) -> None:
    write(tmp_path / "a/a.csv", "id, Text , LABEL\n1,good,pos\n")
    write(
        tmp_path / "a/b.jsonl",
        jsonl([{" Text ": "good", "LABEL": "pos"}, {"label": "pos", "text": "good", "Text": "x"}]),
    )
    assert [(document.text, document.label) for document in read(tmp_path, "a", label="label")] == [("good", "pos")] * 3


def test_plain_text_with_a_label_column_is_an_error_that_names_the_ways(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", "A good film.\n")
    with pytest.raises(SourceError, match=r"a\.txt: plain text has no column for the label; .*`label` to \"folder\""):
        read(tmp_path, "a.txt", label="label")
    with pytest.raises(SourceError, match=r"if its labels are fastText's, set `format` to \"fasttext\""):
        read(tmp_path, "a.txt", label="label")


@pytest.mark.parametrize("name", ["train.ft.txt", "train.ft.txt.bz2"])
def test_fasttext_lines_are_labelled_texts(tmp_path: Path, name: str) -> None:
    content = "__label__2 Great CD: my lovely Pat\n\n\ufeff__label__1  Bad __label__ here\nno label\n"
    write(tmp_path / name, bz2.compress(content.encode()) if name.endswith("bz2") else content)
    found = read(tmp_path, name, format="fasttext")
    assert [(document.text, document.label, document.place.split(", ")[1]) for document in found] == [
        ("Great CD: my lovely Pat", "2", "line 1"),
        ("Bad __label__ here", "1", "line 3"),
        ("no label", None, "line 4"),
    ]


@pytest.mark.parametrize("name", ["a.txt", "a.md"])
def test_fasttext_lines_are_no_plain_text_unless_that_is_stated(tmp_path: Path, name: str) -> None:
    write(tmp_path / name, "__label__2 Great film\n__label__1 Bad\n")
    with pytest.raises(SourceError, match=r"has lines with labels of fastText; set the source's `format` to \"fastt"):
        texts(tmp_path, name)
    assert texts(tmp_path, name, format="text") == ["__label__2 Great film\n__label__1 Bad"]
    write(tmp_path / name, "The prefix is __label__ in fastText\n")
    assert len(texts(tmp_path, name)) == 1


def test_fasttext_lines_without_text_are_skipped_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path / "a.txt", "__label__1 bad\n\n__label__2\n__label__2 good\n")
    assert texts(tmp_path, "a.txt", format="fasttext") == ["bad", "good"]
    assert f"a: 1 of 3 rows have no text and are skipped (the first is {tmp_path}/a.txt, line 3)" in caplog.text


def test_fasttext_lines_with_several_labels_have_them_all(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", "__label__2 good\n__label__a __label__b bad\n")
    assert [document.label for document in read(tmp_path, "a.txt", format="fasttext")] == ["2", ("a", "b")]


@pytest.mark.parametrize("name", ["train.jsonl", "train.txt", "train.txt.gz"])
def test_lines_between_boundaries_are_read_from_every_kind_of_file(tmp_path: Path, name: str) -> None:
    rows = jsonl([{"text": line} for line in [*WIKITEXT.splitlines(keepends=True), None]])
    content = rows if name.endswith("jsonl") else WIKITEXT
    write(tmp_path / "wikitext" / name, gzip.compress(content.encode()) if name.endswith("gz") else content)
    assert texts(tmp_path, "wikitext/train*", boundary=TITLE) == ARTICLES


def test_parquet_is_known_by_its_first_bytes(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    for name in ("a.txt", "b"):
        parquet.write_table(pyarrow.table({"text": ["good"]}), tmp_path / name)
        assert texts(tmp_path, name) == ["good"]


# --- compressions


@pytest.mark.parametrize(
    ("suffix", "compress"),
    [(".gz", gzip.compress), (".xz", lzma.compress), (".bz2", bz2.compress), ("", gzip.compress)],
)
@pytest.mark.parametrize("inner", ["a.jsonl", "a.csv", "a.tsv"])
def test_compressed_files_read_as_their_contents(
    tmp_path: Path, suffix: str, compress: Callable[[bytes], bytes], inner: str
) -> None:
    content = {"a.jsonl": jsonl(ROWS), "a.csv": table(","), "a.tsv": table("\t")}[inner]
    write(tmp_path / f"{inner}{suffix}", compress(content.encode()))
    assert texts(tmp_path, f"{inner}{suffix}") == TEXTS


def test_zstandard_files_read_as_their_contents(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    whole = zstandard.compress(jsonl(ROWS * 1000).encode())
    write(tmp_path / "a.jsonl.zst", whole)
    assert texts(tmp_path, "a.jsonl.zst") == TEXTS * 1000
    write(tmp_path / "two.jsonl.zst", whole + whole)
    assert texts(tmp_path, "two.jsonl.zst") == TEXTS * 2000
    content = jsonl([{"text": str(number)} for number in range(100_000)])  # several blocks
    write(tmp_path / "a.jsonl.zst", zstandard.compress(content.encode())[:-9])
    with pytest.raises(SourceError, match=r"cut off after line \d+ \(the file ends within a "):
        texts(tmp_path, "a.jsonl.zst")


def test_limit_counts_documents_of_all_files(tmp_path: Path) -> None:
    for name in ("1.txt", "2.txt"):
        write(tmp_path / name, "a\n\nb\n\nc")
    assert texts(tmp_path, "*.txt", limit=4) == ["a", "b", "c", "a"]


def test_limit_does_not_hide_a_mistyped_column(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", jsonl(ROWS))
    with pytest.raises(SourceError, match=r"line 1: no column 'tittle'; there are "):
        texts(tmp_path, "a.jsonl", limit=2, group="tittle")


def test_group_is_refused_where_there_are_no_columns(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", "__label__1 good\n")
    for settings in ({"format": "fasttext"}, {"label": None}):
        with pytest.raises(SourceError, match=r"a\.txt: has no column for group or by; leave them out"):
            texts(tmp_path, "a.txt", group="film", **settings)


def test_limit_does_not_hide_skipped_rows_and_warnings(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = 'id,text,stars\n1,ok,5\n2,,5\n3,"Five stars!,5\n4,ok,3\n5,27",4\n6,ok,1\n7,ok,1\n'
    write(tmp_path / "a.csv", rows)
    assert len(texts(tmp_path, "a.csv", limit=3)) == 3
    assert "a: 1 of 4 rows have no text and are skipped" in caplog.text
    assert "a.csv, line 4: a quoted cell up to line 6 holds what seem to be whole rows" in caplog.text


def test_a_source_is_called_by_its_name_file_or_data_set() -> None:
    assert source_name(SourceConfig(path="a/b.jsonl.xz", name="mine")) == "mine"
    assert source_name(SourceConfig(path="a/b.jsonl.xz")) == "b"
    assert source_name(SourceConfig(path="x/my texts.v2.txt")) == "my-texts"
    assert source_name(SourceConfig(path="y", name="../up")) == "up"
    assert source_name(SourceConfig(hub="owner/set:plain")) == "owner-set-plain"
    assert source_name(SourceConfig(path="../*")) == "source"


def test_progress_adds_up_to_the_bytes_of_the_files(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl.gz", gzip.compress(jsonl(ROWS * 5000).encode()))
    counts: list[int] = []
    list(documents(SourceConfig(path="a.jsonl.gz"), tmp_path, counts.append))
    assert sum(counts) == (tmp_path / "a.jsonl.gz").stat().st_size


def test_documents_are_streamed_not_collected(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", "x\n\n" * 500_000)
    counts: list[int] = []
    stream = documents(SourceConfig(path="a.txt"), tmp_path, counts.append)
    assert next(stream).text == "x"
    assert sum(counts) < 1_000_000


# --- errors


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", '{"text": "x"}\n{"text": \n', r"a\.jsonl, line 2: the line is not JSON \(Expecting value"),
        (
            "a.jsonl",
            '[{"text": "x"}]\n',
            r"a\.jsonl: is JSON, but not an object per line",
        ),
        ("a.jsonl", '{"body": "x", "id": 1}\n', r"line 1: no column 'text'; there are body, id; set text"),
        (
            "a.jsonl",
            '{"text": {"x": 1}}\n{"text": null}\n',
            r"holds no text; .* line 1: 'text' is the dict {'x': 1}, not a text",
        ),
        (
            "a.jsonl",
            b'{"text": "x"}\n{"text": "caf\xe9"}\n',
            r"line 2: .*byte 0xe9 is not UTF-8: add --encoding",
        ),
        ("a.txt", "cut short: é".encode()[:-1] + b"\nnext", r"a\.txt, line 1: byte 0xc3"),
        ("a.txt", "First.\ncut short: é".encode()[:-1], r"a\.txt, line 2: byte 0xc3"),
        ("a.txt", "a\0b", r"a\.txt, line 1: it holds a NUL byte"),
        ("a.csv", "<!DOCTYPE html>", r"a\.csv: is an HTML page"),
        ("a.csv", "", r"a\.csv: is empty"),
        ("a.csv", "text,label\n", r"a\.csv: holds no text; fill it"),
        ("a.txt", "\n \n", r"a\.txt: holds no text"),
        ("a.csv", "body,label\nx,1\n", r"it has no column 'text'; its columns are 'body', 'label'.*; set text"),
        (
            "a.csv",
            "text,label\nx,1\nOh, no,1\n",
            r"line 3: the row has 3 cells, the header has 2 \(text, label\)",
        ),
        ("a.csv", 'text,label\n"x,1\ny,2\n', r"a\.csv, line 2: a quoted cell .* line 2 never closes; .* twice"),
        (
            "a.csv",
            "text,stars,text\nx,1,y\n",
            r"no column 'text'; .*a\.csv: several columns are called 'text'; here they are called 1, 3",
        ),
        ("a.tsv", "text\tlabel\nx\n", r"a\.tsv, line 2: the row has 1 cell, the header has 2"),
        ("a.jsonl.gz", b"not gzip", r"a\.jsonl\.gz, line 1: the line is not JSON"),
        (
            "a.jsonl.gz",
            gzip.compress(b'{"text": "x"}\n' * 999, mtime=0)[:-9],
            r"a\.jsonl\.gz: the file is cut off after line",
        ),
        ("a.jsonl.xz", lzma.compress(b'{"text": "x"}\n' * 999)[:-20], r"a\.jsonl\.xz: the file is cut off"),
        (
            "a.docx",
            "x",
            r"a\.docx: unknown suffix; .* one of csv, document, fasttext, jsonl, parquet, text, tsv",
        ),
    ],
)
def test_error_names_the_place_and_the_remedy(tmp_path: Path, name: str, content: str | bytes, message: str) -> None:
    write(tmp_path / name, content)
    with pytest.raises(SourceError, match=message):
        read(tmp_path, name)


@pytest.mark.parametrize(
    ("module", "name", "content"),
    [("pyarrow.parquet", "a.parquet", b"PAR1\x15..."), ("zstandard", "a.jsonl.zst", b"\x28\xb5\x2f\xfd")],
)
def test_a_missing_library_is_named_with_its_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, name: str, content: bytes
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    write(tmp_path / name, content)
    with pytest.raises(SourceError, match=f"run `pip install {module.partition('.')[0]}`"):
        texts(tmp_path, name)
