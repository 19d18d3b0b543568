"""Files of texts, read and written row by row: CSV, TSV, JSON lines, plain lines; `.gz`; `-` for a pipe."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import itertools
import json
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TextIO

FORMATS = ("csv", "tsv", "jsonl", "lines")
LINE = "text"
"""The column that a plain line is."""

_SUFFIXES = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".txt": "lines",
    ".text": "lines",
}
_DELIMITERS = {"csv": ",", "tsv": "\t"}
_GZIP = b"\x1f\x8b"
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_NO_UTF_8 = re.compile(r"[\udc80-\udcff]")
"""What Python reads in place of a byte that is none. It is written as `\\udc..`: no text that was there."""
_CONVERT = "is no UTF-8: convert the file, e.g. with iconv -f windows-1252 -t utf-8"
_BEGINNING = 100
"""Lines of a TSV file that show whether its quotation marks are just text."""
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
class Table:
    """What a file holds."""

    columns: tuple[str, ...] | None
    """Of its header; None for JSON lines, of which each has its own."""
    rows: Iterator[Row]


@dataclass(frozen=True, slots=True)
class Source:
    """An opened file."""

    text: TextIO
    size: int | None
    """Bytes; None for a pipe."""
    position: Callable[[], int]
    """Bytes read so far."""


def format_of(name: str) -> str | None:
    """What a file name says about its format, if it says anything; a pipe has plain lines."""
    return "lines" if name == "-" else _SUFFIXES.get(Path(name.removesuffix(".gz")).suffix.lower())


@contextmanager
def open_source(name: str) -> Iterator[Source]:
    """A file or, for `-`, standard input; unpacked, if it is gzip. Text in UTF-16 is known by its first bytes;
    else a row with bytes that are no UTF-8 has a fault.

    Raises:
        TableError: it was cut off or damaged, packed or in UTF-16; raised by the reader's `with` statement.
        OSError: it cannot be read.
    """
    with open(0, "rb", closefd=False) if name == "-" else Path(name).open("rb") as raw:
        size = os.fstat(raw.fileno()).st_size if raw.seekable() else None
        packed = name.endswith(".gz") or raw.peek(len(_GZIP)).startswith(_GZIP)
        try:
            unpacked = gzip.GzipFile(fileobj=raw) if packed else raw
            wide = unpacked.peek(2).startswith(_UTF_16)
            encoding, errors = ("utf-16", "strict") if wide else ("utf-8-sig", "surrogateescape")
            with io.TextIOWrapper(unpacked, encoding, errors, newline="") as text:
                yield Source(text, size, raw.tell if raw.seekable() else lambda: 0)
        except (EOFError, zlib.error, UnicodeDecodeError) as error:
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


def read_table(text: TextIO, form: str) -> Table:
    """Rows in order.

    Raises:
        TableError: there is no header, or it names a column twice; reading rows: the rest cannot be read.
    """
    if form == "lines":
        return Table((LINE,), (Row({LINE: line.rstrip("\r\n")}, _encoding_fault(line)) for line in text))
    if form == "jsonl":
        return Table(None, (_json_row(number, line) for number, line in enumerate(text, 1) if line.strip()))
    csv.field_size_limit(2**31 - 1)
    lines: Iterator[str] = iter(text)
    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL
    if form == "tsv":
        beginning = list(itertools.islice(lines, _BEGINNING))
        quoting = csv.QUOTE_NONE if _quotes_are_text(beginning) else csv.QUOTE_MINIMAL
        lines = itertools.chain(beginning, lines)
    rows = _strict_rows(lines, _DELIMITERS[form], quoting)
    header = next(rows, None)
    if header is None:
        raise TableError("the file is empty")
    if _encoding_fault("".join(header)):
        raise TableError(f"the header {_CONVERT}")
    for name in header:
        if header.count(name) > 1:
            raise TableError(f"the header names {name!r} twice: give each column a name of its own")
    return Table(tuple(header), (_row(header, cells) for cells in rows if cells))


def write_rows(
    stream: TextIO, form: str, rows: Iterable[dict[str, Any]], columns: Sequence[str] = ()
) -> list[str]:
    """Write rows as they come. A table has the columns of its first row, or these if there is none; plain lines
    become a TSV.

    Returns:
        Columns of later rows, which are left out.
    """
    if form == "jsonl":
        for row in rows:
            stream.write(json.dumps(row, ensure_ascii=False) + "\n")
        return []
    coming = iter(rows)
    first = next(coming, None)
    names = list(columns if first is None else first)
    if not names:
        return []
    delimiter = _DELIMITERS.get(form, "\t")
    table = csv.DictWriter(_Lines(stream), names, extrasaction="ignore", delimiter=delimiter)
    table.writeheader()
    left_out: dict[str, None] = {}
    for row in itertools.chain([] if first is None else [first], coming):
        table.writerow({name: _cell(value) for name, value in row.items()})
        left_out |= dict.fromkeys(row.keys() - set(names))
    return sorted(left_out)


class _Lines:
    """Ends rows in LF. Python's writer believes that they end in CR LF, and so quotes a cell that holds a bare
    CR, which readers take for the end of a row."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, row: str) -> None:
        self._stream.write(row.removesuffix("\r\n") + "\n")


def _quotes_are_text(lines: Sequence[str]) -> bool:
    """Whether some cell begins with a quotation mark that does not enclose it, where each line is a row: GLUE's
    files are written so, and not as a spreadsheet writes them."""
    rows = [line.rstrip("\r\n").split("\t") for line in lines]
    stray = any(cell.startswith('"') and not _ENCLOSED.fullmatch(cell) for row in rows for cell in row)
    return stray and len({len(row) for row in rows}) == 1


_ENCLOSED = re.compile(r'"(?:[^"]|"")*"')


def _strict_rows(lines: Iterable[str], delimiter: str, quoting: Literal[0, 3]) -> Iterator[list[str]]:
    """Rows of cells; rows that a stray quotation mark has glued together are no cell."""
    reader = csv.reader(lines, delimiter=delimiter, quoting=quoting, strict=True)
    try:
        for cells in reader:
            if delimiter == "\t" and any("\n" in cell and "\t" in cell for cell in cells):
                raise csv.Error("a quoted cell holds tabs and line ends")
            yield cells
    except csv.Error as error:
        remedy = 'in a quoted cell, a quotation mark is written twice ("")'
        raise TableError(f"line {reader.line_num}: {error}; {remedy}") from error


def _row(header: Sequence[str], cells: list[str]) -> Row:
    surplus = f"the row has {len(cells)} cells, the header has {len(header)}"
    padded = cells + [""] * (len(header) - len(cells))
    fault = surplus if len(cells) > len(header) else _encoding_fault("".join(cells))
    return Row(dict(zip(header, padded, strict=False)), fault)


def _json_row(number: int, line: str) -> Row:
    try:
        cells = json.loads(line)
    except (ValueError, RecursionError):
        return Row({}, f"line {number} is no JSON")
    if not isinstance(cells, dict):
        return Row({}, f"line {number} is no JSON object")
    return Row(cells, _encoding_fault(line))


def _encoding_fault(text: str) -> str | None:
    return f"the row {_CONVERT}" if _NO_UTF_8.search(text) else None


def _cell(value: Any) -> Any:
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, bool):
        return str(value).lower()
    return value
