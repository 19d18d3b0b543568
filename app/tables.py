"""Files of texts, read and written row by row: CSV, TSV, JSON lines, plain lines; `.gz`; `-` for a pipe."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

FORMATS = ("csv", "tsv", "jsonl", "lines")
LINE = "text"
"""The column that a plain line is."""

_SUFFIXES = {".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl"}
_DELIMITERS = {"csv": ",", "tsv": "\t"}
_ERRORS = "backslashreplace"
"""Half a character, which JSON may have and UTF-8 has not, is written as JSON's escape."""


class TableError(Exception):
    """A file that cannot be read as what it is said to be."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row, or what is left of one that is broken."""

    cells: dict[str, Any]
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """An opened file."""

    text: TextIO
    size: int | None
    """Bytes; None for a pipe."""
    position: Callable[[], int]
    """Bytes read so far."""


def format_of(name: str) -> str:
    """What a file name says about its format; anything unknown is plain lines."""
    return _SUFFIXES.get(Path(name.removesuffix(".gz")).suffix.lower(), "lines")


@contextmanager
def open_source(name: str) -> Iterator[Source]:
    """A file or, for `-`, standard input. Bytes that are no UTF-8 are read as U+FFFD.

    Raises:
        TableError: what is packed was cut off or damaged; raised by the reader's `with` statement.
        OSError: it cannot be read.
    """
    with open(0, "rb", closefd=False) if name == "-" else Path(name).open("rb") as raw:
        size = os.fstat(raw.fileno()).st_size if raw.seekable() else None
        unpacked = gzip.GzipFile(fileobj=raw) if name.endswith(".gz") else raw
        with io.TextIOWrapper(unpacked, "utf-8-sig", errors="replace", newline="") as text:
            try:
                yield Source(text, size, raw.tell if raw.seekable() else lambda: 0)
            except (EOFError, zlib.error) as error:
                raise TableError(f"{name}: {error}") from error


@contextmanager
def open_target(name: str) -> Iterator[TextIO]:
    """A file that appears when it is complete, and not at all after an error; or standard output for `-`."""
    if name == "-":
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8", errors=_ERRORS)
        yield sys.stdout
        return
    path = Path(name).resolve()
    if path.exists() and not path.is_file():  # a device or a named pipe is not to be replaced
        with path.open("w", encoding="utf-8", errors=_ERRORS, newline="") as stream:
            yield stream
        return
    aside = path.with_name(f".{path.name}.{os.getpid()}.partial")
    opener = gzip.open if name.endswith(".gz") else open
    try:
        with opener(aside, "wt", encoding="utf-8", errors=_ERRORS, newline="") as stream:
            yield stream
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def read_rows(text: TextIO, form: str) -> Iterator[Row]:
    """Rows in order.

    Raises:
        TableError: there is no header, or the rest of the file cannot be read.
    """
    if form == "lines":
        return (Row({LINE: line.rstrip("\r\n")}) for line in text)
    if form == "jsonl":
        return (_json_row(line) for line in text if line.strip())
    csv.field_size_limit(2**31 - 1)
    return _delimited_rows(csv.reader(text, delimiter=_DELIMITERS[form]))


def write_rows(stream: TextIO, form: str, rows: Iterable[dict[str, Any]]) -> None:
    """Write rows as they come. A table has the columns of its first row; plain lines become a TSV."""
    if form == "jsonl":
        for row in rows:
            stream.write(json.dumps(row, ensure_ascii=False) + "\n")
        return
    table: csv.DictWriter[str] | None = None
    for row in rows:
        if table is None:
            delimiter = _DELIMITERS.get(form, "\t")
            table = csv.DictWriter(
                stream, list(row), extrasaction="ignore", delimiter=delimiter, lineterminator="\n"
            )
            table.writeheader()
        table.writerow({name: _cell(value) for name, value in row.items()})


def _delimited_rows(lines: Iterator[list[str]]) -> Iterator[Row]:
    try:
        header = next(lines, None)
        if header is None:
            raise TableError("the file is empty")
        for cells in lines:
            if not cells:
                continue
            surplus = f"the row has {len(cells)} cells, the header has {len(header)}"
            padded = cells + [""] * (len(header) - len(cells))
            row = dict(zip(header, padded, strict=False))
            yield Row(row, surplus if len(cells) > len(header) else None)
    except csv.Error as error:
        raise TableError(str(error)) from error


def _json_row(line: str) -> Row:
    try:
        cells = json.loads(line)
    except ValueError:
        return Row({}, "the line is no JSON")
    return Row(cells) if isinstance(cells, dict) else Row({}, "the line is no JSON object")


def _cell(value: Any) -> Any:
    if isinstance(value, list):
        return " ".join(map(str, value))
    if isinstance(value, bool):
        return str(value).lower()
    return value
