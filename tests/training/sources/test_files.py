"""Which files a source has."""

from __future__ import annotations

from pathlib import Path

import pytest

from bert_tables.files import open_file
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
    (message,) = (record.message for record in caplog.records)
    assert message.startswith(f"{tmp_path / 'data'}: 2 of 4 files are not read, because")
    assert "(README.md, b.txt.part)" in message


def test_directory_links_that_lead_back_give_no_text_twice(tmp_path: Path) -> None:
    for name in ("data/2024-05-01/a.csv", "other/b.csv", "data/c.csv"):
        write(tmp_path / name, f"text\n{name}\n")
    links = {"data/again.csv": "c.csv", "data/latest": "2024-05-01", "other/back": "../data", "data/up": ".."}
    links |= {"data/data": ".", "data/here": ".", "data/0": "../other"}
    for name, target in links.items():
        (tmp_path / name).symlink_to(target)
    expected = ["data/2024-05-01/a.csv", "data/c.csv", "other/b.csv"]
    for pattern in ("data", "data/**/*.csv", "data/**"):
        assert sorted(texts(tmp_path, pattern)) == expected
    assert files(SourceConfig(path="data/*/a.csv"), tmp_path) == [tmp_path / "data" / "2024-05-01" / "a.csv"]


def test_directory_of_notes_only_is_read(tmp_path: Path) -> None:
    for name in ("README.md", "deep/README.md", "deep/more.md"):
        write(tmp_path / "data" / name, name)
    assert texts(tmp_path, "data") == ["README.md", "deep/README.md", "deep/more.md"]
    write(tmp_path / "data" / "LICENSE.txt", "license")
    write(tmp_path / "data" / "a.txt", "a")
    assert texts(tmp_path, "data") == ["a", "deep/more.md"]


def test_directory_files_that_datasets_writes_beside_the_rows_are_not_read(tmp_path: Path) -> None:
    for name in ("dataset_info.json", "state.json"):
        write(tmp_path / "data" / name, '{\n  "a": 1\n}')
    write(tmp_path / "data" / "a.jsonl", jsonl([{"text": "good"}]))
    assert texts(tmp_path, "data") == texts(tmp_path, "data", format="jsonl") == ["good"]


def test_directory_that_save_to_disk_wrote_is_refused_with_its_remedy(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    rows = pyarrow.table({"text": ["good"]})
    write(tmp_path / "data" / "dataset_info.json", "{\n}")
    with pyarrow.ipc.new_stream(tmp_path / "data" / "data-00000-of-00001.arrow", rows.schema) as stream:
        stream.write_table(rows)
    for path in ("data", "data/data-00000-of-00001.arrow"):
        with pytest.raises(SourceError, match=r"00001\.arrow: is a file of Arrow, .*load_from_disk"):
            texts(tmp_path, path)


def test_directory_stated_encoding_is_for_files_that_are_not_utf_8(tmp_path: Path) -> None:
    for name, content in {
        "a.csv": b"ASCII",
        "b.csv": "caf\xe9".encode("latin-1"),
        "c.csv": "na\xefve".encode(),
    }.items():
        write(tmp_path / "data" / name, b"text\n" + content + b"\n")
    found = texts(tmp_path, "data", table={"encoding": "windows-1252"})
    assert found == ["ASCII", "caf\xe9", "na\xefve"]


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
    assert texts(tmp_path, "Bücher [2]") == texts(tmp_path, "Bücher [2]/a*.txt") == ["third"]
    assert texts(tmp_path / "Bücher [2]", "*.txt") == texts(tmp_path / "Bücher [2]", "**/*.txt") == ["third"]


def test_a_place_without_files_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match=r"empty: the directory holds no file of a known suffix"):
        files(SourceConfig(path="empty"), tmp_path)
    with pytest.raises(SourceError, match=r"no-such-\*: no such file; .* now " + str(tmp_path)):
        files(SourceConfig(path="no-such-*"), tmp_path)


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("a.jsonl.ZST", "jsonl"),
        ("a.pq", "parquet"),
        ("a.tab", "tsv"),
        ("a.text.gz", "lines"),
        ("README.MD", "lines"),
        ("a.markdown.xz", "lines"),
    ],
)
def test_format_of_file_goes_by_its_suffix(tmp_path: Path, name: str, form: str) -> None:
    with open_file(str(write(tmp_path / name, "x"))) as file:
        assert format_of_file(file, SourceConfig(path=name)) == form


def test_size_of_files_is_unknown_where_a_limit_ends_them_early(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n\ntwo\n")
    (tmp_path / "b.txt").write_text("three\n")
    both = [SourceConfig(path="a.txt"), SourceConfig(path="b.txt")]
    assert size(both, tmp_path) == 15
    assert size([*both, SourceConfig(path="b.txt", limit=1)], tmp_path) is None
    assert size([SourceConfig(hub="owner/name")], tmp_path) is None
