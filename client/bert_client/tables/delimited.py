"""CSV, TSV and the like: records of cells, each with what is wrong with it."""

from __future__ import annotations

import csv
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from bert_client.tables.dialect import Dialect, reader_options

MAX_RECORD_CHARACTERS = 2**24
"""Characters of a record of several lines. A longer one is taken for a quoted cell that never closes, so that
a single quotation mark does not bring the rest of a file into memory."""


@dataclass(frozen=True, slots=True)
class Record:
    """A row of a table, before it is known how many cells rows have."""

    number: int
    """Line that it begins in, from 1."""
    cells: list[str]
    """None of a blank line."""
    lines: int = 1
    """That it spans."""
    fault: str | None = None


def records(lines: Iterator[str], dialect: Dialect) -> Iterator[Record]:
    """Records in order. A record with a misplaced quotation mark has a fault, and reading goes on in the line
    after that mark."""
    csv.field_size_limit(2**31 - 1)  # the default refuses a cell of over 128 KiB
    options = reader_options(dialect)
    source = _RecordLines(lines)
    reader = csv.reader(source, strict=True, **options)
    while True:
        source.begin_record()
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            start, lines_of_record = source.number - len(source.record) + 1, list(source.record)
            count = _lines_to_the_fault("".join(lines_of_record), dialect)
            source.read_again(len(lines_of_record) - count)
            kept = next(csv.reader(lines_of_record[:count], **options), [])
            fault = _describe(error, start + count - 1, "".join(lines_of_record), dialect)
            yield Record(start, kept, count, fault)
        else:
            yield Record(source.number - len(source.record) + 1, cells, len(source.record))


def whole_rows_inside(cells: list[str], delimiter: str) -> int | None:
    """The index of a quoted cell that seems to hold whole rows, because most of its lines complete a row.

    A line does not, if it begins with a delimiter or has a space after one: people write so, programs do not.
    """
    for index, cell in enumerate(cells if len(cells) > 1 else ()):
        pieces = re.split(r"\r\n|\r|\n", cell)
        if len(pieces) == 1:
            continue
        counts = [piece.count(delimiter) for piece in pieces]
        counts[0] += index
        counts[-1] += len(cells) - 1 - index
        rows = sum(
            count == len(cells) - 1 and f"{delimiter} " not in piece and not piece.startswith(delimiter)
            for count, piece in zip(counts, pieces, strict=True)
        )
        if rows > len(pieces) / 2:
            return index
    return None


class _RecordLines:
    """Lines for `csv.reader`, of which those of the last record can be read again."""

    def __init__(self, lines: Iterator[str]) -> None:
        self._lines = lines
        self._again: deque[str] = deque()
        self._size = 0
        self.record: list[str] = []
        """The lines of the record so far."""
        self.number = 0
        """Of the last of them."""

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        if self._size > MAX_RECORD_CHARACTERS and len(self.record) > 1:
            raise StopIteration  # `csv.reader` takes it for the end of the file
        line = self._again.popleft() if self._again else next(self._lines)
        self.record.append(line)
        self.number += 1
        self._size += len(line)
        return line

    def begin_record(self) -> None:
        self.record.clear()
        self._size = 0

    def read_again(self, count: int) -> None:
        """Give the last lines of the record once more."""
        if count:
            self._again.extendleft(reversed(self.record[-count:]))
            self.number -= count


def _lines_to_the_fault(text: str, dialect: Dialect) -> int:
    """How many lines of a broken record there are up to the one where the cell at fault opens."""
    quote, delimiter, position = dialect.quote or "", dialect.delimiter or "", 0
    escape = re.escape(dialect.escape or "")
    mark = re.escape(quote)
    inside, escaped = rf"[^{mark}{escape}]*+", rf"|{escape}." if escape else ""
    quoted = re.compile(rf"{mark}{inside}(?:(?:{mark}{mark}{escaped}){inside})*+{mark}", re.DOTALL)
    outside = rf"[^{re.escape(delimiter)}{escape}]*+"
    bare = re.compile(rf"{outside}(?:{escape}.{outside})*+" if escape else outside, re.DOTALL)
    while quote:
        found = (quoted if text.startswith(quote, position) else bare).match(text, position)
        if found is None or not text.startswith(delimiter, found.end()):
            break
        position = found.end() + 1
    return len(re.findall(r"\r\n|\r|\n", text[:position])) + 1


def _describe(error: csv.Error, line: int, text: str, dialect: Dialect) -> str:
    if not dialect.quote:
        return f"line {line}: {error}"
    mark = dialect.quote
    never_closed = "unexpected end" in str(error)
    what = f"a quoted cell that opens in line {line} " + (
        "never closes" if never_closed else "has text after its closing quotation mark"
    )
    if f"\\{mark}" in text and dialect.escape is None:
        return f"{what}; if a backslash marks quotation marks that are text, state the escape character \\"
    return (
        f"{what}; a quotation mark inside is written twice ({mark}{mark}); if quotation marks are only text, "
        'state quote = ""'
    )
