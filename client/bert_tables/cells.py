"""Values of cells, for texts, labels and groups alike."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

from bert_tables.errors import TableError
from bert_tables.missing import is_missing


def cell_values(value: Any, name: str) -> list[Any]:
    """The values of a cell, without missing ones: the elements of a list, or else the cell itself.

    >>> [cell_values(cell, "label") for cell in ("pos", ["pos"], [25, 14], [], None, [" ", 1])]
    [['pos'], ['pos'], [25, 14], [], [], [1]]

    Args:
        name: The column, for messages.

    Raises:
        TableError: a value is an object, a list in a list, bytes, or not a finite number.
    """
    values = [item for item in (value if isinstance(value, list) else [value]) if not is_missing(item)]
    for item in values:
        if isinstance(item, dict | list | tuple):
            kind = "an object" if isinstance(item, dict) else "a list in a list"
            raise TableError(f"the field {name!r} is {kind}; write its value or list into the cell")
        if isinstance(item, bytes):
            raise TableError(f"the field {name!r} is bytes that are not UTF-8; write it as text")
        if isinstance(item, float) and not math.isfinite(item):
            raise TableError(f"the field {name!r} is {item}; write a finite number, or empty the cell")
    return values


def cell_label(value: Any, name: str) -> str | None:
    """A cell as one label or group, without blanks around it; None if it is missing.

    Truth values and numbers are spelled as in JSON, but whole numbers without a fraction: pandas writes 1 as 1.0 if
    another row has no label.

    >>> [cell_label(cell, "label") for cell in (1.0, 2.5, True, " pos ", ["pos"], float("nan"), [])]
    ['1', '2.5', 'true', 'pos', 'pos', None, None]

    Raises:
        TableError: see `cell_values`; also for a list of several elements.
    """
    values = cell_values(value, name)
    if len(values) > 1:
        raise TableError(f"the field {name!r} is a list of {len(values)} elements, not one value")
    return spelled(values[0]) if values else None


def cell_text(value: Any) -> str | None:
    """A cell as a text; empty if it is missing, and None if it is not text, such as a number. The elements of a list
    are joined by line ends (paragraphs) if one of them has a blank, else by blanks (tokens).

    >>> [cell_text(cell) for cell in ("good", ["a", "good", "film"], ["One text.", "Two."], None, 5)]
    ['good', 'a good film', 'One text.\\nTwo.', '', None]
    """
    if isinstance(value, str):  # as nearly all are
        return "" if is_missing(value) else value
    with suppress(TableError):
        values = cell_values(value, "")
        if all(isinstance(item, str) for item in values):
            return ("\n" if any(" " in item for item in values) else " ").join(values)
    return None


def spelled(value: Any) -> str:
    """One of `cell_values` as a label."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).strip()
