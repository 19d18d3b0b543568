"""The output of `bert`: rows as CSV, TSV or JSON lines. A later run of the same command adds to the file."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import itertools
import json
import math
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any, BinaryIO, TextIO

from bert_client.results import Model
from bert_tables import TableError, format_of
from bert_tables.files import COMPRESSION_SUFFIXES

FORMATS = ("csv", "tsv", "jsonl")
RevisedLine = Callable[[dict[str, Any]], str | None]
"""Makes the new line of a row from its cells, or None to keep the old one."""
SAVE_SECONDS = 2.0
"""Maximum age of answers that a killed job loses."""
SAVE_CHARACTERS = 2**20
"""Lines with more characters are saved at once, to bound memory."""

MARK = "\ufeff"
"""The byte order mark, by which spreadsheets know UTF-8."""
OVERWRITE_ADVICE = "give --overwrite to begin again"

_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_ERRORS = "backslashreplace"
"""Writes a lone surrogate as JSON's escape: JSON can have it, UTF-8 cannot."""


def printable(text: str) -> str:
    """The text with control characters as JSON's escapes, because a service could control the terminal with them."""
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def use_utf_8() -> None:
    """Write standard output in UTF-8 in every locale. Raises OSError if it is closed."""
    if sys.stdout is None:
        raise OSError("standard output is closed")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors=_ERRORS)


def has_output_suffix(name: str) -> bool:
    """Whether a file name has the suffix of a format that can be written."""
    known = format_of(name) in (*FORMATS, "lines")
    return known and not name.lower().endswith(tuple(set(COMPRESSION_SUFFIXES) - {".gz"}))


class RowWriter:
    """Turns rows into lines of text.

    Args:
        delimiter: Delimiter of a CSV or TSV file; None for JSON lines.
        columns: Columns of a CSV or TSV file. Other columns of its rows are left out.
    """

    def __init__(self, delimiter: str | None, columns: Sequence[str]) -> None:
        self.left_out: set[str] = set()
        """Names of columns that were left out."""
        self._is_json = delimiter is None
        self._columns = columns
        self._line = ""
        self._csv = csv.writer(self, delimiter=delimiter or ",")

    def header(self, *, has_mark: bool = False) -> str:
        """The first line, if the format has one. `has_mark`: whether a byte order mark is before it."""
        return "" if self._is_json or not self._columns else MARK * has_mark + self._encode(self._columns)

    def row(self, cells: Mapping[str, Any]) -> str:
        """The line or lines of a row."""
        self.note_left_out(cells)
        if self._is_json:
            return _json(cells) + "\n"
        return self._encode([_cell(cells.get(name)) for name in self._columns])

    def note_left_out(self, cells: Mapping[str, Any]) -> Mapping[str, Any]:
        """Remember the columns of a row that are left out. Returns its cells."""
        if not self._is_json:
            self.left_out |= cells.keys() - set(self._columns)
        return cells

    def _encode(self, cells: Sequence[Any]) -> str:
        self._csv.writerow(cells)
        return self._line

    def write(self, line: str) -> None:
        """Called by `csv.writer`. Its rows end in CR LF: only then does it quote a cell that holds a bare CR, which
        readers take for the end of a row."""
        self._line = line.removesuffix("\r\n") + "\n"


def written_rows(lines: Iterable[str], delimiter: str | None) -> Iterator[tuple[str, dict[str, Any]]]:
    """The rows that a `RowWriter` has written, each as its text in the file and as cells. A header has no cells."""
    if delimiter is None:
        for line in lines:
            yield line, json.loads(line)
        return
    read: list[str] = []
    columns: list[str] = []

    def noted() -> Iterator[str]:
        for line in lines:
            read.append(line)
            yield line if columns else line.removeprefix(MARK)

    for record in csv.reader(noted(), delimiter=delimiter):
        yield "".join(read), dict(zip(columns, record, strict=True)) if columns else {}
        columns = columns or record
        read.clear()


