"""Reads rows of a file with columns, with a recipe's names: an adapter of `bert_tables`."""

from __future__ import annotations

import ast
import functools
import json
import logging
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from bert_tables import Row as TableRow
from bert_tables import Table, TableError, find_column
from bert_tables.cells import cell_label, cell_values, spelled
from training.recipe import CONTAINING, SourceConfig

MARKS = {"1": True, "1.0": True, "true": True, "0": False, "0.0": False, "false": False, "": False}
"""Spellings of 1 and 0; pandas writes 1.0 if another cell is empty."""

logger = logging.getLogger(__name__)

Row = tuple[str, Mapping[str, Any]]
"""The row's place for messages (`reviews.csv, line 7`), and its cells by column name."""


def columns_of(source: SourceConfig) -> tuple[str, ...]:
    """The columns that a recipe names."""
    group = source.group if source.group != CONTAINING else None
    return tuple(dict.fromkeys(filter(None, (*source.text, *source.label_columns, group, source.by))))


def path_columns(name: str) -> dict[str, str]:
    """The columns that the rows of a file have by its path: `folder`, the name of its folder, and the partitions of
    Hive and Spark. In the folder's name, only the value of a partition counts.

    >>> path_columns("reviews/lang=de/stars=5/part-0.parquet")
    {'folder': '5', 'lang': 'de', 'stars': '5'}
    """
    folder = Path(name).parent
    parts = (part.partition("=") for part in folder.parts)
    return {"folder": folder.name.rpartition("=")[2]} | {key: value for key, _, value in parts if value}


def sound_rows(table: Table, columns: Collection[str] = ()) -> Iterator[TableRow]:
    """The rows of a table. Raises TableError if one is broken, or a cell of one of the columns."""
    try:
        for row in table.rows_for(columns):
            if row.fault is not None:
                notes = "".join(f" ({warning})" for warning in table.warnings[:1])
                raise TableError(f"{table.place(row)}: {row.fault}{notes}")
            yield row
    finally:  # a source with a limit reads no further
        for warning in table.warnings:
            log_once(in_recipe(warning))


def read_rows(table: Table, source: SourceConfig) -> Iterator[Row]:
    """Rows in order, with their cells and `path_columns`. Cells are keyed by the names that the recipe uses, which may
    be numbers. The objects of JSON lines have their own names, which are compared in the same way.

    Raises:
        TableError: the header lacks a column, or a row is broken.
    """
    of_path, asked = path_columns(table.name), columns_of(source)
    own = [name for name in asked if name not in of_path or find_column(table.columns or (), name) is not None]
    names = {address: table.column(address) for address in own}
    of_path = {name: value for name, value in of_path.items() if name in asked}
    for row in sound_rows(table, {*names.values()}):
        if table.columns is None:
            alike = {name: find_column([*row.cells], name) for name in own if not name.isdecimal()}
            names = {new: old for new, old in alike.items() if old is not None}
        yield table.place(row), {**of_path, **row.cells, **{new: row.cells[old] for new, old in names.items()}}


def in_recipe(message: str) -> str:
    """A message of `bert_tables`, with the key of a source that states what the message asks for.

    >>> in_recipe("a.csv: state the delimiter")
    "a.csv: state the delimiter; in a recipe, the source's `table` states it"
    """
    key = "format" if "state the format" in message else "table"
    return f"{message}; in a recipe, the source's `{key}` states it" if re.search("state |add -", message) else message


def row_labels(cells: Mapping[str, Any], source: SourceConfig) -> str | tuple[str, ...] | None:
    """The labels of a row: those of its label column, or the names of the columns that have 1; None if all are empty.

    Raises:
        TableError: a cell is not a label, or one of several columns has a value other than 1 and 0.
    """
    if isinstance(source.label, str):
        return labels_value(cells.get(source.label), source.label, source.separator)
    marks = {name: cell_label(cells.get(name), name) or "" for name in source.label_columns}
    if wrong := [name for name, mark in marks.items() if mark.lower() not in MARKS]:
        remedy = "replace its values by 1 and 0, or write the labels into one cell, such as a;b"
        raise TableError(f"the field {wrong[0]!r} is {marks[wrong[0]]!r}; {remedy}, and set the source's `separator`")
    return tuple(name for name, mark in marks.items() if MARKS[mark.lower()]) if any(marks.values()) else None


def labels_value(value: Any, name: str, separator: str | None = None) -> str | tuple[str, ...] | None:
    """A cell as the labels of a text. It is a tuple if the cell is a list of several or of none, or a separator splits
    it.

    >>> [labels_value(cell, "label", ";") for cell in (1.0, ["new"], "['new', 2]", "new; used", "", "[]")]
    [('1',), ('new',), ('new', '2'), ('new', ' used'), None, ()]
    """
    values = cell_values(found := json_value(value), name)
    if len(values) > 1 or found == []:
        return tuple(map(spelled, values))
    text = spelled(values[0]) if values else None
    return tuple(text.split(separator)) if text and separator else text


def json_value(cell: Any) -> Any:
    """The list or object that a text holds, as JSON or Python write it, because CSV has no lists; else the cell itself.

    >>> [json_value(cell) for cell in ('["a", "b"]', "['a',2]", "[a]", 1)]
    [['a', 'b'], ['a', 2], '[a]', 1]

    Raises:
        TableError: it looks like a list or object in another notation.
    """
    text = cell.strip() if isinstance(cell, str) else ""
    if f"{text[:1]}{text[-1:]}" in ("[]", "{}"):
        with suppress(ValueError, RecursionError):
            return json.loads(text)
        with suppress(ValueError, SyntaxError, RecursionError, MemoryError):
            value = ast.literal_eval(text)
            if "".join(str(value).split()) == "".join(text.split()):  # numpy's ['a' 'b'] would be one string
                return value
        if text[0] == "{" or text[1] in "'\"":
            raise TableError(f'{text!r:.60} looks like a list; write lists as JSON does: ["a", "b"]')
    return cell


@functools.cache
def log_once(message: str) -> None:
    """Log a warning only the first time, because a stage may read a source several times."""
    logger.warning(message)
