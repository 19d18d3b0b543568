"""Tables as people have them, read row by row."""

from __future__ import annotations

import bz2
import gzip
import itertools
import json
import lzma
import os
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bert_tables import FORMATS, LINE, Dialect, Row, TableError, files, format_of, open_table
from bert_tables.missing import MISSING_WORDS, is_missing

Read = Callable[..., tuple[list[Row], list[str]]]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Write a file and read it: its rows and its warnings, without the folder's name."""

    def write_and_read(content: str | bytes, name: str = "a.csv", **options: Any) -> tuple[list[Row], list[str]]:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        with open_table(path, **options) as table:
            return list(table.rows_for(table.columns or ("text", "n"))), [
                warning.replace(f"{tmp_path}/", "") for warning in table.warnings
            ]

    return write_and_read


def cells(rows: list[Row]) -> list[list[Any]]:
    return [list(row.cells.values()) for row in rows]


def rows_and_error(path: Path) -> tuple[list[Row], str]:
    """The rows of a file that cannot be read to its end, and the reason."""
    rows: list[Row] = []
    with open_table(path) as table, pytest.raises(TableError) as raised:
        rows.extend(table.rows)
    return rows, str(raised.value)


# --- formats


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("a.csv", "csv"),
        ("a.TSV.gz", "tsv"),
        ("a.tab.ZST", "tsv"),
        ("b/a.ndjson.xz", "jsonl"),
        ("a.json", "jsonl"),
        ("a.parquet", "parquet"),
        ("a.txt.bz2", "lines"),
        ("-", "lines"),
        *((name, None) for name in ("a.xlsx", "a.gz", "a")),
    ],
)
def test_format_of_goes_by_the_suffix(name: str, form: str | None) -> None:
    assert format_of(name) == form
    assert form in (*FORMATS, None)


@pytest.mark.parametrize("name", ["-", "a.dat", "a.txt"])
def test_format_of_is_csv_where_a_dialect_is_stated(name: str) -> None:
    assert format_of(name, Dialect(delimiter=";")) == format_of(name, Dialect(header=False)) == "csv"
    assert format_of(name, Dialect(encoding="cp1252")) == format_of(name)
    assert format_of("a.tsv", Dialect(header=False)) == "tsv"


@pytest.mark.parametrize(
    ("name", "content", "rows"),
    [
        ("a.txt", "a\r\n\n b", [Row(1, {LINE: "a"}), Row(2, {LINE: ""}), Row(3, {LINE: " b"})]),
        (
            "a.csv",
            'id,text\n1,"a, ""b""\nc"\n\n2,x\n',
            [Row(2, {"id": "1", "text": 'a, "b"\nc'}), Row(5, {"id": "2", "text": "x"})],
        ),
        ("a.tsv", "text\tid\na b\t1\n", [Row(2, {"text": "a b", "id": "1"})]),
        ("a.jsonl", '{"text": "a", "n": [1]}\n\n{}\n', [Row(1, {"text": "a", "n": [1]}), Row(3, {})]),
    ],
)
def test_open_table_reads_each_format(read: Read, name: str, content: str, rows: list[Row]) -> None:
    assert read(content, name) == (rows, [])


@pytest.mark.parametrize("name", ["a.parquet", "a.csv", "a"])
def test_open_table_parquet_is_known_by_its_first_bytes(tmp_path: Path, name: str) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"id": [1, 2], "text": ["a", None]}), tmp_path / name)
    with open_table(tmp_path / name, columns=("2",)) as table:
        assert (table.format, table.columns, table.column("2")) == ("parquet", ("id", "text"), "text")
        assert list(table.rows) == [Row(1, {"text": "a"}), Row(2, {"text": None})]
        with pytest.raises(TableError, match="no column 'body'; its columns are 'id', 'text'"):
            table.column("body")


