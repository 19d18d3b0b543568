"""JSON lines: an object per line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from bert_tables.errors import TableError
from bert_tables.files import text_fault

BEGINS_JSON = re.compile(rb'\s*(\[\s*)?\{\s*"')
"""The beginning of a file of JSON in any shape with an object."""
NOT_LINES = re.compile(rb'\s*(\[|"|\{([^\r\n]*[\[{:])?\s*[\r\n])')
"""The beginning of an array, a string, or an object that is written over several lines."""
OTHER_SHAPE = (
    "is JSON, but not an object per line; write it so: an array with `jq -c '.[]'`, an object over several lines with "
    '`jq -c .`, a table of pandas with to_json(..., orient="records", lines=True)'
)


def read_object(line: str, encoding: str) -> tuple[dict[str, Any], str | None, tuple[tuple[str, str], ...]]:
    """The object of a line, which a comma may follow, the fault of the line, and those of single cells; see `Row`."""
    fault = text_fault(line, encoding)
    try:
        cells = json.loads(line.rstrip().removesuffix(","))
    except (ValueError, RecursionError) as error:
        reason = f"the line is not JSON ({getattr(error, 'msg', error)}); write one object per line (jq -c .)"
        return {}, fault or reason, ()
    if not isinstance(cells, dict):
        return {}, "the line is JSON, but not an object", ()
    spelled = {name: json.dumps({name: cell}, ensure_ascii=False) for name, cell in cells.items()} if fault else {}
    return cells, None, tuple((name, why) for name, text in spelled.items() if (why := text_fault(text, encoding)))


def raise_error(error: TableError) -> Iterator[Any]:
    """An iterator that raises an error where the next line would be."""
    yield from ()
    raise error


def holds_columns(text: str) -> bool:
    """Whether a text is one object of lists and objects, which are columns, or hold the rows."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return bool(value) and isinstance(value, dict) and all(isinstance(cell, list | dict) for cell in value.values())
