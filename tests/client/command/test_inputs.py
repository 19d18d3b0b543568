"""Which files a job with several inputs or folders reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from bert_client.command.inputs import input_files, writes_folder


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def test_input_files_of_a_folder_are_its_data_files(tmp_path: Path) -> None:
    touch(tmp_path, "b.csv", "a.jsonl.gz", "sub/c.parquet", "README", "x.pdf", ".hidden.csv", ".git/d.csv")
    found = input_files([str(tmp_path)], "out")
    assert [(Path(file).name, str(path)) for file, path in found] == [
        ("a.jsonl.gz", "a"),
        ("b.csv", "b"),
        ("c.parquet", "sub/c"),
    ]
    touch(tmp_path, "part=1/part-00000", "_SUCCESS")
    given = [str(path) for _, path in input_files([str(tmp_path)], "out", "csv")]
    assert given == ["README", "a", "b", "part=1/part-00000", "sub/c", "x.pdf"]


def test_input_files_are_each_real_file_once(tmp_path: Path) -> None:
    touch(tmp_path, "data/2024/a.csv")
    (tmp_path / "data" / "latest").symlink_to("2024")
    (tmp_path / "data" / "self").symlink_to(".")
    (tmp_path / "data" / "z.csv").symlink_to("2024/a.csv")
    names = [str(tmp_path / "data"), str(tmp_path / "data/latest"), str(tmp_path / "data/2024/a.csv")]
    assert [path for _, path in input_files(names, "out")] == [Path("2024/a")]


def test_input_files_that_are_named_need_no_known_suffix() -> None:
    assert input_files(["d/a.dat", "d/b.csv.xz"], "out") == [("d/a.dat", Path("a.dat")), ("d/b.csv.xz", Path("b"))]


@pytest.mark.parametrize(
    ("names", "output", "complaint"),
    [
        (["a.csv", "b.csv"], "-", "need a folder as --output"),
        (["a.csv", "b.csv"], "out.csv", "need a folder as --output"),
        (["a.csv", "-"], "out", "standard input is given alone"),
        (["{folder}"], "{folder}/out", "is within {folder}, where it would be read"),
        (["{folder}"], "{folder}", "is within {folder}"),
        (["{folder}"], "out", "{folder}: has no file whose suffix is that of a table or text"),
    ],
)
def test_input_files_that_cannot_be_are_refused(tmp_path: Path, names: list[str], output: str, complaint: str) -> None:
    given = [name.format(folder=tmp_path) for name in names]
    with pytest.raises(ValueError, match=complaint.format(folder=tmp_path)):
        input_files(given, output.format(folder=tmp_path))


def test_writes_folder_if_there_are_several_files_or_folders(tmp_path: Path) -> None:
    assert [
        writes_folder(["a.csv", "b.csv"], "out"),
        writes_folder([str(tmp_path)], "out"),
        writes_folder(["a.csv"], str(tmp_path)),
        writes_folder(["a.csv"], "out/"),
        writes_folder(["a.csv"], "out"),
    ] == [True, True, True, True, False]
