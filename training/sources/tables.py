"""Rows of a file with columns, in the words of a recipe: an adapter of `bert_tables`."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bert_tables import TableError, is_missing, open_table
from bert_tables.files import Progress
from training.recipe import SourceConfig

logger = logging.getLogger(__name__)

Row = tuple[str, Mapping[str, Any]]
"""Where it stands, for messages (`reviews.csv, line 7`), and the cells by the columns' names."""


def columns_of(source: SourceConfig) -> tuple[str, ...]:
    """The columns that a recipe names."""
    return tuple(dict.fromkeys(filter(None, (*source.text, source.label, source.group, source.by))))


def read_rows(file: Path, form: str | None, source: SourceConfig, progress: Progress | None) -> Iterator[Row]:
    """Rows in order, their cells by the names that the recipe uses, which may be numbers. All cells, if the source
    names no column.

    Raises:
        TableError: the file cannot be read, its header lacks a column, or a row is broken.
    """
    asked = columns_of(source)
    with open_table(file, format=form, dialect=source.table, columns=asked or None, progress=progress) as table:
        place = f"{file}, {'row' if table.format == 'parquet' else 'line'}"
        renamed = {address: name for address in asked if (name := table.column(address)) != address}
        try:
            for row in table.rows:
                if row.fault is not None:
                    notes = "".join(f" ({warning})" for warning in table.warnings[:1])
                    raise TableError(f"{place} {row.number}: {row.fault}{notes}")
                yield f"{place} {row.number}", row.cells | {new: row.cells[old] for new, old in renamed.items()}
        finally:  # a source with a limit reads no further
            for warning in table.warnings:
                log_once(in_recipe(warning))


def in_recipe(message: str) -> str:
    """A message of `bert_tables`, and the key of a source that states what the message asks for.

    >>> in_recipe("a.csv: state the delimiter")
    "a.csv: state the delimiter; the source's `table` states it"
    """
    key = "format" if "state the format" in message else "table"
    return f"{message}; the source's `{key}` states it" if "state " in message else message


def label_value(value: Any) -> str | None:
    """A cell as a label or group, without blanks around it; None if there is none.

    >>> label_value(1.0), label_value(True), label_value(" pos "), label_value(float("nan"))
    ('1', 'true', 'pos', None)
    """
    if is_missing(value):
        return None
    if isinstance(value, bool):  # as TOML and JSON write it
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():  # pandas writes 1 as 1.0 if another row has no label
        return str(int(value))
    return str(value).strip() or None


def labels_value(value: Any, separator: str | None = None) -> str | tuple[str, ...] | None:
    """A cell as the labels of a text: a tuple if it is a list, or if a separator splits it.

    >>> labels_value(1.0), labels_value(["new", 2]), labels_value("new; used", ";"), labels_value("", ";")
    ('1', ('new', '2'), ('new', ' used'), None)
    """
    if isinstance(value, list):
        return tuple(label_value(item) or "" for item in value)
    text = label_value(value)
    return tuple(text.split(separator)) if text and separator else text


def text_value(value: Any) -> str | None:
    """A cell as text, empty if it is missing; None if it is something else, such as a number.

    >>> text_value("good"), text_value(["One.", "Two."]), text_value(None), text_value(5)
    ('good', 'One.\\nTwo.', '', None)
    """
    if is_missing(value):
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return "\n".join(value)
    return None


@functools.cache
def log_once(message: str) -> None:
    """Log a warning the first time only, because a stage may read a source several times."""
    logger.warning(message)