def _cell(value: Any) -> Any:
    return _json(value) if isinstance(value, dict | list | bool) else value


def _json(value: Any) -> str:
    """JSON. Infinity and NaN, which Parquet has and JSON has not, become null."""
    return json.dumps(_finite(value), ensure_ascii=False, default=str)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list):
        return list(map(_finite, value))
    return None if isinstance(value, float) and not math.isfinite(value) else value


class StalePartialFileError(TableError):
    """The job cannot continue with the partial file."""


class Stream:
    """Standard output, a device or a named pipe, to which no later run adds."""

    def __init__(self, stream: TextIO) -> None:
        self.rows = self.failed = 0
        self._stream = stream

    def begin(self, header: str, *_: object) -> None:
        """Write the header."""
        self._stream.write(header)

    def add(self, given: Mapping[str, Any], line: str, *, failed: bool) -> None:  # noqa: ARG002
        """Write the line of an input."""
        self._stream.write(line)

    def flush(self) -> None:
        """Pass all lines on."""
        self._stream.flush()

    def revise(self, delimiter: str | None, marker: str, revised_line: RevisedLine) -> None:
        """Do nothing, because written lines cannot be changed."""


class PartialFile:
    """Lines that are saved every few seconds. A note beside them has their number and a hash of their inputs.

    Lines are on the disk before the note that counts them, and the next run cuts off lines that the note does not
    count. So a kill at any moment leaves whole rows.

    Args:
        options: Options of the command. A run with other options does not add to the file.
        resume: Whether to add to the rows of an earlier run, or to replace them.

    Raises:
        StalePartialFileError: the file or its note is damaged, or belongs to a command with other options.
    """

    def __init__(
        self, file: BinaryIO, path: Path, options: Mapping[str, Any], stderr: TextIO, *, resume: bool = True
    ) -> None:
        self._file = file
        self._path = path
        self._new_note = path.with_name(f"{path.name}.json.new")
        self._revised = path.with_name(f"{path.name}.revised")
        self.complete = path
        """The file that gets the rows once all are written."""
        self._is_compressed = path.name.lower().endswith(".gz.partial")
        self._stderr = stderr
        note = {"options": json.loads(json.dumps(options)), "rows": 0, "failed": 0, "bytes": 0}
        if resume and path.stat().st_size:
            note = self._read_note(note)
        self._state = _State(note, hashlib.blake2b(digest_size=16))
        self._header = b""
        self._waiting_size = 0
        self._saved = monotonic()
        self._was_begun = False
        self.rows: int = note["rows"]
        """Number of rows in the file, from earlier runs."""
        self.failed: int = note["failed"]
        """Number of these rows that have an error."""

    def _read_note(self, expected: dict[str, Any]) -> dict[str, Any]:
        file = note_path(self._path)
        if not file.exists():
            raise self._stale("is not a partial file of this command")
        try:
            note: dict[str, Any] = json.loads(file.read_bytes())
            options, rows, size = note["options"], note["rows"], note["bytes"]
        except (ValueError, KeyError, TypeError) as error:
            raise StalePartialFileError(f"{file}: cannot be read ({error})") from error
        if not rows:
            return expected
        if self._path.stat().st_size < size:
            raise self._stale("is shorter than its note says")
        for key, value in expected["options"].items():
            if options.get(key) != value:
                change = f"{key} ({options.get(key)!r}, now {value!r})"
                raise self._stale(f"has {rows:,} rows of a command with another {change}")
        self._stderr.write(f"{self._path}: going on after {rows:,} rows\n")
        return note

    def _stale(self, fault: str) -> StalePartialFileError:
        return StalePartialFileError(f"{self._path}: {fault}")

    def begin(
        self, header: str, added: Sequence[str], inputs: Iterator[Mapping[str, Any]], model: Model | None = None
    ) -> None:
        """Write the header. If an earlier run has written rows, skip their inputs in the iterator instead.

        Args:
            added: The columns of the answers.
            model: The model that answers, if known.

        Raises:
            StalePartialFileError: the earlier run had other inputs, columns or another model.
        """
        note, inputs_hash = self._state.note, self._state.inputs_hash
        self._check_model(note, model)
        self._header = header.encode("utf-8", _ERRORS)
        is_same = note.setdefault("added", list(added)) == list(added)
        if self.rows and not (is_same and self._beginning(len(self._header)) == self._header):
            raise self._stale("has other columns than this command writes after reading the first rows of the input")
        for given in itertools.islice(inputs, self.rows):
            _update(inputs_hash, given)
        if self.rows and inputs_hash.hexdigest() != note["inputs"]:
            raise self._stale(f"its {self.rows:,} rows are not those that the input begins with")
        if not self.rows:  # after this, a killed job leaves a file that is known to be of this command
            self._write_note(note)
        self._was_begun = True

    def _check_model(self, note: dict[str, Any], model: Model | None) -> None:
        """Compare the model with that of an earlier run, and note it, if the service tells its hash."""
        if model is None or model.sha256 is None:
            return
        known = note.setdefault("model", {"name": model.name, "sha256": model.sha256})
        if known["sha256"] != model.sha256:
            change = f"{known['name']!r}, sha256 {known['sha256'][:12]}; now {model.name!r}, {model.sha256[:12]}"
            raise self._stale(f"has {self.rows:,} rows of another model ({change})")

    def add(self, given: Mapping[str, Any], line: str, *, failed: bool) -> None:
        """Write the line of an input."""
        self._state.waiting.append((given, line, failed))
        self._waiting_size += len(line)
        if self._waiting_size > SAVE_CHARACTERS or monotonic() - self._saved > SAVE_SECONDS:
            self._save()

    def flush(self) -> None:
        """Save the lines, because the input pauses."""
        self._save()

    def revise(self, delimiter: str | None, marker: str, revised_line: RevisedLine) -> None:
        """Replace lines that hold a marker, after all lines are added.

        The new lines are in another file, so an interrupt loses only these.

        Args:
            delimiter: Delimiter of the `RowWriter`.
        """
        self.close()
        with self._open_text(self._path, "rt") as file:
            if not any(marker in line for line in file):
                return
        with self._open_text(self._path, "rt") as file, self._open_text(self._revised, "wt") as revised:
            for line, cells in written_rows(file, delimiter):
                new = revised_line(cells) if marker in line else None
                revised.write(line if new is None else new)
        with self._revised.open("ab") as written:
            _flush(written)
        self.complete = self._revised

    def close(self) -> None:
        """Write all waiting lines, and the header if there are none."""
        self._save(last=True)

    def keep(self) -> None:
        """Keep the answered rows after an error or an interrupt. If there are none, delete the file."""
        self._revised.unlink(missing_ok=True)
        with suppress(OSError):
            self._save()
        if rows := self._state.note["rows"]:
            if self._was_begun:  # otherwise they belong to another input, as the error says
                self._stderr.write(f"{rows:,} rows are kept in {self._path}; the same command goes on after them\n")
            return
        for file in (self._path, note_path(self._path), self._new_note):
            file.unlink(missing_ok=True)

    def _open_text(self, path: Path, mode: str) -> TextIO:
        opened: Callable[..., Any] = gzip.open if self._is_compressed else open
        file: TextIO = opened(path, mode, encoding="utf-8", errors=_ERRORS, newline="")
        return file

    def _beginning(self, size: int) -> bytes:
        opened = gzip.open if self._is_compressed else open
        try:
            with opened(self._path, "rb") as file:
                return bytes(file.read(size))
        except (OSError, EOFError, zlib.error) as error:
            raise self._stale(f"cannot be read ({error})") from error

    def _save(self, *, last: bool = False) -> None:
        """Write the waiting lines, then the note."""
        note, inputs_hash, waiting = self._state.note, self._state.inputs_hash.copy(), self._state.waiting
        if not waiting and not last:
            return
        for given, _, _ in waiting:
            _update(inputs_hash, given)
        data = "".join(line for _, line, _ in waiting).encode("utf-8", _ERRORS)
        data = data if note["rows"] else self._header + data
        if self._is_compressed:
            data = gzip.compress(data)
        try:
            self._file.seek(note["bytes"])
            self._file.truncate()  # lines of a save that was interrupted
            self._file.write(data)
            _flush(self._file)
        except OSError as error:
            error.filename = str(self._path)  # for the message
            raise
        note = note | {
            "rows": note["rows"] + len(waiting),
            "failed": note["failed"] + sum(failed for _, _, failed in waiting),
            "bytes": note["bytes"] + len(data),
            "inputs": inputs_hash.hexdigest(),
        }
        self._write_note(note)
        self._state = _State(note, inputs_hash)  # one assignment: an interrupt comes before or after it
        self._waiting_size, self._saved = 0, monotonic()

    def _write_note(self, note: Mapping[str, Any]) -> None:
        with self._new_note.open("wb") as file:
            file.write(json.dumps(note, indent=1).encode())
            _flush(file)
        self._new_note.replace(note_path(self._path))  # the note is the old or the new one at any moment


