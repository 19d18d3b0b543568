"""What `bert` writes: rows as CSV, TSV or JSON lines, into a file that an interrupted job goes on with."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import itertools
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TextIO

from bert_client.tables import TableError, format_of
from bert_client.tables.files import COMPRESSION_SUFFIXES

FORMATS = ("csv", "tsv", "jsonl")
SAVE_SECONDS = 2.0
"""A killed job loses at most the answers of this time."""

_SAVE_BYTES = 2**20
_ERRORS = "backslashreplace"
"""Half a character, which JSON may have and UTF-8 has not, is written as JSON's escape."""


def is_writable(name: str) -> bool:
    """Whether a file name tells a format that can be written."""
    known = format_of(name) in (*FORMATS, "lines")
    return known and not name.lower().endswith(tuple(set(COMPRESSION_SUFFIXES) - {".gz"}))


class RowWriter:
    """Rows to lines of text."""

    def __init__(self, form: str, columns: Sequence[str]) -> None:
        """Args:
        columns: Of a CSV or TSV file; other columns of its rows are left out.
        """
        self.left_out: dict[str, None] = {}
        """Columns that were left out."""
        self._is_json = form == "jsonl"
        self._columns = columns
        self._line = ""
        self._csv = csv.writer(self, delimiter="," if form == "csv" else "\t")

    def header(self) -> str:
        """The first line, if the format has one."""
        return "" if self._is_json or not self._columns else self._encode(self._columns)

    def row(self, cells: Mapping[str, Any]) -> str:
        """The line or lines of a row."""
        if self._is_json:
            return json.dumps(cells, ensure_ascii=False, default=str) + "\n"
        self.left_out |= dict.fromkeys(cells.keys() - set(self._columns))
        return self._encode([_cell(cells.get(name)) for name in self._columns])

    def _encode(self, cells: Sequence[Any]) -> str:
        self._csv.writerow(cells)
        return self._line

    def write(self, line: str) -> None:
        """Called by `csv.writer`. It is set to end rows in CR LF, because only then it quotes a cell that holds
        a bare CR, which readers take for the end of a row."""
        self._line = line.removesuffix("\r\n") + "\n"


def _cell(value: Any) -> Any:
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False, default=str)
    if isinstance(value, bool):
        return str(value).lower()
    return value


class Output(Protocol):
    """Where the lines of a job go."""

    rows: int
    """Rows that it has, those of an earlier run included."""
    failed: int
    """How many of these have an error."""

    def begin(self, header: str, inputs: Iterator[Mapping[str, Any]]) -> None:
        """Write the header. If an earlier run has written rows, take as many inputs from the iterator instead.

        Raises:
            TableError: these are not the inputs that the earlier run has answered.
        """

    def add(self, given: Mapping[str, Any], line: str, *, failed: bool) -> None:
        """Write the line of an input."""


@contextmanager
def open_output(name: str, options: Mapping[str, Any], stderr: TextIO) -> Iterator[Output]:
    """Standard output for `-`, a device, or a file that has its name when it is complete.

    Until then the file is `NAME.partial`, with a note beside it, `NAME.partial.json`. A job of the same options
    goes on after the last row there.

    Raises:
        TableError: the partial file is of another command, or in use.
    """
    if name == "-":
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8", errors=_ERRORS)
        yield _Stream(sys.stdout)
        return
    path = Path(name).resolve()
    if path.exists() and not path.is_file():  # a device or a named pipe is not to be replaced
        with path.open("w", encoding="utf-8", errors=_ERRORS, newline="") as stream:
            yield _Stream(stream)
        return
    partial = path.with_name(f"{path.name}.partial")
    if partial.exists() and partial.stat().st_size and not _note_of(partial).exists():
        raise TableError(f"{partial}: is not a partial file of this command; rename or delete it")
    with partial.open("ab") as file:
        _lock(file, partial)
        output = _PartialFile(file, partial, options)
        output.load_note(stderr)
        try:
            yield output
            output.save(last=True)
        except BaseException as error:
            output.leave(error, stderr)
            raise
    partial.replace(path)
    _note_of(partial).unlink(missing_ok=True)


class _Stream:
    """An output that no later run can go on with."""

    rows = 0
    failed = 0

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def begin(self, header: str, inputs: Iterator[Mapping[str, Any]]) -> None:  # noqa: ARG002
        self._stream.write(header)

    def add(self, given: Mapping[str, Any], line: str, *, failed: bool) -> None:  # noqa: ARG002
        self._stream.write(line)


