"""The dialect of a table of text: stated, or detected if its first lines leave no doubt."""

from __future__ import annotations

import codecs
import csv
import itertools
import re
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

csv.field_size_limit(2**31 - 1)  # for the whole process; the default refuses cells over 128 KiB

LINE = "text"
"""The name of the only column of plain lines, and of a table that has one column and no header."""

DELIMITER_NAMES = {",": "comma", ";": "semicolon", "\t": "tab", "|": "vertical bar"}
"""Delimiters that can be detected, and their names."""
_ESCAPE_SEQUENCE = re.compile(r"\\(t|x[\da-fA-F]{2}|u[\da-fA-F]{4}|[0-3]?[0-7]{1,2})")
"""A character as programming languages write it, because a shell passes `'\\t'` as two characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """The dialect of a table.

    Raises:
        ValueError: a value cannot be used for a table.
    """

    first_line: int | None = None
    """The line at which the table begins, from 1, with its header if it has one. None: 1, or an error if it seems to be
    another."""
    header: bool | tuple[str, ...] = True
    """Whether the first row names the columns; or the names, for a table without a header. If False, the columns are
    named by their numbers, from 1."""
    delimiter: str | None = None
    """The character between cells. None: detected."""
    quote: str | None = None
    """The character around a cell that holds delimiters or line ends; `""` if a quotation mark is only text. None: `"`,
    or detected if the delimiter is a tab."""
    escape: str | None = None
    """The character before a quotation mark or delimiter that is only text, such as a backslash. None: there is
    none."""
    encoding: str | None = None
    """The encoding, such as `windows-1252`. None: UTF-8. A byte order mark takes precedence."""

    def __post_init__(self) -> None:
        spelled = "\\t" if self.delimiter == "tab" else self.delimiter or ""
        if _ESCAPE_SEQUENCE.fullmatch(spelled):
            object.__setattr__(self, "delimiter", spelled.encode().decode("unicode_escape"))
        quote = '"' if self.quote is None else self.quote or None
        given = {"delimiter": self.delimiter, "quote": quote, "escape": self.escape}
        for name, character in given.items():
            if character is not None and (len(character) != 1 or character in "\r\n\0"):
                raise ValueError(rf"{name} is {character!r}: give one character, such as ; or \t or \x01")
        stated = [character for character in given.values() if character is not None]
        if len(set(stated)) < len(stated):
            raise ValueError("delimiter, quote and escape must be three different characters")
        if self.first_line is not None and self.first_line < 1:
            raise ValueError(f"first_line is {self.first_line}: give a line, from 1")
        if not isinstance(self.header, bool) and len(set(self.header)) < max(1, len(self.header)):
            raise ValueError("header must be true, false, or the names of the columns, all different")
        if self.encoding is not None:
            try:
                codecs.lookup(self.encoding).decode("a".encode(self.encoding), "surrogateescape")
            except (LookupError, UnicodeError):
                raise ValueError(f"encoding {self.encoding!r} is unknown; try windows-1252 or utf-16") from None


def add_dialect_options(add: Callable[..., Any]) -> None:
    """Add the options that state a dialect. `add`: the `add_argument` of a parser."""
    add("--first-line", type=int, metavar="N", help="line at which the table begins, with its header [1]")
    add("--no-header", dest="header", action="store_false", help="the first row is data: columns have numbers")
    add("--delimiter", metavar="CHARACTER", help=r"character between cells, such as ; or \t or \x01 [detected]")
    add("--quote", metavar="CHARACTER", help='quotation mark around cells; "" for none ["]')
    add("--escape", metavar="CHARACTER", help="character before marks that are only text, such as \\ [none]")
    add("--encoding", metavar="NAME", help="encoding of the text [UTF-8, or by its byte order mark]")


def stated_dialect(given: Namespace) -> dict[str, Any]:
    """The arguments of `Dialect` that `add_dialect_options` has added."""
    return {name: getattr(given, name) for name in Dialect.__dataclass_fields__}


def detect(dialect: Dialect, default: str, beginning: Sequence[str]) -> tuple[Dialect, str | None]:
    """Fill in delimiter and quote from the first lines of a table.

    Args:
        default: The delimiter of the file's format.
        beginning: The first lines; the last one may be a part of a row.

    Returns:
        The dialect, and a note if the first lines suggest another delimiter than `default`.
    """
    delimiter, note = _delimiter(dialect, default, beginning)
    return replace(dialect, delimiter=delimiter, quote=_quote(dialect, delimiter, beginning)), note


def reader_options(dialect: Dialect) -> dict[str, Any]:
    """The options of `csv.reader` for a complete dialect."""
    options = {"delimiter": dialect.delimiter, "quotechar": dialect.quote or None, "escapechar": dialect.escape}
    return options | {"quoting": csv.QUOTE_MINIMAL if dialect.quote else csv.QUOTE_NONE}


def _delimiter(dialect: Dialect, default: str, beginning: Sequence[str]) -> tuple[str, str | None]:
    """The stated delimiter; or the default, unless only another one separates the first rows. A note is added if there
    is a doubt."""
    if dialect.delimiter is not None:
        return dialect.delimiter, None
    table = list(itertools.dropwhile(lambda line: not any(mark in line for mark in DELIMITER_NAMES), beginning))
    if table and beginning[0].strip() != LINE and max(map(table[0].count, DELIMITER_NAMES)) > 1:
        beginning = table  # the lines above are a title, which is refused later
    fits = {candidate: _fit(dialect, candidate, beginning) for candidate in DELIMITER_NAMES}
    share = fits.pop(default)
    others = [candidate for candidate, fit in fits.items() if fit > (0.9 if share else 0.5)]
    if not others:
        return default, None
    usual, other = DELIMITER_NAMES[default], DELIMITER_NAMES[others[0]]
    if share > 0.5 or len(others) > 1:
        return default, f"the {other} could be the delimiter as well as the {usual}: state --delimiter"
    return others[0], f"the {other} is read as the delimiter: it fits the rows, the {usual} does not"


def _fit(dialect: Dialect, delimiter: str, beginning: Sequence[str]) -> float:
    """The share of rows that a delimiter splits into as many cells as the first row; 0 if it does not split that."""
    chosen = replace(dialect, delimiter=delimiter, quote=_quote(dialect, delimiter, beginning))
    others = "".join(re.escape(other) for other in DELIMITER_NAMES if other != delimiter)
    has_split_quotes = re.compile(f'["][{others}]|[{others}]["]')
    rows = [row for row in csv.reader(beginning, **reader_options(chosen)) if row]
    whole = [len(row) == len(rows[0]) > 1 and not has_split_quotes.search("\n".join(row)) for row in rows]
    return sum(whole) / max(1, len(whole))


def _quote(dialect: Dialect, delimiter: str, beginning: Sequence[str]) -> str:
    """The quotation mark, or none for a TSV file like GLUE's, in which the marks are only text.

    Each of its lines has the same number of cells, at least two, and some cell begins with a mark that does not enclose
    it.
    """
    if dialect.quote is not None or delimiter != "\t":
        return '"' if dialect.quote is None else dialect.quote
    rows = [line.rstrip("\r\n").split("\t") for line in beginning if line.strip(" \r\n")]
    escape = re.escape(dialect.escape or "\0")
    enclosed = re.compile(rf'"(?:[^"{escape}]|""|{escape}.)*"')
    stray = any(cell.startswith('"') and not enclosed.fullmatch(cell) for row in rows for cell in row)
    widths = {len(row) for row in rows}
    return "" if stray and len(widths) == 1 and widths != {1} else '"'
