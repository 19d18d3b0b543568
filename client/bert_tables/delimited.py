"""Splits CSV, TSV and similar text into records of cells, each with its fault if it has one."""

from __future__ import annotations

import csv
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from bert_tables.dialect import Dialect, reader_options

MAX_RECORD_CHARACTERS = 2**24
"""Maximum characters of a record of several lines; a longer one has a quoted cell that never closes. Without this
limit, one quotation mark could bring the rest of a file into memory."""

LONE_RETURN = "\ufdd0"
"""A noncharacter for a carriage return within a cell, because `csv` ends a row at a carriage return."""

LINE_END = re.compile(r"\r\n|\r|\n")


@dataclass(frozen=True, slots=True)
class Record:
    """A row as `csv` reads it, not yet compared with the columns of the table."""

    number: int
    """The line in which it begins, from 1."""
    cells: list[str]
    """Empty for a blank line."""
    lines: int
    """Number of lines of the file that it occupies."""
    fault: str | None = None


def records(lines: Iterator[str], dialect: Dialect, skipped: int = 0) -> Iterator[Record]:
    """Records in order. After a record with a misplaced quotation mark, which has a fault, reading goes on in the line
    after that mark.

    Args:
        skipped: Number of lines of the file before these.
    """
    options = reader_options(dialect)
    if dialect.escape:
        lines = map(partial(_double_other_escapes, dialect), lines)
    source = _RecordLines(lines, skipped)
    reader = csv.reader(source, strict=True, **options)
    while True:
        source.record.clear()
        try:
            cells, fault = next(reader), None
            count = len(source.record)
        except StopIteration:
            return
        except csv.Error as error:
            count = _lines_before_fault("".join(source.record), dialect) + 1
            fault = _describe(error, source.number - len(source.record) + count, dialect)
            source.read_again(len(source.record) - count)
            cells = next(csv.reader(source.record[:count], **options), [])
        if any(LONE_RETURN in line for line in source.record):
            cells = [cell.replace(LONE_RETURN, "\r") for cell in cells]
        yield Record(source.number - count + 1, cells, count, fault)


def mark_returns(line: str) -> str:
    """The line with `LONE_RETURN` for carriage returns before its end."""
    text = line.rstrip("\r\n")
    return text.replace("\r", LONE_RETURN) + line[len(text) :]


def holds_rows(cells: list[str], delimiter: str) -> bool:
    """Whether a quoted cell of a record seems to hold whole rows, because most of its lines complete a row.

    A line that has a space after a delimiter does not count. Nor does one that begins or ends with a delimiter, unless
    the record does too. People write so, programs do not.
    """
    filled = ["x" * bool(cell) for cell in cells]
    several = [index for index, cell in enumerate(cells) if LINE_END.search(cell)] if len(cells) > 1 else []
    for index in several:
        lines = LINE_END.split(delimiter.join([*filled[:index], cells[index], *filled[index + 1 :]]))
        rows = sum(
            line.count(delimiter) == len(cells) - 1
            and f"{delimiter} " not in line
            and not (cells[0] and line.startswith(delimiter))
            and not (cells[-1] and line.endswith(delimiter))
            for line in lines
        )
        if len(lines) < 2 * rows:
            return True
    return False


def _double_other_escapes(dialect: Dialect, line: str) -> str:
    """Double escape characters before ordinary characters, as in `AC\\DC`, where they are text: `csv` drops them."""
    escape = re.escape(dialect.escape or "")
    special = escape + re.escape(f"{dialect.delimiter or ''}{dialect.quote or ''}")
    return re.sub(rf"{escape}([{special}\r\n])?", lambda found: found[0] * (1 if found[1] else 2), line)


class _RecordLines:
    """Lines for `csv.reader`. The lines of the last record can be read again."""

    def __init__(self, lines: Iterator[str], skipped: int) -> None:
        self._lines = lines
        self._again: deque[str] = deque()
        self.record: list[str] = []
        """Lines of the record so far."""
        self.number = skipped
        """Number of the last of these lines."""
        self._size = 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        if not self.record:
            self._size = 0
        if self._size > MAX_RECORD_CHARACTERS and len(self.record) > 1:
            raise StopIteration  # `csv.reader` takes it for the end of the file
        line = self._again.popleft() if self._again else next(self._lines)
        self.record.append(line)
        self.number += 1
        self._size += len(line)
        return line

    def read_again(self, count: int) -> None:
        """Return the last lines of the record once more."""
        if count:
            self._again.extendleft(reversed(self.record[-count:]))
            self.number -= count


def _lines_before_fault(text: str, dialect: Dialect) -> int:
    """Number of line ends in a broken record before the cell at fault opens."""
    quote, delimiter, position = dialect.quote or "", dialect.delimiter or "", 0
    mark, escape = re.escape(quote), re.escape(dialect.escape or "")
    escaped = rf"|{escape}." if escape else ""
    inside = rf"[^{mark}{escape}]*+"
    quoted = re.compile(rf"{mark}{inside}(?:(?:{mark}{mark}{escaped}){inside})*+{mark}", re.DOTALL)
    outside = rf"[^{re.escape(delimiter)}{escape}]*+"
    bare = re.compile(rf"{outside}(?:{escape}.{outside})*+" if escape else outside, re.DOTALL)
    while quote:
        found = (quoted if text.startswith(quote, position) else bare).match(text, position)
        if found is None or not text.startswith(delimiter, found.end()):
            break
        position = found.end() + 1
    return len(LINE_END.findall(text[:position]))


def _describe(error: csv.Error, line: int, dialect: Dialect) -> str:
    if not dialect.quote:
        return f"line {line}: {error}"
    never_closes = "unexpected end" in str(error)
    what = "never closes" if never_closes else "has text after its closing quotation mark"
    remedy = (
        f"a quotation mark inside is written twice ({dialect.quote * 2}); if quotation marks are only text, state "
        '--quote ""; if a backslash marks those that are text, state --escape \\'
    )
    return f"a quoted cell that opens in line {line} {what}; {remedy}"
