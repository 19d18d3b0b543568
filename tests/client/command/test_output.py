"""What `bert` writes, and how an interrupted job goes on."""

from __future__ import annotations

import csv
import errno
import gzip
import io
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from bert_client.command import output
from bert_client.command.output import (
    RevisedLine,
    RowWriter,
    StalePartialFileError,
    has_output_suffix,
    open_output,
    written_rows,
)
from bert_tables import TableError

ROWS = [{"text": text} for text in ("good", "bad\nfilm", "é", "so so")]
COMPLETE = 'text,label\ngood,A\n"bad\nfilm",A\né,A\nso so,A\n'
"""The rows as CSV, all with one label."""
OPTIONS = {"task": "sentiment", "column": ["text"]}


class StoppedError(Exception):
    pass


def job(
    path: Path,
    rows: list[dict[str, str]] = ROWS,
    stop_after: int | None = None,
    error: BaseException | None = None,
    revised_line: RevisedLine | None = None,
    overwrite: bool = False,
    resume: bool = True,
    **options: Any,
) -> tuple[list[str], str]:
    """Write rows that are not yet there. The texts that were asked, and the messages."""
    stderr, asked = io.StringIO(), []
    inputs: Iterator[Mapping[str, Any]] = iter(rows)
    writer = RowWriter(",", ("text", "label"))
    try:
        with open_output(str(path), OPTIONS | options, stderr, overwrite=overwrite, resume=resume) as target:
            target.begin(writer.header(), ["label"], inputs)
            for cells in inputs:
                if stop_after is not None and len(asked) == stop_after:
                    raise error or StoppedError
                asked.append(cells["text"])
                target.add(cells, writer.row({**cells, "label": "A"}), failed=cells["text"] == "é")
            if revised_line:
                target.revise(",", "o", revised_line)
    except (StoppedError, KeyboardInterrupt):
        pass
    return asked, stderr.getvalue()


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def text_of(path: Path) -> str:
    content = path.read_bytes()
    return (gzip.decompress(content) if path.suffix.lower() == ".gz" else content).decode()


# --- rows


@pytest.mark.parametrize(
    ("delimiter", "text"),
    [
        (",", 'text,own,truncated,error\n"a, b","[""é"", {""d"": 1}]",true,\n'),
        ("\t", 'text\town\ttruncated\terror\na, b\t"[""é"", {""d"": 1}]"\ttrue\t\n'),
        (None, '{"text": "a, b", "own": ["é", {"d": 1}], "truncated": true, "error": null}\n'),
    ],
)
def test_row_writer_formats(delimiter: str | None, text: str) -> None:
    cells = {"text": "a, b", "own": ["é", {"d": 1}], "truncated": True, "error": None}
    writer = RowWriter(delimiter, tuple(cells))
    assert writer.header() + writer.row(cells) == text


@pytest.mark.parametrize("delimiter", [",", "\t", ";"])
@pytest.mark.parametrize("text", ["one\rtwo", "one\ntwo", "one\r\ntwo", 'a "b"', "a,b", "a\tb", "a;b"])
def test_row_writer_row_is_read_back_as_one(delimiter: str, text: str) -> None:
    writer = RowWriter(delimiter, ("text", "label"))
    written = writer.header() + "".join(writer.row({"text": cell, "label": "A"}) for cell in (text, "next"))
    read = csv.DictReader(io.StringIO(written, newline=""), delimiter=delimiter)
    assert [row["text"] for row in read] == [text, "next"]


@pytest.mark.parametrize("delimiter", [",", "\t", ";", None])
def test_written_rows_are_the_lines_and_cells_of_the_row_writer(delimiter: str | None) -> None:
    rows = [{"text": text, "label": "A"} for text in ("one\rtwo", 'a "b",\n\n\tc', "\x85\u2028", "", "x" * 200_000)]
    writer = RowWriter(delimiter, ("text", "label"))
    lines = [writer.header(has_mark=True), *map(writer.row, rows)][delimiter is None :]
    read = list(written_rows(io.StringIO("".join(lines), newline=""), delimiter))
    assert [line for line, _ in read] == lines
    assert [cells for _, cells in read if cells] == rows


def test_row_writer_columns_that_a_table_cannot_have_are_named() -> None:
    writer = RowWriter(",", ("a",))
    assert [writer.row(cells) for cells in ({"a": 1}, {"a": 2, "late": 3}, {"later": 4})] == [
        "1\n",
        "2\n",
        '""\n',
    ]
    assert sorted(writer.left_out) == ["late", "later"]
    assert RowWriter(None, ("a",)).row({"b": 2}) == '{"b": 2}\n'


