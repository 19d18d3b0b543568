"""Files in, files out."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
from pathlib import Path

import pytest

from app.tables import Row, TableError, format_of, open_source, open_target, read_table, write_rows


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("a.csv", "csv"),
        ("a.TSV.gz", "tsv"),
        ("b/a.ndjson", "jsonl"),
        ("a.txt", "lines"),
        ("-", "lines"),
        *((name, None) for name in ("a.json", "a.xlsx", "a.gz", "a")),
    ],
)
def test_name_tells_the_format(name: str, form: str | None) -> None:
    assert format_of(name) == form


@pytest.mark.parametrize(
    ("form", "text", "rows"),
    [
        ("lines", "a\r\n\n b", [{"text": "a"}, {"text": ""}, {"text": " b"}]),
        ("csv", 'id,text\n1,"a, ""b""\nc"\n\n2\n', [{"id": "1", "text": 'a, "b"\nc'}, {"id": "2", "text": ""}]),
        ("tsv", "text\tid\na b\t1\n", [{"text": "a b", "id": "1"}]),
        ("jsonl", '{"text": "a", "n": [1]}\n\n{}\n', [{"text": "a", "n": [1]}, {}]),
    ],
)
def test_formats_are_read(form: str, text: str, rows: list[dict[str, object]]) -> None:
    assert list(read_table(io.StringIO(text, newline=""), form).rows) == [Row(cells) for cells in rows]


def test_broken_rows_are_told_and_do_not_end_the_file() -> None:
    table = read_table(io.StringIO("text\na\nb,c\nd\n"), "csv")
    assert [row.fault for row in table.rows] == [None, "the row has 2 cells, the header has 1", None]
    deep = '{"text":' + "[" * 200_000 + "]" * 200_000 + "}"
    lines = read_table(io.StringIO('{"text": 1\n[]\n' + deep + "\n{}\n"), "jsonl")
    faults = ["line 1 is no JSON", "line 2 is no JSON object", "line 3 is no JSON", None]
    assert [row.fault for row in lines.rows] == faults


def test_long_cells_are_read() -> None:
    (row,) = read_table(io.StringIO("text\n" + "x" * 200_000), "csv").rows
    assert len(row.cells["text"]) == 200_000


@pytest.mark.parametrize(("text", "complaint"), [("", "empty"), ("a,b,a\n1,2,3\n", "names 'a' twice")])
def test_table_needs_a_header_of_different_names(text: str, complaint: str) -> None:
    with pytest.raises(TableError, match=complaint):
        read_table(io.StringIO(text), "csv")


GLUE = 'sentence\tlabel\n"It was good , he said\t1\nbad film\t0\nanother " one\t1\n"quoted"\t0\n'


def test_quotation_mark_of_a_tsv_is_text_where_it_encloses_nothing() -> None:
    rows = read_table(io.StringIO(GLUE, newline=""), "tsv").rows
    found = ['"It was good , he said', "bad film", 'another " one', '"quoted"']
    assert [row.cells["sentence"] for row in rows] == found


@pytest.mark.parametrize(
    ("form", "text", "complaint"),
    [
        ("csv", 'text,n\na,1\n"b,2\nc,3\n', "line 4: unexpected end of data; in a quoted cell"),
        ("csv", 'text,n\n"b" c,2\n', "line 2: ',' expected after '\"'; in a quoted cell"),
        (
            "tsv",
            "text\tn\n" + "a\t1\n" * 200 + '"b\t2\nc\t3\nd"\t4\n',
            "line 204: a quoted cell holds tabs and line ends; in a quoted cell",
        ),
    ],
)
def test_stray_quotation_mark_swallows_no_rows(form: str, text: str, complaint: str) -> None:
    with pytest.raises(TableError, match=f"^{complaint}"):
        list(read_table(io.StringIO(text, newline=""), form).rows)


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("csv", 'text,own,truncated,error\n"a, b","[""é"", {""d"": 1}]",true,\n'),
        ("lines", 'text\town\ttruncated\terror\na, b\t"[""é"", {""d"": 1}]"\ttrue\t\n'),
        ("jsonl", '{"text": "a, b", "own": ["é", {"d": 1}], "truncated": true, "error": null}\n'),
    ],
)
def test_formats_are_written(form: str, text: str) -> None:
    stream = io.StringIO()
    write_rows(stream, form, [{"text": "a, b", "own": ["é", {"d": 1}], "truncated": True, "error": None}])
    assert stream.getvalue() == text


@pytest.mark.parametrize("form", ["csv", "tsv"])
@pytest.mark.parametrize("text", ["one\rtwo", "one\ntwo", "one\r\ntwo", 'a "b"', "a,b", "a\tb"])
def test_what_is_written_is_read_back_as_one_row(form: str, text: str) -> None:
    stream = io.StringIO(newline="")
    write_rows(stream, form, [{"text": text, "label": "POSITIVE"}, {"text": "next", "label": "NEGATIVE"}])
    stream.seek(0)
    read = csv.DictReader(stream, delimiter="," if form == "csv" else "\t")
    assert [row["text"] for row in read] == [text, "next"]


def test_columns_that_a_table_cannot_have_are_named() -> None:
    stream = io.StringIO()
    assert write_rows(stream, "csv", [{"a": 1}, {"a": 2, "late": 3}, {"later": 4, "a": 5}]) == ["late", "later"]
    assert stream.getvalue() == "a\n1\n2\n5\n"
    assert write_rows(stream, "jsonl", [{"a": 1}, {"b": 2}]) == []


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_what_is_written_is_read_back(tmp_path: Path, name: str) -> None:
    path = str(tmp_path / name)
    with open_target(path) as target:
        target.write("é\n")
    with open_source(path) as source:
        assert source.text.read() == "é\n"
        assert source.position() == source.size == Path(path).stat().st_size
    if name.endswith(".gz"):
        assert gzip.decompress(Path(path).read_bytes()).decode() == "é\n"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le-sig"])
@pytest.mark.parametrize("packed", [False, True])
def test_byte_order_mark_tells_the_encoding(tmp_path: Path, encoding: str, packed: bool) -> None:
    path = tmp_path / "a.csv"
    text = "text\né 😀\n"
    encoded = b"\xff\xfe" + text.encode("utf-16-le") if encoding == "utf-16-le-sig" else text.encode(encoding)
    path.write_bytes(gzip.compress(encoded) if packed else encoded)
    with open_source(str(path)) as source:
        assert list(read_table(source.text, "csv").rows) == [Row({"text": "é 😀"})]


@pytest.mark.parametrize(
    ("form", "content"),
    [
        ("csv", b"text,n\n\xff,1\ngood,2\n"),
        ("tsv", b"n\ttext\ncaf\xe9\tgood\n2\tgood\n"),
        ("jsonl", b'{"text": "good", "n": ["\xe9"]}\n{"text": "\\udce9"}\n'),
        ("lines", b"caf\xe9\ngood\n"),
    ],
)
def test_bytes_that_are_no_utf_8_are_a_fault_of_their_row(tmp_path: Path, form: str, content: bytes) -> None:
    path = tmp_path / "a"
    path.write_bytes(content)
    with open_source(str(path)) as source:
        broken, whole = read_table(source.text, form).rows
    assert broken.fault
    assert broken.fault.startswith("the row is no UTF-8: convert the file")
    assert whole.fault is None


def test_header_that_is_no_utf_8_and_half_utf_16_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"text,caf\xe9\ngood,1\n")
    with open_source(str(path)) as source, pytest.raises(TableError, match=r"the header is no UTF-8: convert"):
        read_table(source.text, "csv")
    path.write_bytes(b"\xff\xfea")
    with pytest.raises(TableError, match=r"a\.csv: .*utf-16"), open_source(str(path)) as source:
        source.text.read()


def test_gzip_is_known_by_its_first_bytes(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(gzip.compress(b"text\na\n"))
    with open_source(str(path)) as source:
        assert source.text.read() == "text\na\n"


@pytest.mark.parametrize("damage", ["cut", "overwritten"])
def test_damaged_gzip_is_told_as_such(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "a.csv.gz"
    packed = gzip.compress(os.urandom(10_000), mtime=0)
    path.write_bytes(packed[:5000] if damage == "cut" else packed[:10] + b"\xff" * 5000)
    with pytest.raises(TableError, match=r"a\.csv\.gz: "), open_source(str(path)) as source:
        source.text.read()


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "pipe", "-"])
def test_half_a_character_is_written_as_jsons_escape(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    half: dict[str, object] = {"text": "é \ud83d"}
    written = tmp_path / "written"
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    with written.open("w", encoding="ascii") as stdout:
        monkeypatch.setattr("sys.stdout", stdout)
        with open_target(name if name == "-" else str(tmp_path / name)) as target:
            write_rows(target, "jsonl", [half])
    content = written.read_bytes() or os.read(reader, 99) or (tmp_path / name).read_bytes()
    os.close(reader)
    content = gzip.decompress(content) if name.endswith(".gz") else content
    assert content.decode() == '{"text": "é \\ud83d"}\n'
    assert json.loads(content) == half


def test_target_appears_only_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    path.write_text("old")

    def write() -> None:
        with open_target(str(path)) as target:
            target.write("new")
            assert path.read_text() == "old"
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write()
    assert [file.read_text() for file in tmp_path.iterdir()] == ["old"]


def test_link_stays_a_link_and_a_device_a_device(tmp_path: Path) -> None:
    (tmp_path / "link.csv").symlink_to(tmp_path / "real.csv")
    with open_target(str(tmp_path / "link.csv")) as target:
        target.write("x")
    assert (tmp_path / "link.csv").is_symlink()
    assert (tmp_path / "real.csv").read_text() == "x"
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    with open_target(str(tmp_path / "pipe")) as target:
        target.write("x")
    assert os.read(reader, 9) == b"x"
    os.close(reader)
    assert (tmp_path / "pipe").is_fifo()
