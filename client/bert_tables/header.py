"""Finds columns by their names, and doubts whether the first row of a table is its only header."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence, Set

from bert_tables.delimited import Record
from bert_tables.dialect import LINE
from bert_tables.missing import is_missing, is_missing_word

_NUMBER = re.compile(r"[-+]?\d+([.,]\d+)*%?")
_MAX_EXTRA_HEADERS = 3
_MIN_ROWS = 3
"""Minimum number of rows with numbers for detecting a further header row above them."""


def doubt_of_header(found: Sequence[Record], columns: Set[str]) -> tuple[str | None, bool]:
    """A message if a table's first row seems to be no header, or not the only one; and whether this is sure.

    Args:
        found: The first records.
        columns: The columns that will be read, if they are known.
    """
    if title := _doubt_of_title(found, columns):
        return title, True
    rows = [row for row in found if any(map(str.strip, row.cells))]
    return _doubt_of_rows(rows[1:], rows[0].cells) if rows else (None, False)


def _doubt_of_title(found: Sequence[Record], columns: Set[str]) -> str | None:
    """A message if a table's first row looks like a line above its header: it has another number of cells than most
    rows after it, or half of its cells are empty. A first row that has the columns to read is the header. If these
    are unknown, the column is taken to be `LINE`.
    """
    rows = [record for record in found if record.fault is None and any(map(str.strip, record.cells))]
    if len(rows) < 3 or {*rows[0].cells} >= (columns or {LINE}):
        return None
    widths = [len(row.cells) for row in rows]
    count = Counter(widths[1:]).most_common(1)[0][0]
    index = next((i for i, row in enumerate(rows) if widths[i] == count and not _is_sparse(row.cells)), 0)
    fitting = widths[index + 1 :].count(count)
    is_likely = count > 1 and 2 * fitting > len(rows) - index - 1 and _may_be_header(rows[index].cells)
    if index == 0 or not is_likely:
        return None
    first, line = rows[0].number, rows[index].number
    return (
        f"the table seems to begin in line {line}, which has {count} cells as most rows after it, unlike line {first}: "
        f"give --first-line {line} (first_line in a recipe's `table`), or {first} if line {first} is the header"
    )


def _doubt_of_rows(rows: Sequence[Record], names: Sequence[str]) -> tuple[str | None, bool]:
    """A message if rows below the header look like further headers, because columns of numbers begin with words. And
    whether this is sure, because several columns do."""
    rows = [row for row in rows if row.fault is None and len(row.cells) == len(names)]
    kinds = ["".join(map(_kind, cells)) for cells in zip(*(row.cells for row in rows), strict=True)]
    found = {i: re.fullmatch("(w*)([nm]*)", kind) for i, kind in enumerate(kinds)}
    words = {i: len(match[1]) for i, match in found.items() if match and match[2].count("n") >= _MIN_ROWS}
    if len({*words.values()}) != 1 or not 0 < (count := min(words.values())) <= _MAX_EXTRA_HEADERS:
        return None, False
    column, last = names[min(words)] or str(min(words) + 1), rows[count - 1].number
    lines = f"line {last} looks like a" if count == 1 else f"lines {rows[0].number} to {last} look like"
    lines += f" further header row{'s' * (count > 1)}, because the column {column!r} has only numbers below: delete all"
    remedy = f"but one, or give --first-line {last} (first_line in a recipe's `table`), or 1 if these are rows"
    return f"{lines} {remedy}", len(words) > 1


def find_column(names: Sequence[str], address: str) -> str | None:
    """The column that has a name or, if none has, a number, from 1. Case, blanks around names and the Unicode form of
    their characters do not matter.

    >>> [find_column(["id", " Text ", "text"], address) for address in ("text", "TEXT", "2", "title")]
    ['text', ' Text ', ' Text ', None]
    """
    plain, *others = (unicodedata.normalize("NFC", name).strip().casefold() for name in (address, *names))
    alike = [name for name, other in zip(names, others, strict=True) if other == plain]
    numbered = names[int(address) - 1 : int(address)] if address.isdecimal() else ()
    return next(iter([*sorted(alike, key=lambda name: name != address), *numbered]), None)


def _kind(cell: str) -> str:
    """A letter: `n`umber, `m`issing or `w`ord."""
    return "m" if is_missing(cell) or is_missing_word(cell) else "n" if _NUMBER.fullmatch(cell.strip()) else "w"


def _is_sparse(cells: Sequence[str]) -> bool:
    """Whether half of several cells are empty, as in a title that a spreadsheet saves, or above merged columns."""
    return len(cells) > 2 and 2 * sum(bool(cell.strip()) for cell in cells) <= len(cells)


def _may_be_header(cells: Sequence[str]) -> bool:
    """Whether the cells may be names: all different, none a number, and none with a leading space, which people write
    after a comma in a sentence."""
    names = [cell for cell in cells if cell]
    return len(set(names)) == len(names) and not any(_NUMBER.fullmatch(name) or name[0].isspace() for name in names)