@dataclass(frozen=True, slots=True)
class _State:
    """The last save, and the lines added after it."""

    note: dict[str, Any]
    inputs_hash: hashlib.blake2b
    """Hash of the inputs whose lines are saved."""
    waiting: list[tuple[Mapping[str, Any], str, bool]] = field(default_factory=list)
    """Inputs, their lines, and whether they failed."""


def _update(inputs_hash: hashlib.blake2b, given: Mapping[str, Any]) -> None:
    inputs_hash.update(json.dumps(given, default=str).encode() + b"\n")


def note_path(partial: Path) -> Path:
    """The file with the note of a partial file."""
    return partial.with_name(f"{partial.name}.json")


@contextmanager
def open_output(
    name: str, options: Mapping[str, Any], stderr: TextIO, *, overwrite: bool = False, resume: bool = True
) -> Iterator[Stream | PartialFile]:
    """Open standard output (`-`), a device or pipe, or a file.

    A file gets its name when it is complete. Until then it is `NAME.partial`, with a note in `NAME.partial.json`, and a
    job with the same options continues after its last row.

    Args:
        overwrite: Whether to replace an existing file that is not empty.
        resume: Whether to continue the partial file, or to replace it.

    Raises:
        TableError: the file exists, or another process writes it.
        StalePartialFileError: the job cannot continue with the partial file.
    """
    if name in ("-", "/dev/stdout"):
        use_utf_8()
        yield Stream(sys.stdout)
        return
    path = Path(name)
    is_descriptor = re.match(r"/dev/(stderr$|fd/)|/proc/[^/]+/fd/", name)  # a shell may have redirected it to a file
    if is_descriptor or (path.exists() and not path.is_file()):
        with path.open("a", encoding="utf-8", errors=_ERRORS, newline="") as stream:
            yield Stream(stream)
        return
    path = path.resolve()
    if not overwrite and path.exists() and path.stat().st_size:
        raise TableError(f"{path}: exists already; give --overwrite to replace it")
    partial = path.with_name(f"{path.name}.partial")
    with partial.open("ab") as file:
        _lock(file, partial, stderr)
        output = PartialFile(file, partial, options, stderr, resume=resume)
        try:
            yield output
            output.close()
        except BaseException:
            output.keep()
            raise
    output.complete.replace(path)
    if output.complete != partial:
        partial.unlink()
    note_path(partial).unlink(missing_ok=True)


def _flush(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _lock(file: BinaryIO, partial: Path, stderr: TextIO) -> None:
    """Raise TableError if another process has the file open."""
    if sys.platform == "win32":
        return  # this system has no such locks
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise TableError(f"{partial}: another process is writing it") from error
    except OSError as error:  # some network file systems have no locks
        stderr.write(f"cannot lock {partial} ({error.strerror}): do not start a second job with this output\n")