def test_row_of_parquet_cell_that_cannot_be_converted_is_a_fault_of_its_column(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    text = pa.array([b"good", b"\xff", b"bad", b"late"]).view(pa.string())
    late = pa.array([0, 0, 0, 10**12], pa.timestamp("s"))
    zone = pa.array([0, 1, 2, 3], pa.timestamp("ns", tz="Mars/Base"))
    fine = pa.array([1, 2, 3, 4], pa.timestamp("ns"))
    parquet.write_table(pa.table({"text": text, "late": late, "zone": zone, "fine": fine}), tmp_path / "a.parquet")
    with open_table(tmp_path / "a.parquet") as table:
        rows = list(table.rows_for(("text",)))
    assert [row.cells["text"] for row in rows] == ["good", None, "bad", "late"]
    assert [row.fault is None for row in rows] == [True, False, True, True]
    assert (rows[1].fault or "").startswith("in the column 'text', a cell cannot be read (")
    assert [rows[3].cells[name] for name in ("late", "zone", "fine")] == [None, None, "1970-01-01 00:00:00.000000004"]
    places = [warning.split(", a cell")[0] for warning in table.warnings]
    assert places == [f"{tmp_path}/a.parquet, row {n}: in the column {c!r}" for n, c in ((1, "zone"), (4, "late"))]


def test_row_of_parquet_has_text_that_is_not_marked_as_such(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    given = pa.array([b"good film.", None, b"\xff" * 10], pa.binary(10))
    for column in (given, given.cast(pa.binary()), given.cast(pa.binary()).dictionary_encode()):
        parquet.write_table(pa.table({"text": column}), tmp_path / "a.parquet")
        with open_table(tmp_path / "a.parquet") as table:
            assert [row.cells["text"] for row in table.rows] == ["good film.", None, b"\xff" * 10]


def test_header_of_many_columns_is_read(read: Read) -> None:
    rows, _ = read("text" + "," * 50_000 + "\n" + "good" + "," * 50_000 + "\n")
    assert rows[0].cells["text"] == "good"


def test_open_table_compressed_again_and_again_is_an_error(read: Read) -> None:
    content = b"text\ngood\n"
    for _ in range(3):
        content = gzip.compress(content)
    assert cells(read(content, "a.csv")[0]) == [["good"]]
    with pytest.raises(TableError, match="is compressed more than 3 times"):
        read(gzip.compress(content), "a.csv")


def test_row_of_a_line_without_end_is_an_error(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_LINE", 100)
    with pytest.raises(TableError, match="a line after line 2 has more than 100 characters"):
        read("text\ngood\n" + "x" * 200 + "\n")


def test_header_of_parquet_may_repeat_names(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pa.table([["a"], ["b"], ["c"]], names=["n", "text", "n"]), tmp_path / "a.parquet")
    for columns in (None, ("text",)):
        with open_table(tmp_path / "a.parquet", columns=columns) as table:
            assert [row.cells for row in table.rows] == [{"1": "a", "text": "b", "3": "c"}]


def test_open_table_damaged_parquet_is_an_error(tmp_path: Path, read: Read) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    with pytest.raises(TableError, match=r"a\.parquet: is not a Parquet file"):
        read("no parquet at all, but long enough", "a.parquet")
    parquet.write_table(pyarrow.table({"text": ["a"]}), tmp_path / "b.parquet")
    whole = (tmp_path / "b.parquet").read_bytes()
    with pytest.raises(TableError, match=r"a\.parquet: the Parquet file is damaged or cut off"):
        read(whole[:-9], "a.parquet")
    with pytest.raises(TableError, match=r"a\.gz: .*decompress it first"):
        read(gzip.compress(whole), "a.gz")


def test_open_table_unknown_format_is_an_error(read: Read) -> None:
    with pytest.raises(TableError, match=r"a\.dat: its name does not tell its format; state the format \(csv, tsv"):
        read("text\na\n", "a.dat")
    assert cells(read("text\na\n", "a.dat", format="csv")[0]) == [["a"]]


def test_open_table_missing_file_is_an_error(tmp_path: Path) -> None:
    for path, reason in ((tmp_path / "no.csv", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(TableError, match=reason), open_table(path, format="csv"):
            pass


def test_open_table_missing_library_is_named(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(TableError, match="run `pip install zstandard`"):
        read(b"\x28\xb5\x2f\xfd....", "a.csv.zst")
    with pytest.raises(TableError, match="run `pip install pyarrow`"):
        read(b"PAR1\x15....", "a.parquet")


# --- rows


def test_row_with_fewer_or_more_cells_has_a_fault(read: Read) -> None:
    rows, _ = read("id,text,stars\n1,Great film\nand more text,4\n2,good,1,x\n3,good,5\n")
    assert [row.number for row in rows] == [2, 3, 4, 5]
    assert [(row.fault or "").split(";")[0] for row in rows] == [
        *["the row has 2 cells, the header has 3 (id, text, stars)"] * 2,
        "the row has 4 cells, the header has 3 (id, text, stars)",
        "",
    ]
    assert rows[0].cells == {"id": "1", "text": "Great film", "stars": ""}


@pytest.mark.parametrize("row", ["1,good,", '1, "good, really"', "1,good, really"])
def test_row_with_more_cells_has_a_remedy(read: Read, row: str) -> None:
    (fault,) = [row.fault for row in read(f"id,text\n{row}\n")[0]]
    assert "header has 2 (id, text); if the comma is not the delimiter, state --delimiter; else quote" in (fault or "")


def test_row_that_repeats_the_header_has_a_fault(read: Read) -> None:
    """As where files were appended to each other, with their byte order marks."""
    assert [row.fault is None for row in read("text,a,a\nx,1,2\ntext,a,a\n")[0]] == [True, False]
    rows, _ = read("\ufeffid,text\n1,good\n\ufeffid,text\n2,bad\n")
    assert [(row.cells["id"], row.fault) for row in rows] == [
        ("1", None),
        ("id", "the row repeats the header; delete it"),
        ("2", None),
    ]
    assert [row.fault for row in read("text\ntext\n")[0]] == [None]
    assert [row.fault for row in read("1,2\n1,2\n", dialect=Dialect(header=False))[0]] == [None, None]


@pytest.mark.parametrize("blank", ["\n", "  \n", "\r\n"])
def test_row_blank_lines_are_skipped_where_a_row_has_several_cells(read: Read, blank: str) -> None:
    assert cells(read(f"{blank}id,text\n{blank}1,a\n{blank}{blank}2,b\n{blank}")[0]) == [["1", "a"], ["2", "b"]]


def test_row_blank_lines_are_rows_of_one_column(read: Read) -> None:
    rows, _ = read("text\na\n\n\nb\n\n")
    assert cells(rows) == [["a"], [""], [""], ["b"], [""]]
    rows, _ = read("\na\n\n", dialect=Dialect(header=False))
    assert [(row.number, row.cells) for row in rows] == [(1, {LINE: ""}), (2, {LINE: "a"}), (3, {LINE: ""})]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r", "\r\r\n"])
@pytest.mark.parametrize("name", ["a.csv", "a.txt"])
def test_row_ends_in_any_line_end(read: Read, end: str, name: str) -> None:
    rows, _ = read(end.join(["text", "good", "", "bad", ""]), name)
    assert cells(rows)[-3:] == [["good"], [""], ["bad"]]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_row_lone_return_is_a_part_of_a_cell_where_the_header_ends_in_a_line_feed(read: Read, end: str) -> None:
    lines = ["id,text", "1,Great film.\rLoved it.", f'2,"a\rb{end}c"', "3,x", ""]
    rows, _ = read(end.join(lines))
    assert [(row.number, *row.cells.values()) for row in rows] == [
        (2, "1", "Great film.\rLoved it."),
        (3, "2", f"a\rb{end}c"),
        (5, "3", "x"),
    ]
    assert all(row.fault is None for row in rows)
    assert cells(read(f"text{end}Great film.\rLoved it.{end}bad\r")[0]) == [["Great film.\rLoved it."], ["bad"]]


def test_row_lone_return_ends_rows_where_the_header_ends_in_one(read: Read) -> None:
    rows, _ = read('id,text\r1,"good\r\nfilm"\r2,"a\rb\nc"\r3,x\n4,y\r\n5,z')
    assert cells(rows) == [["1", "good\r\nfilm"], ["2", "a\rb\nc"], ["3", "x"], ["4", "y"], ["5", "z"]]


def test_row_lone_returns_that_seem_to_end_rows_are_a_fault(read: Read) -> None:
    rows, _ = read("id,text\n1,good\r2,bad\r3,so\n4,x\n")
    assert [row.fault is None for row in rows] == [False, True]


@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
def test_row_long_cells_are_read_in_a_new_process(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("text\n" + "x" * 3_000_000 + "\n")
    program = (
        "import sys; from bert_tables import open_table\n"
        "with open_table(sys.argv[1]) as table: print(*(len(row.cells['text']) for row in table.rows))"
    )
    done = subprocess.run([sys.executable, "-c", program, tmp_path / name], capture_output=True, text=True, check=True)
    assert done.stdout == "3000000\n"


def test_row_json_that_cannot_be_read_has_a_fault(read: Read) -> None:
    deep = '{"text":' + "[" * 200_000 + "]" * 200_000 + "}"
    rows, _ = read('{"text": 1\n[]\n' + deep + '\n"text"\n{}\n', "a.jsonl")
    assert [row.number for row in rows] == [1, 2, 3, 4, 5]
    faults = [
        "the line is not JSON (Expecting ',' delimiter); write one object per line (jq -c .)",
        "the line is JSON, but not an object",
    ]
    assert [row.fault for row in rows[:2]] == faults
    assert rows[2].fault is not None
    assert [row.fault for row in rows[3:]] == ["the line is JSON, but not an object", None]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
@pytest.mark.parametrize(
    "content",
    [
        '[{"text": "a"},\n{"text": "b"}]',
        '\n [\n  {"text": "a"}\n]\n',
        '{\r\n  "text": "a"\r\n}\r\n',
        '{"text":\n"a"}\n{"text":\n"b"}\n',
        '{"data": [\n' + '{"text": "a"},\n' * 80_000 + "{}]}",
        *("[]", "[1, 2]", '["a", "b"]', '[\n["a", 1],\n["b", 2]\n]', '["a", 1]\n["a", 1]\n', '"a"\n"b"\n'),
        '{"data": [{"text": "a"}]}',
        '\n{\n"meta": {}, "rows": [\n{"text": "a"}\n]}\n',
        '{"train": [{"text": "a"}], "test": [{"text": "b"}]}',
        '{"text": ["a", "b"], "label": ["x", "y"]}',
        '{\n"text": ["a"],\n"label": ["x"]\n}',
        '{"columns": ["text"], "index": [0], "data": [["a"]]}',
        '{"text": {"0": "a"}, "label": {"0": "x"}}',
    ],
)
def test_open_table_json_that_is_not_lines_is_refused(read: Read, content: str, encoding: str) -> None:
    with pytest.raises(
        TableError, match=r"a\.json: is JSON, but not an object per line; .* array with `jq -c '.\[\]'`"
    ):
        read(content.encode(encoding), "a.json")


@pytest.mark.parametrize(
    "line",
    [
        '{"text": "a", "entities": [{"start": 0}]}',
        '{"body": "a b", "entities": [{"start": 0}]}',
        '{"text": "a", "label": ["x"], "meta": {"n": 1}}',
        '{"text": null}',
    ],
)
def test_open_table_one_object_that_may_be_a_row_is_read(read: Read, line: str) -> None:
    assert read(line, "a.json") == ([Row(1, json.loads(line))], [])


@pytest.mark.parametrize("line", ['{"data": [{"text": "a"}]}', '{"text": ["a"]}', '{"text": {"en": "a"}}'])
def test_open_table_several_objects_are_rows_of_any_shape(read: Read, line: str) -> None:
    assert [row.cells for row in read(f"{line}\n\n{line}\n", "a.jsonl")[0]] == [json.loads(line)] * 2


def test_open_table_reads_no_second_json_line_before_the_first_is_delivered(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.jsonl")
    writer = os.open(tmp_path / "a.jsonl", os.O_RDWR)
    os.write(writer, b'{"text": "a"}\n')
    with open_table(tmp_path / "a.jsonl") as table:
        assert next(table.rows).cells == {"text": "a"}
    os.close(writer)


def test_row_of_json_may_end_in_a_comma(read: Read) -> None:
    rows, _ = read('{"text": "a"},\n{"text": "b"} , \r\n{"text": "c"}\n', "a.ndjson")
    assert [(row.cells, row.fault) for row in rows] == [({"text": letter}, None) for letter in "abc"]


@pytest.mark.parametrize("between", ["", " ", ", "])
def test_row_of_several_json_objects_has_a_fault(read: Read, between: str) -> None:
    rows, _ = read(f'{{"text": "a"}}{between}{{"text": "b"}}\n{{"text": "c"}}\n', "a.jsonl")
    assert [row.fault is None for row in rows] == [False, True]
    assert "write one object per line (jq -c .)" in (rows[0].fault or "")


@pytest.mark.parametrize(
    "content", ['[{"text": "a"}]', '[\n  {\n"text": "a"}]', '{\n  "text": "a"\n}', '{"text": "a", "n": 1}\n' * 2]
)
def test_open_table_json_under_another_name_is_refused(read: Read, content: str) -> None:
    with pytest.raises(TableError, match="holds JSON, not CSV; state the format jsonl"):
        read(content, "a.csv")


def test_row_of_a_table_without_a_header_may_begin_with_a_list(read: Read) -> None:
    for cell in ('["pos"]', "[]", '[{"n": 1}]'):
        content = f"{cell}\tgood\n{cell}\tbad\n"
        rows, _ = read(content, "a.tsv", dialect=Dialect(header=False, quote=""))
        assert cells(rows) == [[cell, "good"], [cell, "bad"]]


def test_rows_of_json_before_a_cut_are_delivered_after_a_broken_row(tmp_path: Path) -> None:
    content = gzip.compress(b'{"text": "a\n' + os.urandom(3000).hex().encode())
    (tmp_path / "a.jsonl.gz").write_bytes(content[: len(content) // 2])
    with open_table(tmp_path / "a.jsonl.gz") as table:
        assert next(table.rows).number == 1
        with pytest.raises(TableError, match="the file is cut off after line 1"):
            list(table.rows)


# --- quotation marks


SWALLOWED = 'id,text,stars\n1,ok,5\n2,"Five stars!,5\n3,good,5\n4,fine,4\n5,bad,1\n6,Monitor of 27",4\n7,ok,2\n'


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.csv.gz"])
def test_quotation_mark_that_swallows_rows_gives_a_warning(read: Read, name: str) -> None:
    content = SWALLOWED if "csv" in name else SWALLOWED.replace(",", "\t").replace("1\tok", "1\tok\tok", 1)
    rows, warnings = read(gzip.compress(content.encode()) if name.endswith("gz") else content, name)
    good = [row.number for row in rows if row.fault is None]
    assert good[-2:] == [3, 8]
    (warning,) = warnings
    assert warning.startswith(f"{name}, line 3: a quoted cell up to line 7 holds what seem to be whole rows; ")


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ('text,stars\n"Five stars!,5\ngood,4\n27" monitor",4\nok,2\n', None),
        ('text,stars\n"Five stars!,5\ngood,4\nbad,1\nMonitor of 27",4\nok,2\n', 2),
        ('id,stars,text\n1,5,ok\n2,5,"Five stars!\n3,4,good\n4,4,Monitor of 27"\n5,1,no\n', 3),
        ('a,b,c,d\n1,"x, y","Five stars!,5\n2,z,good,4\n3,z,27",4\n', 2),
        ('a;b;c\n1;ok;2\n1;"Five stars!;5\n2;good;4\n3;27";4\n', 3),
        ('title,text,stars\n,"Five stars!,5\n,good,4\n,bad,1\n,Monitor of 27",4\n', 2),
        ('a,b\n"one\ntwo","Five stars!\n2,good\n3,27"\n', 2),
        ('a,b\n"one\n","Five stars!\n2,good\n3,27"\n', 2),
        ('a,b\n"one\u2028two","Five stars!\n2,good\n3,27"\n', 2),
    ],
)
def test_quotation_mark_warning_names_the_line_of_the_row(read: Read, content: str, line: int | None) -> None:
    rows, warnings = read(content)
    found = [warning for warning in warnings if "whole rows" in warning]
    assert [warning.split(":")[0] for warning in found] == ([] if line is None else [f"a.csv, line {line}"])
    assert any(row.fault for row in rows) == (line is None)


@pytest.mark.parametrize(
    "text",
    [
        "Great film.\nWatch it, really, soon!",
        "One, two\nthree, four",
        "A list:\n- one\n- two\n\nThe end",
        "Cheap,\nfast,\ngood",
        "x" * 300 + "\n" * 300 + "y",
    ],
)
def test_quotation_mark_around_several_lines_of_a_review_gives_no_warning(read: Read, text: str) -> None:
    rows, warnings = read(f'id,text\n1,"{text}"\n2,ok\n')
    assert cells(rows) == [["1", text], ["2", "ok"]]
    assert warnings == []


def test_quotation_mark_warnings_are_counted(read: Read) -> None:
    cell = '"Five stars!,5\n3,good,5\n4,fine,4\n6,27"'
    _, warnings = read("id,text,stars\n" + f"2,{cell},4\n" * 8)
    assert len(warnings) == 6
    assert warnings[-1] == "a.csv: 3 more quoted cells seem to hold whole rows"


def test_quotation_mark_that_is_never_closed_is_a_fault_of_its_row(read: Read) -> None:
    rows, warnings = read('id,text\n1,good\n2,"open quote\n3,bad\n4,fine')
    assert [(row.number, row.cells["id"], row.fault is None) for row in rows] == [
        (2, "1", True),
        (3, "2", False),
        (4, "3", True),
        (5, "4", True),
    ]
    assert rows[1].fault is not None
    assert rows[1].fault.startswith("a quoted cell that opens in line 3 never closes; a quotation mark inside is")
    assert warnings == []


@pytest.mark.parametrize(
    ("broken", "line"),
    [
        ('2,"open\n', 3),  # closed by the next row's mark, which has text after it
        ('2,"bad" word\n', 3),
        ('2,"""\n', 3),
        ('"one\ntwo","bad"x\n', 4),
    ],
)
def test_quotation_mark_out_of_place_costs_its_row_only(read: Read, broken: str, line: int) -> None:
    rows, _ = read(f'id,text\n1,good\n{broken}3,"fine, really"\n4,ok\n')
    assert [row.cells["id"] for row in rows if row.fault is None] == ["1", "3", "4"]
    (fault,) = [row.fault for row in rows if row.fault is not None]
    assert fault.startswith(f"a quoted cell that opens in line {line} ")


def test_quotation_mark_that_is_never_closed_keeps_memory_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bert_tables.delimited.MAX_RECORD_CHARACTERS", 2**18)
    row = "1,good film and nothing else\n"
    (tmp_path / "a.csv").write_text('id,text\n2,"open\n' + row * 40_000)
    tracemalloc.start()
    with open_table(tmp_path / "a.csv") as table:
        faults = sum(row.fault is not None for row in table.rows)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (faults, peak < 4e6) == (1, True)


GLUE = 'sentence\tlabel\n"It was good , he said\t1\nbad film\t0\nanother " one\t1\n"quoted"\t0\n'


def test_quotation_mark_of_a_tsv_is_text_where_it_encloses_nothing(read: Read) -> None:
    found = ['"It was good , he said', "bad film", 'another " one', '"quoted"']
    assert [row.cells["sentence"] for row in read(GLUE, "a.tsv")[0]] == found
    assert [row.cells["sentence"] for row in read(GLUE, "a.tsv", dialect=Dialect(quote=""))[0]] == found


@pytest.mark.parametrize("blank", ["\n", "  \r\n"])
def test_quotation_mark_of_a_tsv_is_text_where_lines_are_blank(read: Read, blank: str) -> None:
    content = GLUE.replace("bad film", f"{blank}bad film") + blank
    assert read(content, "a.tsv")[0][0].cells["sentence"] == '"It was good , he said'


def test_quotation_mark_of_a_tsv_with_one_column_encloses_lines(read: Read) -> None:
    rows, _ = read("text\n" + '"one\ntwo"\n' * 600, "a.tsv")
    assert cells(rows) == [["one\ntwo"]] * 600


def test_quotation_mark_of_a_tsv_after_the_first_lines_is_a_fault(read: Read) -> None:
    content = "label\ttext\n" + "1\tok\n" * 1200 + '0\t"It was good\n1\tfine\n1\tanother" one\n1\tx\n'
    rows, _ = read(content, "a.tsv")
    assert [row.number for row in rows] == list(range(2, 1206))
    assert [row.number for row in rows if row.fault] == [1202]


@pytest.mark.parametrize("text", ["one\ntwo", "one\n\ttwo\n\tthree", "one\ttwo", "a\tb\n\nc\td"])
def test_quotation_mark_of_a_tsv_encloses_lines_and_tabs(read: Read, text: str) -> None:
    rows, warnings = read(f'id\ttext\n1\t"{text}"\n2\t"so\nso"\n', "a.tsv")
    assert (cells(rows), warnings) == ([["1", text], ["2", "so\nso"]], [])


@pytest.mark.parametrize(
    ("escape", "text"),
    [("\\", r"He said \"hi\" to me, twice"), ("\\", r"back\\slash, and\, more"), ("^", '^"a^", b')],
)
def test_dialect_escape_is_stated(read: Read, escape: str, text: str) -> None:
    rows, _ = read(f'id,text\n1,"{text}"\n2,good\n', dialect=Dialect(escape=escape))
    plain = text.replace(escape * 2, "\0").replace(escape, "").replace("\0", escape)
    assert cells(rows) == [["1", plain], ["2", "good"]]


def test_dialect_escape_before_an_ordinary_character_is_text(read: Read) -> None:
    lines = 'id,text\n1,"AC\\DC said \\"no\\"\\nnot good"\n2,Not\\ngood\n3,\\N\n4,a\\\\, b\\\\n\n'
    rows, _ = read(lines.replace("4,a\\\\, b", "4,a\\, b"), dialect=Dialect(escape="\\"))
    assert [row.cells["text"] for row in rows] == ['AC\\DC said "no"\\nnot good', "Not\\ngood", "\\N", "a, b\\n"]


def test_dialect_escape_in_a_tsv_does_not_make_its_quotation_marks_text(read: Read) -> None:
    rows, _ = read('text\tn\n"say \\"x\\" now"\t1\nplain\t2\n', "a.tsv", dialect=Dialect(escape="\\"))
    assert cells(rows) == [['say "x" now', "1"], ["plain", "2"]]


def test_dialect_escape_is_named_where_it_is_needed(read: Read) -> None:
    rows, _ = read('id,text\n1,"He said \\"hi\\" to me, twice"\n2,good\n')
    assert rows[0].fault is not None
    assert "state --escape" in rows[0].fault
    assert rows[1].fault is None


# --- header, delimiter, columns


ZHANG = '"2","Great","Loved it"\n"1","Bad","Hated it, really"\n'


def test_dialect_without_a_header_names_columns_by_their_numbers(read: Read) -> None:
    rows, _ = read(ZHANG, dialect=Dialect(header=False))
    assert [row.cells for row in rows] == [
        {"1": "2", "2": "Great", "3": "Loved it"},
        {"1": "1", "2": "Bad", "3": "Hated it, really"},
    ]
    rows, _ = read(ZHANG, dialect=Dialect(header=("stars", "title", "text")))
    assert rows[1] == Row(2, {"stars": "1", "title": "Bad", "text": "Hated it, really"})


def test_table_column_is_a_name_or_a_number(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("2, Text,\nx, good,\n")
    with open_table(tmp_path / "a.csv") as table:
        assert table.columns == ("2", " Text", "3")
        assert [table.column(address) for address in ("text", "2", "3", "1")] == [" Text", "2", "3", "2"]
        with pytest.raises(TableError, match=r"a\.csv: it has no column '4'; its columns are '2', ' Text', '3'"):
            table.column("4")


@pytest.mark.parametrize(
    ("content", "header", "message"),
    [
        *(
            (content, True, "'text'; its columns are .* --first-l")
            for content in (ZHANG, "id,body\n1,good\n", "body;label;x\ngood;1\nbad;0\n", '"id,body"\n"1,good"\n')
        ),
        (ZHANG, False, "its columns are '1', '2', '3'$"),
    ],
)
def test_table_column_that_is_missing_comes_with_advice_on_headers(
    tmp_path: Path, content: str, header: bool, message: str
) -> None:
    (tmp_path / "a.csv").write_text(content)
    dialect = Dialect(header=header)
    with open_table(tmp_path / "a.csv", dialect=dialect) as table, pytest.raises(TableError, match=message):
        table.column("text")


@pytest.mark.parametrize(("header", "warned"), [(True, True), (False, False), (("1", "2", "3"), False)])
def test_table_column_by_number_gives_a_warning_where_the_header_is_a_row(
    tmp_path: Path, header: Any, warned: bool
) -> None:
    (tmp_path / "a.csv").write_text(ZHANG)
    with open_table(tmp_path / "a.csv", dialect=Dialect(header=header)) as table:
        assert {table.column(address) for address in ("1", "2", "3")} <= {*(table.columns or ())}
        assert [warning.partition("; ")[0].endswith("the header looks like a row") for warning in table.warnings] == (
            [True] * warned
        )


@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
@pytest.mark.parametrize("quoted", [False, True])
def test_delimiter_is_detected(read: Read, delimiter: str, quoted: bool) -> None:
    text = f'"a{delimiter} b, c"' if quoted else "a b, c"
    rows, warnings = read(f"text{delimiter}label\n{text}{delimiter}1\ngood{delimiter}0\nbad{delimiter}0\n")
    assert cells(rows) == [[text.strip('"'), "1"], ["good", "0"], ["bad", "0"]]
    name = {";": "semicolon", "\t": "tab", "|": "vertical bar"}[delimiter]
    assert warnings == [f"a.csv: the {name} is read as the delimiter: it fits the rows, the comma does not"]


@pytest.mark.parametrize(
    ("name", "text", "stated", "delimiter"),
    [
        ("a.csv", "id;text\n1;good\n2;bad\n", None, ";"),
        ("a.csv", "id^text\n1^good\n", "^", "^"),
        ("a.tsv", "id\ttext\n1\tgood\n", None, "\t"),
        ("a.txt", "good\n", None, None),
    ],
)
def test_table_tells_its_delimiter(
    tmp_path: Path, name: str, text: str, stated: str | None, delimiter: str | None
) -> None:
    (tmp_path / name).write_text(text)
    with open_table(tmp_path / name, dialect=Dialect(delimiter=stated)) as table:
        assert table.delimiter == delimiter


def test_delimiter_comma_is_detected_in_a_tsv(read: Read) -> None:
    rows, warnings = read("text,label\ngood,1\n", "a.tsv")
    assert cells(rows) == [["good", "1"]]
    assert warnings == ["a.tsv: the comma is read as the delimiter: it fits the rows, the tab does not"]


def test_delimiter_is_detected_where_the_header_has_commas_as_text(read: Read) -> None:
    rows, warnings = read('id;text, long;label\n1;"Good, really";1\n2;Bad;0\n')
    assert cells(rows) == [["1", "Good, really", "1"], ["2", "Bad", "0"]]
    assert warnings == ["a.csv: the semicolon is read as the delimiter: it fits the rows, the comma does not"]


def test_delimiter_is_that_of_the_header_where_cells_have_decimal_commas(read: Read) -> None:
    rows, _ = read("text;stars;price\n" + "Good, really;4,5;3,20\n" * 2 + '"Bad;";1,0;9,90\n')
    assert cells(rows) == [["Good, really", "4,5", "3,20"]] * 2 + [["Bad;", "1,0", "9,90"]]


def test_delimiter_is_detected_without_a_header(read: Read) -> None:
    rows, _ = read('4;"Great, loved it"\n1;"Bad, hated it"\n', dialect=Dialect(header=False))
    assert cells(rows) == [["4", "Great, loved it"], ["1", "Bad, hated it"]]


def test_delimiter_that_could_be_two_gives_a_warning(read: Read) -> None:
    content = "4;Great, loved it\n1;Bad, hated it\n5;Well\n"
    rows, warnings = read(content, dialect=Dialect(header=False))
    assert warnings == ["a.csv: the semicolon could be the delimiter as well as the comma: state --delimiter"]
    assert sum(row.fault is not None for row in rows) == 1
    rows, warnings = read(content, dialect=Dialect(header=False, delimiter=";"))
    assert ([len(row.cells) for row in rows], warnings) == ([2, 2, 2], [])


@pytest.mark.parametrize(
    ("content", "header"),
    [("1;good film;5,10\n2;bad;4,90\n", False), ("id;text;price, EUR\n1;good film;5,10\n", True)],
)
def test_delimiter_that_is_also_a_decimal_mark_gives_a_warning(read: Read, content: str, header: bool) -> None:
    _, warnings = read(content, dialect=Dialect(header=header))
    assert warnings == ["a.csv: the semicolon could be the delimiter as well as the comma: state --delimiter"]


@pytest.mark.parametrize(("line", "mark"), [("sep=;\n", ";"), ("SEP=|\r\n", "|"), ("sep=\t\r", "\t")])
def test_delimiter_of_excels_first_line_is_taken(read: Read, line: str, mark: str) -> None:
    rows, warnings = read(f"{line}id{mark}text\n1{mark}a, b\n2\n")
    assert [(row.number, row.fault is None) for row in rows] == [(3, True), (4, False)]
    assert (rows[0].cells, warnings) == ({"id": "1", "text": "a, b"}, [])


@pytest.mark.parametrize("header", ["text", "text; and more"])
def test_delimiter_is_not_detected_in_a_single_column(read: Read, header: str) -> None:
    rows, warnings = read(f"{header}\ngood film\nbad film\nso so; well\n")
    assert (cells(rows), warnings) == ([["good film"], ["bad film"], ["so so; well"]], [])


TABLE = "id,text,label\n1,good film,a\n2,bad,b\n3,so,a\n"


@pytest.mark.parametrize(
    ("above", "line"),
    [
        ("Reviews of May\n", 2),
        ("Reviews of May\n\n", 3),
        ('"Reviews, of May"\n', 2),
        ("Reviews\nby our shop\nNote: none is left out\n\n", 5),
        ("Reviews of May,,\n,,\n", 3),
        ("Reviews of May,,\n", 2),
        ("sep=,\nReviews\n", 3),
    ],
)
@pytest.mark.parametrize("delimiter", [",", ";"])
@pytest.mark.parametrize("below", ["", "Totals:\n"])
def test_header_below_a_title_is_asked_for_and_stated(
    read: Read, above: str, line: int, delimiter: str, below: str
) -> None:
    content = above + TABLE
    if delimiter == ";" and '"' not in above:
        content = content.replace(",", ";")
    with pytest.raises(TableError, match=rf"a\.csv: the table seems to begin in line {line}, .* --first-line {line} "):
        read(content + below)
    rows, _ = read(content + below, dialect=Dialect(first_line=line))
    assert rows[0] == Row(line + 1, {"id": "1", "text": "good film", "label": "a"})
    assert [row.fault is None for row in rows] == [True] * 3 + [False] * bool(below)


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
def test_dialect_first_line_is_that_of_lines_and_objects_too(read: Read, name: str) -> None:
    line = '{"text": "a"}' if name == "a.jsonl" else "a"
    form = "jsonl" if name == "a.jsonl" else "lines"
    assert read(f"Title\n{{\n{line}\n", name, dialect=Dialect(first_line=3), format=form) == (
        [Row(3, {"text": "a"})],
        [],
    )


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("Reviews, of May\n" + TABLE, 2),
        ("Reviews, of May, June, July\n" + TABLE, 2),
        ("# by us\n# id, and, text\nid,text\n1,good\n2,bad\n3,so\n", 3),
        ("Shop: A, B\n\n" + TABLE, 3),
        ("Question,,Meta,\nid,text,label,date\n1,good,a,x\n2,bad,b,y\n", 2),
        ("Reviews\n\ntext,n\n" + "good film,1\n" * 3000, 3),
    ],
)
def test_header_below_other_lines_is_an_error(read: Read, content: str, line: int) -> None:
    for columns in (None, ("text",)):
        with pytest.raises(TableError, match=f"a.csv: the table seems to begin in line {line}, .*--first-line {line} "):
            read(content, columns=columns)
    assert read(content, dialect=Dialect(first_line=1))[0]


@pytest.mark.parametrize(
    ("content", "names"),
    [
        ("id,text\n1,good, really\n2,bad, really\n3,so, so\n", ("id", "text")),
        ("text\ngood, really\nbad, no\nso, so\n", ("text",)),
        ("text\ngood;fine;well\nbad;no;x\nso;so;so\n", ("text",)),
        ("text,label\n1,good,a\n2,bad,b\n3,x,a\n", ("text", "label")),  # R's row numbers
        ("name,text,\nanna,good,x\nbob,bad,y\n", ("name", "text", "3")),
        ("id,text,note,more\n1,good,,\n2,bad,,\n3,so,,\n", ("id", "text", "note", "more")),
        (",text\n0,good\n1,bad\n", ("1", "text")),
        ("Totals\nten\n", ("Totals",)),
    ],
)
def test_header_is_the_first_row_where_it_may_be(tmp_path: Path, content: str, names: tuple[str, ...]) -> None:
    (tmp_path / "a.csv").write_text(content)
    with open_table(tmp_path / "a.csv") as table:
        assert table.columns == names


def test_header_that_has_the_asked_columns_is_the_first_row(read: Read) -> None:
    content = "Title\nbody,label\ngood,a\nbad,b\n"
    assert len(read(content, columns=("Title",))[0]) == 3
    with pytest.raises(TableError, match="seems to begin in line 2"):
        read(content, columns=("body",))


@pytest.mark.parametrize("more", ["How old?,What?,Stars?\n", "How old?,What?,Stars?\nQ1,Q2,Q3\n"])
def test_header_of_several_rows_is_an_error(read: Read, more: str) -> None:
    lines = "line 2 looks like a further" if more.count("\n") == 1 else "lines 2 to 3 look like further"
    with pytest.raises(TableError, match=rf"{lines} header .* 'age' has only numbers below: .*--first-line"):
        read(f"age,text,stars\n{more}31,good,5\n42,bad,1\n,so,3\n54,x,\n28,y,2.5\n")


def test_header_of_several_rows_is_a_warning_where_one_column_has_numbers(read: Read) -> None:
    rows, (warning,) = read("id,text\nx1,good\n2,bad\n3,so\n4,a\n")
    assert len(rows) == 4
    assert warning.startswith("a.csv: line 2 looks like a further header row, because the column 'id' has only numbers")


@pytest.mark.parametrize(
    "rows", ["NA,good,-\n2,bad,4\n3,so,1\n4,a,1\n", "x,good,1\n2,bad,4\n3,so,1\n4,a,1\n", "x,good,y\n2,bad,4\n"]
)
def test_header_of_one_row_gives_no_warning(read: Read, rows: str) -> None:
    assert read(f"id,text,stars\n{rows}")[1] == []


def test_header_names_that_are_repeated_or_empty_are_numbers(read: Read) -> None:
    rows, warnings = read("a,b,a\n1,2,3\n")
    assert (rows[0].cells, len(warnings)) == ({"1": "1", "b": "2", "3": "3"}, 1)
    assert "a.csv: several columns are called 'a'; here they are called 1, 3" in warnings
    assert cells(read("text,,\nx,,\n")[0]) == [["x", "", ""]]  # a spreadsheet's empty columns
    assert read(",0,1\n0,good,5\n")[0][0].cells == {"column 1": "0", "0": "good", "1": "5"}  # pandas' index


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_row_cell_of_another_encoding_is_a_fault_for_readers_of_its_column(tmp_path: Path, name: str) -> None:
    row = b'{"text": "good", "n": "\xe9"}\n' if name == "a.jsonl" else b"text,n\ngood,\xe9\n"
    (tmp_path / name).write_bytes(row)
    for column, faults in (("text", [None]), ("n", ["in the column 'n', byte 0xe9 is not UTF-8"])):
        with open_table(tmp_path / name) as table:
            assert [row.fault and row.fault.split(":")[0] for row in table.rows_for((column,))] == faults
            assert ["'n', byte 0xe9" in warning for warning in table.warnings] == [True] * (column == "text")


@pytest.mark.parametrize("content", ["", "\n\n"])
@pytest.mark.parametrize("header", [True, False])
def test_header_of_an_empty_file_is_an_error(read: Read, content: str, header: bool) -> None:
    with pytest.raises(TableError, match=r"a\.csv: is empty"):
        read(content, dialect=Dialect(header=header))


@pytest.mark.parametrize(
    ("value", "missing"),
    [
        *((value, True) for value in (None, "", " ", float("nan"), "\\N", " \\N ")),
        *((value, False) for value in (*MISSING_WORDS, "\\n", "N", 0, False, [])),
    ],
)
def test_is_missing_takes_no_word_for_a_missing_value(value: Any, missing: bool) -> None:
    assert is_missing(value) == missing


# --- encodings


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz", "a.jsonl", "a.txt"])
def test_encoding_is_known_by_the_byte_order_mark(read: Read, encoding: str, name: str) -> None:
    content = {"a.jsonl": '{"text": "é 😀"}\n', "a.txt": "text\né 😀\n"}.get(name, "text\né 😀\n").encode(encoding)
    rows, _ = read(gzip.compress(content) if name.endswith("gz") else content, name)
    assert rows[-1].cells == {"text": "é 😀"}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.txt"])
def test_encoding_marks_of_appended_files_are_left_out(read: Read, encoding: str, name: str) -> None:
    line = {"a.jsonl": '{"text": "good, really"}\n', "a.txt": "good, really\n"}.get(name, '"good, really"\n')
    header = "text\n" * (name == "a.csv")
    rows, _ = read(f"\ufeff\ufeff{header}{line}\ufeff{line}\ufeff".encode(encoding), name)
    assert [(row.cells, row.fault) for row in rows] == [({"text": "good, really"}, None)] * 2


@pytest.mark.parametrize("content", ["text,n\ngood,1\n".encode("utf-16-le"), b"text,n\ngood,1\n"])
def test_encoding_utf_16_without_a_mark_needs_its_byte_order(read: Read, content: bytes) -> None:
    with pytest.raises(
        TableError, match=r"a\.csv: does not begin with a byte order mark; state --encoding utf-16-le or utf-16-be"
    ):
        read(content, dialect=Dialect(encoding="UTF16"))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", b"text,n\n\xff,1\ngood,2\n"),
        ("a.tsv", b"n\ttext\ncaf\xe9\tgood\n2\tgood\n"),
        ("a.jsonl", b'{"text": "good", "n": ["\xe9"]}\n{"text": "\\udce9"}\n'),
        ("a.txt", b"caf\xe9\ngood\n"),
    ],
)
def test_encoding_other_bytes_are_a_fault_of_their_row(read: Read, name: str, content: bytes) -> None:
    (broken, whole), _ = read(content, name)
    assert broken.fault is not None
    assert broken.fault.endswith(" is not UTF-8: add --encoding windows-1252, or another")
    assert whole.fault is None


@pytest.mark.parametrize(
    "encoding", ["windows-1252", "latin-1", "cp1250", "gb18030", "shift_jis", "utf-16-le", "utf-16-be"]
)
@pytest.mark.parametrize("name", ["a.csv", "a.txt"])
def test_encoding_is_stated(read: Read, encoding: str, name: str) -> None:
    text = {"gb18030": "很好", "shift_jis": "いい"}.get(encoding, "schön")
    rows, _ = read(f"text\n{text}\n".encode(encoding), name, dialect=Dialect(encoding=encoding))
    assert rows[-1] == Row(2, {"text": text})


def test_encoding_that_is_stated_has_faults_too(read: Read) -> None:
    (broken, whole), _ = read(b"text,n\n\x81,1\nx,2\n", dialect=Dialect(encoding="windows-1252"))
    assert "byte 0x81 is not WINDOWS-1252" in (broken.fault or "")
    assert whole.fault is None


def test_encoding_lone_surrogate_is_a_fault_of_its_row(read: Read) -> None:
    content = "text,n\nx,1\n".encode("utf-16") + "\ud83d,2\ny,3\n".encode("utf-16-le", "surrogatepass")
    rows, _ = read(content)
    assert [row.fault for row in rows] == [None, "in the column 'text', it holds a lone surrogate of UTF-16", None]


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.txt"])
def test_row_nul_bytes_are_a_fault_of_their_row(read: Read, name: str) -> None:
    rows, _ = read({"a.jsonl": '{"text": "a\0"}\n{"text": "b"}\n'}.get(name, "text\na\0\nb\n"), name)
    nul = "it holds a NUL byte; if the file is UTF-16, add --encoding utf-16-le"
    assert [(row.fault or "").endswith(nul) for row in rows[-2:]] == [True, False]


def test_header_of_utf_16_without_a_mark_asks_for_the_encoding(read: Read) -> None:
    with pytest.raises(TableError, match=r"a\.csv, line 1: in the header, it holds a NUL byte; if the file is UTF-16"):
        read("text,n\ngood,1\n".encode("utf-16-le"))


def test_header_of_another_encoding_is_an_error(read: Read) -> None:
    with pytest.raises(TableError, match=r"a\.csv, line 1: in the header, byte 0xe9 is not UTF-8: add --enc"):
        read(b"text,caf\xe9\ngood,1\n")


# --- what cannot be read on


CUT: dict[str, Callable[[bytes], bytes]] = {
    "a.csv.gz": gzip.compress,
    "a.csv.xz": lzma.compress,
    "a.csv.bz2": lambda content: bz2.compress(content, 1),  # blocks of 100 kB
    "a.jsonl.gz": gzip.compress,
    "a.txt.gz": gzip.compress,
}


@pytest.mark.parametrize("name", CUT)
def test_rows_before_a_cut_are_delivered(tmp_path: Path, name: str) -> None:
    line = '{"id": %d, "text": "%s"}\n' if "jsonl" in name else "%d,%s\n"
    words = (os.urandom(100).hex() for _ in itertools.count())
    content = "id,text\n" * ("csv" in name) + "".join(line % pair for pair in itertools.islice(enumerate(words), 5000))
    compressed = CUT[name](content.encode())
    (tmp_path / name).write_bytes(compressed[: len(compressed) * 3 // 4])
    rows, error = rows_and_error(tmp_path / name)
    assert len(rows) > 2000
    assert all(row.fault is None for row in rows)
    assert f"{name}: the file is cut off after line {rows[-1].number} " in error
    assert error.endswith("; get a whole copy of it")


@pytest.mark.parametrize("rows", [1, 9])
def test_rows_before_a_cut_of_a_small_file_are_delivered(tmp_path: Path, rows: int) -> None:
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"text,n\n" + b"good,1\n" * rows)[:-9])
    with open_table(tmp_path / "a.csv.gz") as table:
        assert [row.cells["text"] for row in itertools.islice(table.rows, rows)] == ["good"] * rows
        with pytest.raises(TableError, match=rf"a\.csv\.gz: the file is cut off after line {rows + 1} "):
            next(table.rows)


def test_rows_before_damage_are_delivered(tmp_path: Path) -> None:
    compressed = gzip.compress("".join(f"{os.urandom(50).hex()}\n" for _ in range(20_000)).encode(), mtime=0)
    damaged = compressed[: len(compressed) // 2] + b"\xff" * 1000 + compressed[len(compressed) // 2 + 1000 :]
    (tmp_path / "a.txt.gz").write_bytes(damaged)
    rows, error = rows_and_error(tmp_path / "a.txt.gz")
    assert len(rows) > 5000
    assert "the file is damaged after" in error


def test_rows_before_a_cut_of_zstandard_are_delivered(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    whole = zstandard.compress("".join(f"{os.urandom(99).hex()}\n" for _ in range(9000)).encode())
    (tmp_path / "a.txt.zst").write_bytes(whole + whole)
    with open_table(tmp_path / "a.txt.zst") as table:
        assert sum(1 for _ in table.rows) == 18_000
    (tmp_path / "a.txt.zst").write_bytes(whole[:-9])
    rows, error = rows_and_error(tmp_path / "a.txt.zst")
    assert len(rows) > 6000
    assert "the file ends within a frame" in error


def test_rows_before_a_cut_of_utf_16_are_delivered(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes("text,n\na,1\nb,2\n".encode("utf-16") + b"c")
    rows, error = rows_and_error(tmp_path / "a.csv")
    assert len(rows) == 2
    assert "a.csv: the file is cut off" in error


def test_rows_are_read_as_they_are_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "a.csv.gz"
    file.write_bytes(gzip.compress(b"id,text\n" + b'1,"a good\nfilm, really"\n' * 10_000))
    counted: list[int] = []
    tracemalloc.start()
    with open_table(file, progress=counted.append) as table:
        assert sum(1 for _ in table.rows) == 10_000
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1.5e6  # all rows would take 4 MB
    assert sum(counted) == file.stat().st_size == table.size


def test_open_table_reads_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    def piped(content: bytes, **options: Any) -> Iterator[Row]:
        reader, writer = os.pipe()
        os.write(writer, content)
        os.close(writer)
        kept = os.dup(0)
        os.dup2(reader, 0)
        try:
            with open_table("-", **options) as table:
                assert (table.name, table.size) == ("standard input", None)
                yield from table.rows
        finally:
            os.dup2(kept, 0)
            for descriptor in (reader, kept):
                os.close(descriptor)

    assert [row.cells for row in piped(b"good\nbad\n")] == [{LINE: "good"}, {LINE: "bad"}]
    assert [row.cells for row in piped(b"a;b\n1;2\n", dialect=Dialect(delimiter=";"))] == [{"a": "1", "b": "2"}]
    packed = gzip.compress(json.dumps({"text": "good"}).encode())
    assert [row.cells for row in piped(packed, format="jsonl")] == [{"text": "good"}]


def test_open_table_waits_for_a_pipe_that_does_not_block() -> None:
    program = (
        "from bert_tables import open_table\n"
        "with open_table('-') as table:\n"
        "    print(next(table.rows).cells['text'], flush=True)\n"
        "    print(*(row.cells['text'] for row in table.rows))"
    )
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    with subprocess.Popen([sys.executable, "-c", program], stdin=reader, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        os.close(reader)
        os.write(writer, b"good\n" * 5000)  # fills the reader's buffers, so that a row comes before the end
        assert process.stdout.readline() == "good\n"
        time.sleep(0.3)
        os.write(writer, b"bad\n")
        os.close(writer)
        assert process.communicate()[0].endswith("good bad\n")