@pytest.mark.parametrize(
    ("name", "writable"),
    [
        ("a.csv", True),
        ("a.jsonl.gz", True),
        ("a.txt", True),
        ("a.json", True),
        ("a.parquet", False),
        ("a.csv.zst", False),
        ("a.x", False),
    ],
)
def test_has_output_suffix_goes_by_the_suffix(name: str, writable: bool) -> None:
    assert has_output_suffix(name) == writable


# --- files


@pytest.mark.parametrize("name", ["out.csv", "out.csv.gz", "out.csv.GZ"])
def test_output_has_its_name_when_it_is_complete(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.touch()  # as mktemp does
    assert job(path) == (["good", "bad\nfilm", "é", "so so"], "")
    assert text_of(path) == COMPLETE
    assert names(tmp_path) == [name]


@pytest.mark.parametrize("name", ["out.csv", "out.csv.gz"])
@pytest.mark.parametrize("stop_after", [1, 3])
def test_output_goes_on_after_an_error(tmp_path: Path, name: str, stop_after: int) -> None:
    path = tmp_path / name
    asked, message = job(path, stop_after=stop_after)
    assert message == f"{stop_after} rows are kept in {path}.partial; the same command goes on after them\n"
    assert names(tmp_path) == [f"{name}.partial", f"{name}.partial.json"]
    asked_then, message = job(path)
    assert message == f"{path}.partial: going on after {stop_after} rows\n"
    assert asked + asked_then == [row["text"] for row in ROWS]
    assert text_of(path) == COMPLETE
    assert names(tmp_path) == [name]


def test_output_that_exists_is_replaced_only_if_told_so(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    path.write_text("old")
    with pytest.raises(TableError, match=r"out\.csv: exists already; give --overwrite to replace it"):
        job(path)
    assert (names(tmp_path), path.read_text()) == (["out.csv"], "old")
    job(path, overwrite=True)
    assert (names(tmp_path), path.read_text()[:10]) == (["out.csv"], "text,label")


def test_output_without_rows_leaves_nothing_after_an_error(tmp_path: Path) -> None:
    (tmp_path / "out.csv").write_text("old")
    assert job(tmp_path / "out.csv", stop_after=0, overwrite=True) == ([], "")
    assert [file.read_text() for file in tmp_path.iterdir()] == ["old"]


def test_output_counts_the_rows_of_all_runs(tmp_path: Path) -> None:
    job(tmp_path / "out.csv", stop_after=3)
    with open_output(str(tmp_path / "out.csv"), OPTIONS, io.StringIO()) as target:
        target.begin("text,label\n", ["label"], iter(ROWS))
        assert (target.rows, target.failed) == (3, 1)


@pytest.mark.parametrize("left", [b"", b"half a row", b"text,label\n"])
def test_output_goes_on_after_a_kill_at_any_moment(tmp_path: Path, left: bytes) -> None:
    """A kill leaves the last note, and perhaps bytes after those that it counts."""
    path, partial = tmp_path / "out.csv", tmp_path / "out.csv.partial"
    assert "2 rows are kept in" in job(path, stop_after=2, error=KeyboardInterrupt())[1]
    with partial.open("ab") as file:
        file.write(left)
    asked, _ = job(path)
    assert asked == ["é", "so so"]
    assert text_of(path) == COMPLETE


def test_output_goes_on_after_a_kill_within_its_first_save(tmp_path: Path) -> None:
    path, partial, note = (tmp_path / f"out.csv{end}" for end in ("", ".partial", ".partial.json"))
    with open_output(str(path), OPTIONS, io.StringIO()) as target:
        target.begin("text,label\n", ["label"], iter(()))
        first_note = note.read_bytes()
    path.unlink()
    partial.write_text("text,label\ngoo")
    note.write_bytes(first_note)
    assert len(job(path)[0]) == 4
    assert text_of(path) == COMPLETE


@pytest.mark.parametrize(("header", "added"), [("text,other\n", ["label"]), ("text,label\n", ["predicted_label"])])
@pytest.mark.parametrize("suffix", ["csv", "csv.gz"])
def test_output_with_other_columns_is_refused(tmp_path: Path, suffix: str, header: str, added: list[str]) -> None:
    path = tmp_path / f"out.{suffix}"
    job(path, stop_after=2)
    with (
        pytest.raises(TableError, match="has other columns than this command writes"),
        open_output(str(path), OPTIONS, io.StringIO()) as target,
    ):
        target.begin(header, added, iter(ROWS))
    assert job(path)[0] == ["é", "so so"]


def test_output_that_is_damaged_is_named(tmp_path: Path) -> None:
    job(tmp_path / "out.csv.gz", stop_after=2)
    partial = tmp_path / "out.csv.gz.partial"
    partial.write_bytes(partial.read_bytes()[:10] + b"\xff" * (partial.stat().st_size - 10))
    with pytest.raises(TableError, match=r"out\.csv\.gz\.partial: cannot be read"):
        job(tmp_path / "out.csv.gz")


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_output_interrupt_within_a_save_loses_nothing(
    tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "SAVE_CHARACTERS", -1)
    owner, calls = (os if step == "fsync" else Path), list[int]()
    real = getattr(owner, step)

    def interrupted(*arguments: Any) -> Any:
        result = real(*arguments)
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return result

    monkeypatch.setattr(owner, step, interrupted)
    asked, _ = job(tmp_path / "out.csv")
    assert asked + job(tmp_path / "out.csv")[0] == [row["text"] for row in ROWS]
    assert text_of(tmp_path / "out.csv") == COMPLETE


@pytest.mark.parametrize("name", ["out.csv", "out.csv.gz"])
def test_output_lines_with_a_marker_are_revised(tmp_path: Path, name: str) -> None:
    path, seen = tmp_path / name, list[dict[str, Any]]()

    def revised_line(cells: dict[str, Any]) -> str | None:
        seen.append(cells)
        return "new,B\n" if cells["text"] == "so so" else None

    job(path, revised_line=revised_line)
    assert text_of(path) == COMPLETE.replace("so so,A", "new,B")
    assert seen == [{"text": "good", "label": "A"}, {"text": "so so", "label": "A"}]
    assert names(tmp_path) == [name]


def test_output_interrupt_within_a_revision_keeps_the_rows_before_it(tmp_path: Path) -> None:
    def revised_line(cells: dict[str, Any]) -> str | None:
        if cells["text"] == "so so":
            raise KeyboardInterrupt
        return "new,B\n"

    assert "4 rows are kept in" in job(tmp_path / "out.csv", revised_line=revised_line)[1]
    assert names(tmp_path) == ["out.csv.partial", "out.csv.partial.json"]
    assert job(tmp_path / "out.csv")[0] == []
    assert text_of(tmp_path / "out.csv") == COMPLETE


def test_output_is_saved_after_some_seconds_and_when_the_input_pauses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_output(str(tmp_path / "out.csv"), OPTIONS, io.StringIO()) as target:
        target.begin("text\n", [], iter(()))
        target.add(ROWS[0], "good\n", failed=False)
        target.flush()
        assert (tmp_path / "out.csv.partial").read_text() == "text\ngood\n"
        monkeypatch.setattr(output, "SAVE_SECONDS", -1)
        target.add(ROWS[0], "bad\n", failed=False)
        assert json.loads((tmp_path / "out.csv.partial.json").read_bytes())["rows"] == 2


def test_output_note_without_a_partial_file_is_ignored(tmp_path: Path) -> None:
    job(tmp_path / "out.csv", stop_after=2)
    (tmp_path / "out.csv.partial").rename(tmp_path / "out.csv")  # killed before the note was deleted
    for _ in range(2):
        assert len(job(tmp_path / "out.csv", overwrite=True)[0]) == 4
    assert names(tmp_path) == ["out.csv"]


@pytest.mark.parametrize(
    ("options", "rows", "message"),
    [
        (
            {"task": "fill-mask"},
            ROWS,
            r"has 2 rows of a command with another task \('sentiment', now 'fill-mask'\)",
        ),
        ({"column": ["body"]}, ROWS, r"another column \(\['text'\], now \['body'\]\)"),
        (
            {},
            [{"text": "new"}, *ROWS],
            "its 2 rows are not those that the input begins with",
        ),
        ({}, ROWS[:1], "its 2 rows are not those that the input begins with"),
    ],
)
def test_output_of_another_command_is_left_alone(
    tmp_path: Path, options: dict[str, Any], rows: list[dict[str, str]], message: str
) -> None:
    path = tmp_path / "out.csv"
    job(path, stop_after=2)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    with pytest.raises(StalePartialFileError, match=message):
        job(path, rows, **options)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before
    assert job(path)[0] == ["é", "so so"]


def test_output_partial_file_of_another_program_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "out.csv.partial").write_text("mine")
    with pytest.raises(TableError, match="is not a partial file of this command"):
        job(tmp_path / "out.csv")
    (tmp_path / "out.csv.partial.json").write_text("not a note")
    with pytest.raises(TableError, match=r"out\.csv\.partial\.json: cannot be read"):
        job(tmp_path / "out.csv")
    assert (tmp_path / "out.csv.partial").read_text() == "mine"


def test_output_partial_file_that_lost_rows_is_an_error(tmp_path: Path) -> None:
    job(tmp_path / "out.csv", stop_after=2)
    (tmp_path / "out.csv.partial").write_text("text")
    with pytest.raises(StalePartialFileError, match="is shorter than its note says"):
        job(tmp_path / "out.csv")
    (tmp_path / "out.csv.partial").unlink()
    assert len(job(tmp_path / "out.csv")[0]) == 4


def test_output_two_processes_do_not_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    with open_output(str(path), OPTIONS, io.StringIO()) as target:
        target.begin("text,label\n", ["label"], iter(()))
        with pytest.raises(TableError, match="another process is writing it"):
            job(path)
    assert path.read_text() == "text,label\n"


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_output_file_system_without_locks_gives_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def flock(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("fcntl.flock", flock)
    asked, message = job(tmp_path / "out.csv")
    assert (len(asked), message) == (
        len(ROWS),
        f"cannot lock {tmp_path}/out.csv.partial ({os.strerror(code)}): do not start a second job with this output\n",
    )


def test_output_partial_file_is_replaced_if_the_job_does_not_resume(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    job(path, stop_after=3, task="fill-mask")
    assert len(job(path, resume=False)[0]) == 4
    assert text_of(path) == COMPLETE
    assert names(tmp_path) == ["out.csv"]


def test_output_link_stays_a_link_and_a_device_a_device(tmp_path: Path) -> None:
    (tmp_path / "link.csv").symlink_to(tmp_path / "real.csv")
    job(tmp_path / "link.csv")
    assert (tmp_path / "link.csv").is_symlink()
    assert (tmp_path / "real.csv").read_text().startswith("text,label\ngood,A\n")
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    job(tmp_path / "pipe", ROWS[:1])
    assert os.read(reader, 99) == b"text,label\ngood,A\n"
    os.close(reader)
    assert (tmp_path / "pipe").is_fifo()


@pytest.mark.parametrize("folder", ["/dev/fd", "/proc/self/fd"])
def test_output_descriptor_may_be_a_pipe_or_a_file_that_is_kept(tmp_path: Path, folder: str) -> None:
    if not Path(folder).exists():
        pytest.skip("has no such names")
    reader, writer = os.pipe()
    job(Path(folder, str(writer)), ROWS[:1])
    assert os.read(reader, 99) == b"text,label\ngood,A\n"
    os.close(reader)
    os.close(writer)
    with (tmp_path / "log").open("w") as log:
        print("keep me", file=log, flush=True)
        job(Path(folder, str(log.fileno())), ROWS[:1])
    assert (tmp_path / "log").read_text() == "keep me\ntext,label\ngood,A\n"
    assert names(tmp_path) == ["log"]


def test_output_dev_stdout_is_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    job(Path("/dev/stdout"), ROWS[:1])
    assert capsys.readouterr().out == "text,label\ngood,A\n"


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "pipe", "-"])
def test_output_lone_surrogate_is_written_as_jsons_escape(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lone = {"text": "é \ud83d"}
    written = tmp_path / "written"
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    with written.open("w", encoding="ascii") as stdout:
        monkeypatch.setattr("sys.stdout", stdout)
        with open_output(name if name == "-" else str(tmp_path / name), {}, io.StringIO()) as target:
            target.begin("", [], iter(()))
            target.add(lone, RowWriter(None, ()).row(lone), failed=False)
    content = written.read_bytes() or os.read(reader, 99) or (tmp_path / name).read_bytes()
    os.close(reader)
    content = gzip.decompress(content) if name.endswith(".gz") else content
    assert content.decode() == '{"text": "é \\ud83d"}\n'
    assert json.loads(content) == lone
