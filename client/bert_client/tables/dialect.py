"""How a table of text is written: stated, or detected from its first lines where these leave no doubt."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

_NAMES = {",": "comma", ";": "semicolon", "\t": "tab", "|": "vertical bar"}
"""Delimiters that are detected."""
_SPELLED = {"\\t": "\t", "tab": "\t"}
"""A shell passes `'\\t'` as two characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """How a table is written. Where a value is None, it is detected.

    Raises:
        ValueError: a value cannot be one of a table.
    """

    header: bool | tuple[str, ...] = True
    """Whether the first row names the columns. Without a header the names can be given; else they are the
    columns' numbers, from 1."""
    delimiter: str | None = None
    """One character."""
    quote: str | None = None
    """The character around a cell that holds delimiters or line ends; `""` if a quotation mark is only text."""
    escape: str | None = None
    """A character before a quotation mark or delimiter that is only text, such as a backslash."""
    encoding: str | None = None
    """Such as `windows-1252`; a byte order mark goes before it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "delimiter", _SPELLED.get(self.delimiter or "", self.delimiter))
        quote = '"' if self.quote is None else self.quote or None
        given = {"delimiter": self.delimiter, "quote": quote, "escape": self.escape}
        for name, character in given.items():
            if character is not None and (len(character) != 1 or character in "\r\n\0"):
                raise ValueError(f"{name} is {character!r}: give one character")
        stated = [character for character in given.values() if character is not None]
        if len(set(stated)) < len(stated):
            raise ValueError("delimiter, quote and escape must be three different characters")
        if not isinstance(self.header, bool) and len(set(self.header)) < max(1, len(self.header)):
            raise ValueError("header must be true, false, or the names of the columns, all different")
        if self.encoding is not None:
            try:
                "a".encode(self.encoding)
            except LookupError:
                raise ValueError(f"encoding {self.encoding!r} is unknown; try windows-1252 or utf-16") from None

    @property
    def is_table(self) -> bool:
        """Whether something is stated that plain lines do not have."""
        return replace(self, encoding=None) != Dialect()


def detect(dialect: Dialect, default: str, beginning: Sequence[str]) -> tuple[Dialect, str | None]:
    """Fill in delimiter and quote from the first lines of a table.

    Args:
        default: The delimiter of the file's format.
        beginning: The first lines; the last one may be a part of a row.

    Returns:
        The dialect, and a note if the first lines tell of another delimiter than `default`.
    """
    delimiter, note = dialect.delimiter or default, None
    if dialect.delimiter is None:
        delimiter, note = _delimiter(dialect, default, beginning)
    return replace(dialect, delimiter=delimiter, quote=_quote(dialect, delimiter, beginning)), note


def reader_options(dialect: Dialect) -> dict[str, Any]:
    """A complete dialect as options of `csv.reader`."""
    quoting = csv.QUOTE_MINIMAL if dialect.quote else csv.QUOTE_NONE
    return {
        "delimiter": dialect.delimiter,
        "quotechar": dialect.quote or None,
        "escapechar": dialect.escape,
        "quoting": quoting,
    }


def _delimiter(dialect: Dialect, default: str, beginning: Sequence[str]) -> tuple[str, str | None]:
    """The default, unless only another one separates the first rows; and a note if there is a doubt."""
    fits = {candidate: _fit(dialect, candidate, beginning) for candidate in _NAMES}
    in_header, share = fits.pop(default)
    others = [candidate for candidate, (in_first, _) in fits.items() if in_first]
    if in_header and share > 0.5:
        others = [candidate for candidate in others if fits[candidate][1] > 0.9 and share < 1]
        found = False
    else:
        others = [candidate for candidate in others if fits[candidate][1] > (0.9 if in_header else 0.5)]
        found = len(others) == 1
    if not others:
        return default, None
    other = _NAMES[others[0]]
    if not found:
        return default, f"the {other} could be the delimiter as well as the {_NAMES[default]}: state it"
    if in_header:
        return others[0], f"the {other} separates its columns, not the {_NAMES[default]}: read so"
    return others[0], f"the header has no {_NAMES[default]} but a {other}: read as the delimiter"


def _fit(dialect: Dialect, delimiter: str, beginning: Sequence[str]) -> tuple[bool, float]:
    """Whether a delimiter occurs in the first row, and the share of rows that it splits into as many cells."""
    chosen = replace(dialect, delimiter=delimiter, quote=_quote(dialect, delimiter, beginning))
    others = "".join(re.escape(other) for other in _NAMES if other != delimiter)
    torn = re.compile(f'["][{others}]|[{others}]["]')
    rows = [row for row in csv.reader(beginning, **reader_options(chosen)) if row]
    if not rows:
        return False, 0.0
    whole = [len(row) == len(rows[0]) and not torn.search("\n".join(row)) for row in rows]
    return len(rows[0]) > 1, sum(whole) / len(whole)


def _quote(dialect: Dialect, delimiter: str, beginning: Sequence[str]) -> str:
    """The quotation mark, or none for a file whose marks are only text: some cell begins with one that does not
    enclose it, where each line is a row. GLUE's files are so, unlike what a spreadsheet writes."""
    if dialect.quote is not None or delimiter != "\t":
        return '"' if dialect.quote is None else dialect.quote
    rows = [line.rstrip("\r\n").split("\t") for line in beginning]
    stray = any(cell.startswith('"') and not _ENCLOSED.fullmatch(cell) for row in rows for cell in row)
    regular = len({len(row) for row in rows}) == 1
    if not (stray and regular):
        return '"'
    try:
        list(csv.reader(beginning, delimiter="\t", strict=True))
    except csv.Error:
        return ""
    return '"' if len(rows[0]) == 1 else ""


_ENCLOSED = re.compile(r'"(?:[^"]|"")*"')
