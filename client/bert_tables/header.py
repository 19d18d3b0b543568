"""Finds the header of a table, the first row with as many cells as the rows after it, and columns by their names."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence, Set

from bert_tables.delimited import Record
from bert_tables.dialect import LINE
from bert_tables.missing import MISSING_WORDS, is_missing

_NUMBER = re.compile(r"[-+]?\d+([.,]\d+)*%?")
_MAX_EXTRA_HEADERS = 3
_MIN_ROWS = 3
"""Minimum number of rows with numbers for detecting a further header row above them."""


def find_header(found: Sequence[Record], columns: Set[str]) -> tuple[int, str | None, str | None]:
    """Find the header among a table's first records.

    Lines above are skipped if each has a single cell, as a title or a note has.

    Args:
        columns: The columns that will be read. A first row that has them is the header. Without any, `LINE` is likely.

    Returns:
        The line of the header, or 0 if it is the first row. A note if lines are skipped. Advice if lines above the
        table are likely but cannot be told from a header.
    """
    rows = [record for record in found if record.fault is None and any(map(str.strip, record.cells))]
    if len(rows) < 3 or {*rows[0].cells} >= (columns or {LINE}):
        return 0, None, None
    first = rows[0]
    count = Counter(len(row.cells) for row in rows[1:]).most_common(1)[0][0]
    index = next((i for i, row in enumerate(rows) if len(row.cells) == count and not _is_sparse(row.cells)), 0)
    header, after = rows[index], rows[index + 1 :]
    fitting = sum(len(row.cells) == count for row in after)
    if index == 0 or count < 2 or 2 * fitting <= len(after) or not _may_be_header(header.cells):
        return 0, None, None
    if all(_filled(row.cells) == 1 for row in rows[:index]):
        return header.number, f"the table begins in line {header.number}; the lines above it are not read", None
    if len(first.cells) != count and any(len(row.cells) == len(first.cells) for row in after):
        return 0, None, None
    doubt = (
        f"the table may begin in line {header.number}, which has {count} cells as most rows after it, unlike line "
        f"{first.number}: if line {header.number} is the header, delete the lines above it; if line "
        f"{first.number} is, let it name all columns, and quote cells that hold a delimiter"
    )
    return 0, None, doubt


def find_second_header(rows: Sequence[Record], names: Sequence[str]) -> tuple[str | None, bool]:
    """A message if rows below the header look like further headers, because columns of numbers begin with words. And
    whether this is sure, because several columns do."""
    rows = [row for row in rows if row.fault is None and len(row.cells) == len(names)]
    starts: dict[int, int] = {}
    for index in range(len(names)):
        values = [row.cells[index].strip() for row in rows]
        words = next((n for n, value in enumerate(values) if _NUMBER.fullmatch(value)), len(values))
        numbers = [value for value in values[words:] if not _means_missing(value)]
        if len(numbers) >= _MIN_ROWS and all(map(_NUMBER.fullmatch, numbers)):
            starts[index] = words
            if not 0 < words <= _MAX_EXTRA_HEADERS or any(map(_means_missing, values[:words])):
                return None, False
    if len(set(starts.values())) != 1:
        return None, False
    column, words = next(iter(starts.items()))
    name, last = names[column] or str(column + 1), rows[words - 1].number
    lines = f"line {last} looks like a" if words == 1 else f"lines {rows[0].number} to {last} look like"
    message = (
        f"{lines} further header row{'s' * (words > 1)}, because the column {name!r} has only numbers below: keep one "
        "header row, and delete the others"
    )
    return message, len(starts) > 1


def find_column(names: Sequence[str], address: str) -> str | None:
    """The column that has a name or, if none has, a number, from 1. Case and blanks around names do not matter.

    >>> [find_column(["id", " Text ", "text"], address) for address in ("text", "TEXT", "2", "title")]
    ['text', ' Text ', ' Text ', None]
    """
    alike = [name for name in names if name.strip().casefold() == address.strip().casefold()]
    numbered = names[int(address) - 1 : int(address)] if address.isdecimal() else ()
    return next(iter([*sorted(alike, key=lambda name: name != address), *numbered]), None)


def _means_missing(value: str) -> bool:
    return is_missing(value) or value in MISSING_WORDS


def _filled(cells: Sequence[str]) -> int:
    return sum(bool(cell.strip()) for cell in cells)


def _is_sparse(cells: Sequence[str]) -> bool:
    """Whether half of several cells are empty, as in a title that a spreadsheet saves, or above merged columns."""
    return len(cells) > 2 and 2 * _filled(cells) <= len(cells)


def _may_be_header(cells: Sequence[str]) -> bool:
    """Whether the cells may be names: all different, none a number, and none with a leading space, which people write
    after a comma in a sentence."""
    names = [cell for cell in cells if cell]
    return len(set(names)) == len(names) and not any(_NUMBER.fullmatch(name) or name[0].isspace() for name in names)