class _PartialFile:
    """Lines that are saved every few seconds, with a note of how many there are and a hash of their inputs.

    Lines are on the disk before the note that counts them, and the next run cuts off what the note does not
    count. So a kill at any moment leaves whole rows.
    """

    def __init__(self, file: BinaryIO, partial: Path, options: Mapping[str, Any]) -> None:
        self.rows = self.failed = 0
        self._file = file
        self._partial = partial
        self._options: dict[str, Any] = json.loads(json.dumps(options))
        self._saved_rows = self._saved_bytes = 0
        self._saved_hash = ""
        self._saved_at = time.monotonic()
        self._hash = hashlib.blake2b(digest_size=16)
        self._waiting: list[str] = []
        self._waiting_size = 0

    def load_note(self, stderr: TextIO) -> None:
        """Take up the rows of an earlier run, if there is one."""
        note_file = _note_of(self._partial)
        if not note_file.exists():
            return
        try:
            note = json.loads(note_file.read_bytes())
            options, rows, failed = note["options"], note["rows"], note["failed"]
            size, inputs = note["bytes"], note["inputs"]
        except (ValueError, KeyError) as error:
            raise TableError(f"{note_file}: cannot be read ({error}); delete it and {self._partial}") from error
        if not rows:
            return
        if self._file.seek(0, os.SEEK_END) < size:
            raise TableError(f"{self._partial}: is shorter than its note tells; delete it to begin again")
        for key, value in self._options.items():
            if options.get(key) != value:
                raise TableError(
                    f"{self._partial}: has {rows:,} rows of a command with another {key} "
                    f"({options.get(key)!r}, now {value!r}); give that one to go on, or delete the file"
                )
        self.rows, self.failed = rows, failed
        self._saved_rows, self._saved_bytes, self._saved_hash = rows, size, inputs
        stderr.write(f"{self._partial}: going on after {rows:,} rows\n")

    def begin(self, header: str, inputs: Iterator[Mapping[str, Any]]) -> None:
        if not self._saved_rows:
            self._waiting.append(header)
            return
        checked = 0
        for given in itertools.islice(inputs, self._saved_rows):
            self._update_hash(given)
            checked += 1
        if checked < self._saved_rows or self._hash.hexdigest() != self._saved_hash:
            raise TableError(
                f"{self._partial}: its {self._saved_rows:,} rows are not those that the input begins with; "
                "delete it to begin again"
            )

    def add(self, given: Mapping[str, Any], line: str, *, failed: bool) -> None:
        self._update_hash(given)
        self._waiting.append(line)
        self._waiting_size += len(line)
        self.rows += 1
        self.failed += failed
        if self._waiting_size > _SAVE_BYTES or time.monotonic() - self._saved_at > SAVE_SECONDS:
            self.save()

    def save(self, *, last: bool = False) -> None:
        """Write what waits, then the note."""
        data = "".join(self._waiting).encode("utf-8", _ERRORS)
        if self._partial.name.endswith(".gz.partial") and (data or last):
            data = gzip.compress(data)
        self._file.seek(self._saved_bytes)
        self._file.truncate()  # what a save that was interrupted has left
        self._file.write(data)
        self._file.flush()
        os.fsync(self._file.fileno())
        note = {
            "options": self._options,
            "rows": self.rows,
            "failed": self.failed,
            "bytes": self._saved_bytes + len(data),
            "inputs": self._hash.hexdigest(),
        }
        _replace(_note_of(self._partial), json.dumps(note, indent=1))
        self._saved_bytes, self._saved_rows = self._saved_bytes + len(data), self.rows
        self._waiting, self._waiting_size, self._saved_at = [], 0, time.monotonic()

    def leave(self, error: BaseException, stderr: TextIO) -> None:
        """Keep what is answered, after an error; delete the file if that is nothing."""
        if isinstance(error, Exception) and self.rows > self._saved_rows:  # else a save may be half done
            with suppress(OSError):
                self.save()
        if self._saved_rows:
            stderr.write(
                f"{self._saved_rows:,} rows are kept in {self._partial}; the same command goes on after them\n"
            )
            return
        self._partial.unlink()
        _note_of(self._partial).unlink(missing_ok=True)

    def _update_hash(self, given: Mapping[str, Any]) -> None:
        self._hash.update(json.dumps(given, default=str).encode() + b"\n")


def _note_of(partial: Path) -> Path:
    return partial.with_name(f"{partial.name}.json")


def _replace(path: Path, content: str) -> None:
    """Write a file that has its old or its new content, whenever the process or the machine stops."""
    aside = path.with_name(f"{path.name}.new")
    with aside.open("w", encoding="utf-8") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)


def _lock(file: BinaryIO, partial: Path) -> None:
    """Raise TableError if another process has the file. Windows has no such locks."""
    with suppress(ImportError):
        import fcntl

        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise TableError(f"{partial}: another process is writing it") from error
