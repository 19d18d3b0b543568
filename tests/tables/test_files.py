"""What a file is, by its first bytes."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from bert_tables import open_table
from bert_tables.errors import TableError
from bert_tables.files import open_file, text_lines


def archive(*names: str) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as packed:
        for name in names:
            packed.writestr(name, "text,label\ngood,1\n")
    return content.getvalue()


def tar() -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as packed:
        packed.addfile(tarfile.TarInfo("a.csv"))
    return content.getvalue()


OFFICE, ARCHIVE, BINARY = (
    "is an Excel workbook or another Office file; save the sheet",
    "is an archive, such as zip, or compressed; unpack it",
    "is a file of Arrow, ORC, Avro, SQLite, HDF5, NumPy or pickle; write it as CSV, JSON lines or Parquet",
)
KINDS = {
    "zip": (archive("a.csv"), ARCHIVE),
    "empty zip": (archive(), ARCHIVE),
    "xlsx": (archive("[Content_Types].xml", "_rels/.rels", "xl/workbook.xml"), OFFICE),
    "openpyxl": (archive("docProps/app.xml", "docProps/core.xml", "xl/theme/theme1.xml"), OFFICE),
    "docx": (archive("[Content_Types].xml", "word/document.xml"), OFFICE),
    "ods": (b"PK\x03\x04" + b"\0" * 26 + b"mimetypeapplication/vnd.oasis.opendocument.spreadsheet", OFFICE),
    "xls": (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + b"\0" * 99, OFFICE),
    "html": (b"\r\n <!DOCTYPE html>\n<html><body>Not found</body></html>", "is an HTML page or an XML document; if a"),
    "html with mark": (b"\xef\xbb\xbf<HTML lang=en>", "is an HTML page"),
    "html in utf-16": ("<html>".encode("utf-16"), "is an HTML page"),
    "html without a head": (b'<meta charset="utf-8"><table>', "is an HTML page"),
    "html after a comment": (b"<!-- moved -->\n<html>", "is an HTML page"),
    "xml": (b'<?xml version="1.0"?><rows/>', "is an HTML page or an XML document"),
    "pdf": (b"%PDF-1.7\n", "is a PDF or RTF document"),
    "tar": (tar(), ARCHIVE),
    "7z": (b"7z\xbc\xaf\x27\x1c....", ARCHIVE),
    "lzma": (lzma.compress(b"text\na\n", lzma.FORMAT_ALONE), ARCHIVE),
    "arrow": (b"ARROW1\x00\x00", BINARY),
    "orc": (b"ORC\x11\x00\x00\x0a\x06", BINARY),
    "sqlite": (b"SQLite format 3\x00", BINARY),
    "pickle": (b"\x80\x04\x95....", BINARY),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a", "is a Git LFS pointer, not the data; run"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["a.csv", "a.jsonl.gz", "a.tsv"])
def test_open_table_says_what_the_file_is(tmp_path: Path, kind: str, name: str) -> None:
    content, message = KINDS[kind]
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    with pytest.raises(TableError) as raised, open_table(tmp_path / name):
        pass
    assert f"{name}: {message}" in str(raised.value)


@pytest.mark.parametrize(
    "head", ["PAR1,PAR2", "ORC,text", "fea1,fea2", "FEA1,FEA2", "arrow1,text", "BZh,text", "PK,text"]
)
def test_open_table_reads_headers_that_begin_like_other_kinds(tmp_path: Path, head: str) -> None:
    (tmp_path / "a.csv").write_text(f"{head}\n1,2\n")
    with open_table(tmp_path / "a.csv") as table:
        assert table.columns == tuple(head.split(","))


def test_open_table_lines_may_be_markup(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("<html>\n<b>good</b>\n")
    with open_table(tmp_path / "a.txt") as table:
        assert [row.cells["text"] for row in table.rows] == ["<html>", "<b>good</b>"]


def test_open_table_lines_with_labels_of_fasttext_are_refused_unless_lines_are_stated(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("__label__2 Great film\n")
    with (
        pytest.raises(TableError, match=r"a\.txt: holds lines with labels of fastText"),
        open_table(tmp_path / "a.txt"),
    ):
        pass
    with open_table(tmp_path / "a.txt", format="lines") as table:
        assert [row.cells["text"] for row in table.rows] == ["__label__2 Great film"]


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress])
@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz", "a.csv.zst"])
def test_open_file_compression_is_known_by_its_first_bytes(
    tmp_path: Path, compress: Callable[[bytes], bytes], name: str
) -> None:
    (tmp_path / name).write_bytes(compress(b"text\na\n"))
    with open_table(tmp_path / name) as table:
        assert [row.cells for row in table.rows] == [{"text": "a"}]
        assert table.warnings == []


def test_open_file_several_members_and_layers_are_read(tmp_path: Path) -> None:
    packed = gzip.compress(b"a\n") + gzip.compress(b"b\n")
    assert _read(tmp_path / "a.txt.gz", gzip.compress(packed)) == ["a\n", "b\n"]


def test_open_file_xz_streams_may_have_padding_between_them(tmp_path: Path) -> None:
    packed = lzma.compress(b"a\n") + bytes(2**15) + lzma.compress(b"b\n") + bytes(4)
    assert _read(tmp_path / "a.txt.xz", packed) == ["a\n", "b\n"]


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress])
@pytest.mark.parametrize("kept", [slice(3), slice(-6), slice(2, None)])
def test_open_file_damaged_second_stream_is_an_error_after_the_rows_of_the_first(
    tmp_path: Path, compress: Callable[[bytes], bytes], kept: slice
) -> None:
    (tmp_path / "a.txt").write_bytes(compress(b"a\n") + compress(b"b\n")[kept])
    with open_table(tmp_path / "a.txt") as table:
        assert next(table.rows).cells == {"text": "a"}
        with pytest.raises(TableError, match=r"the file is (cut off|damaged) after line"):
            list(table.rows)


def test_open_file_zstandard_may_begin_with_a_skippable_frame(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    frames = (bytes([0x50 + n]) + b"\x2a\x4d\x18\x04\0\0\0size" + zstandard.compress(b"a\n") for n in range(16))
    assert _read(tmp_path / "a.txt.zst", b"".join(frames)) == ["a\n"] * 16  # as pzstd writes them


def test_open_file_zstandard_may_have_a_large_window(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    parameters = zstandard.ZstdCompressionParameters(window_log=31)  # as `zstd --long=31`
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    assert _read(tmp_path / "a.txt.zst", compressor.compress(b"a\n") + compressor.flush()) == ["a\n"]


def test_open_file_damaged_beginning_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"text\n")[:10] + b"\xff" * 50)
    with pytest.raises(TableError, match=r"a\.csv\.gz: cannot be read"), open_table(tmp_path / "a.csv.gz"):
        pass


def _read(file: Path, content: bytes, encoding: str = "utf-8") -> list[str]:
    file.write_bytes(content)
    with open_file(str(file)) as opened:
        return list(text_lines(opened, encoding))


@pytest.mark.parametrize(
    ("encodings", "stated"),
    [
        (("utf-8", "windows-1252"), "windows-1252"),
        (("windows-1252", "utf-8"), "windows-1252"),
        (("utf-8",), "gbk"),
        (("utf-8",), "utf-8-sig"),
        (("gb18030",), "gb18030"),
        (("utf-16",), "utf-16"),
    ],
)
def test_text_lines_stated_encoding_is_for_lines_that_are_not_utf_8(
    tmp_path: Path, encodings: tuple[str, ...], stated: str
) -> None:
    content = b"".join("caf\xe9 ol\xe9\n".encode(name) for name in encodings)
    assert _read(tmp_path / "a.txt", content, stated) == ["caf\xe9 ol\xe9\n"] * len(encodings)


@pytest.mark.parametrize(("encoding", "word"), [("gbk", "模"), ("koi8-r", "её")])
def test_text_lines_word_that_is_utf_8_by_chance_is_of_the_stated_encoding(
    tmp_path: Path, encoding: str, word: str
) -> None:
    lines = ["хорошо\n"] * 20 + [f"{word}\n"]
    assert lines[-1].encode(encoding).decode()  # valid UTF-8
    assert _read(tmp_path / "a.txt", "".join(lines).encode(encoding), encoding) == lines


def test_text_lines_beginning_may_end_within_a_character(tmp_path: Path) -> None:
    text = "a" + "\xe9" * 2**16
    assert _read(tmp_path / "a.txt", text.encode(), "windows-1252") == [text]
