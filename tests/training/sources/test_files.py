"""Which files a source has."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.sources.reading import jsonl, texts, write
from training.errors import SourceError
from training.recipe import SourceConfig
from training.sources.files import files, format_of_file, size


def test_directory_is_read_in_the_order_of_its_names_without_strangers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("b.txt", "a/z.jsonl", "README.md", ".hidden.txt", "b.txt.part"):
        write(tmp_path / "data" / name, jsonl([{"text": name}]) if name.endswith("jsonl") else name)
    assert texts(tmp_path, "data") == ["a/z.jsonl", "b.txt"]
    message = f"{tmp_path / 'data'}: 2 of 4 files have other suffixes (.md, .part) and are not read; set"
    assert [record.message.startswith(message) for record in caplog.records] == [True]


def test_markdown_of_a_directory_is_read_unless_there_are_tables(tmp_path: Path) -> None:
    for name in ("notes.md", "deep/more.markdown"):
        write(tmp_path / "data" / name, name)
    assert texts(tmp_path, "data") == ["deep/more.markdown", "notes.md"]
    write(tmp_path / "data" / "reviews.csv", "text\ngood\n")
    assert texts(tmp_path, "data") == ["good"]


def test_hidden_folders_of_a_directory_are_passed_over(tmp_path: Path) -> None:
    for name in ("b.txt", ".git/a.txt", "deep/.trash/c.txt"):
        write(tmp_path / "data" / name, name)
    assert texts(tmp_path, "data") == ["b.txt"]


def test_a_format_is_that_of_all_files_of_a_directory(tmp_path: Path) -> None:
    for name in ("book", "deep/book.log", ".hidden"):
        write(tmp_path / "data" / name, name)
    with pytest.raises(SourceError, match=r"the directory holds no file of a known suffix; set `format`"):
        texts(tmp_path, "data")
    assert texts(tmp_path, "data", format="text") == ["book", "deep/book.log"]


def test_globs_choose_files(tmp_path: Path) -> None:
    for name in ("x-1.txt", "x-2.txt", "deep/x-3.txt", "y.txt"):
        write(tmp_path / name, name)
    assert texts(tmp_path, "x-*.txt") == ["x-1.txt", "x-2.txt"]
    assert texts(tmp_path, "**/x-*.txt") == ["deep/x-3.txt", "x-1.txt", "x-2.txt"]
    assert texts(Path("elsewhere"), str(tmp_path / "y.txt")) == ["y.txt"]


def test_file_whose_name_looks_like_a_glob_is_read(tmp_path: Path) -> None:
    write(tmp_path / "a[1]*.txt", "first")
    write(tmp_path / "a1.txt", "second")
    write(tmp_path / "Bücher [2]" / "a 1.txt", "third")
    assert texts(tmp_path, "a[1]*.txt") == ["first"]
    assert texts(tmp_path, "Bücher [2]") == ["third"]


def test_file_of_another_kind_says_what_to_do_with_it(tmp_path: Path) -> None:
    write(tmp_path / "reviews.xlsx", b"PK\x03\x04\x14\0\6\0[Content_Types].xml xl/workbook.xml")
    with pytest.raises(SourceError, match=r"reviews\.xlsx: is an Excel workbook \(xlsx\); save the sheet as CSV"):
        texts(tmp_path, "reviews.xlsx")


def test_a_place_without_files_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match=r"empty: the directory holds no file of a known suffix"):
        files(SourceConfig(path="empty"), tmp_path)
    with pytest.raises(SourceError, match=r"no-such-\*: no such file; .* now " + str(tmp_path)):
        files(SourceConfig(path="no-such-*"), tmp_path)


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("a.jsonl.ZST", ("jsonl", "jsonl")),
        ("a.pq", ("parquet", "parquet")),
        ("a.tab", ("tsv", "tsv")),
        ("a.text.gz", ("text", None)),
        ("README.MD", ("text", None)),
        ("a.markdown.xz", ("text", None)),
        ("wiki.train.tokens", ("wikitext", None)),
    ],
)
def test_format_of_file_goes_by_its_suffix(tmp_path: Path, name: str, form: tuple[str, str | None]) -> None:
    assert format_of_file(write(tmp_path / name, "x"), SourceConfig(path=name)) == form


def test_size_of_files_is_unknown_where_a_limit_ends_them_early(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n\ntwo\n")
    (tmp_path / "b.txt").write_text("three\n")
    both = [SourceConfig(path="a.txt"), SourceConfig(path="b.txt")]
    assert size(both, tmp_path) == 15
    assert size([*both, SourceConfig(path="b.txt", limit=1)], tmp_path) is None
    assert size([SourceConfig(hub="owner/name")], tmp_path) is None
