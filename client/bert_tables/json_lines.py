"""JSON lines: an object per line. Also recognises other shapes of JSON, for messages."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Set
from typing import Any

from bert_tables.dialect import LINE
from bert_tables.errors import TableError
from bert_tables.files import text_fault

NOT_LINES = re.compile(r"\s*(?:\[\s*\{|\{\s*[\r\n])")
"""The beginning of an array of objects, or of an object that is written over several lines."""
_WHOLE_CHARACTERS = 2**20
"""An object over several lines with more characters is not parsed, so its message is less exact."""
_PANDAS = 'write one object per line, as pandas does with to_json(..., orient="records", lines=True)'
_ELEMENTS = {
    "{": ("", "write one object per line (jq -c '.[]')"),
    '"': (" of strings", "write one object per line (jq -c '.[] | {text: .}')"),
    "[": (" of arrays", "write one object per line with a name for each value (jq -c '.[] | {text: .[0]}')"),
}


def read_object(line: str, encoding: str) -> tuple[dict[str, Any], str | None]:
    """The object of a line, which a comma may follow. If there is none, an empty one and the line's fault."""
    fault = text_fault(line, encoding)
    text = line.encode("utf-8", "replace").decode() if fault else line
    try:
        cells = json.loads(text)
    except json.JSONDecodeError as error:
        rest = text[error.pos :].strip() if error.msg == "Extra data" else ""
        if rest == ",":
            return read_object(text[: error.pos], encoding)[0], fault
        message = f"the line is not JSON ({error.msg}, character {error.pos})"
        if rest.lstrip(", ").startswith("{"):
            message = "the line has several objects; write one object per line (jq -c .)"
        return {}, fault or message
    except (ValueError, RecursionError) as error:
        return {}, fault or f"the line is not JSON ({error})"
    if not isinstance(cells, dict):
        return {}, "the line is JSON, but not an object"
    return cells, fault


def name_shape(start: str, lines: Iterator[str], columns: Set[str]) -> tuple[str | None, Iterator[str]]:
    """The shape of a file that is not JSON lines with its remedy, or None; and all lines.

    A second line is read only if the first one leaves a doubt, because the lines of a pipe may come slowly.

    Args:
        start: The first characters of the file. They show the shape of an array, which may be one long line.
        columns: The columns that will be read, if they are known. An object with a text in one of them is a row.
    """
    if start.lstrip().startswith("["):
        return _array_shape(start), lines
    taken: list[str] = []
    try:
        shape = _shape_of_lines(taken, lines, columns)
    except TableError as error:  # the file is cut off: rows before that place come first
        return None, itertools.chain(taken, raise_error(error))
    return shape, itertools.chain(taken, lines)


def raise_error(error: TableError) -> Iterator[str]:
    """An iterator that raises an error where the next line would be."""
    yield from ()
    raise error


def is_object(line: str) -> bool:
    """Whether a line is a JSON object."""
    try:
        return line.startswith("{") and isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _shape_of_lines(taken: list[str], lines: Iterator[str], columns: Set[str]) -> str | None:
    """The shape. The lines that were read to find it are in `taken`."""
    first = _next_text(taken, lines).strip()
    try:
        value = json.loads(first)
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, str):
        return "has a JSON string per line; write an object per line (jq -c '{text: .}')"
    if isinstance(value, dict):
        shape = _object_shape(value, columns)
        return None if shape and _next_text(taken, lines) else shape  # several objects are rows
    if not first.startswith("{"):
        return None
    size = len(first)
    while size <= _WHOLE_CHARACTERS and (line := next(lines, "")):
        taken.append(line)
        size += len(line)
        if first != "{" and is_object(line):  # a row below a broken row
            break
    return _spread_shape("".join(taken).strip(), first, columns)


def _next_text(taken: list[str], lines: Iterator[str]) -> str:
    """The next line that is not blank; empty at the end of the file."""
    for line in lines:
        taken.append(line)
        if not line.isspace():
            return line
    return ""


def _array_shape(start: str) -> str:
    first, _, rest = start.strip().partition("\n")
    try:
        is_whole = bool(json.loads(first))
    except (ValueError, RecursionError):
        is_whole = False
    opened = "".join(start.split())[1:2]
    if is_whole and opened != "{" and rest.lstrip().startswith("["):
        return "has a JSON array per line; write an object with a name for each value (jq -c '{text: .[0]}')"
    kind, remedy = _ELEMENTS.get(opened or "{", (" without objects", "give a table with texts"))
    return f"is one JSON array{kind}, not an object per line; {remedy}"


def _object_shape(value: dict[str, Any], columns: Set[str]) -> str | None:
    """The shape of a file with this one object, or None if it may be a row. A row has a text in a column to read or, if
    these are not known, the field `text` or a text with blanks."""
    texts = {name: cell for name, cell in value.items() if isinstance(cell, str)}
    if texts.keys() & (columns or {LINE}) or (not columns and any(" " in text for text in texts.values())):
        return None
    inside = [name for name, cell in value.items() if cell and isinstance(cell, list) and isinstance(cell[0], dict)]
    if inside:
        shown, key = ", ".join(map(repr, inside)), json.dumps(inside[0], ensure_ascii=False)
        return f"is one object, with the rows in {shown}; write one object per line (jq -c '.[{key}][]')"
    if value and all(isinstance(cell, list | dict) for cell in value.values()):
        return f"is one object of columns; {_PANDAS}"
    return None


def _spread_shape(text: str, first: str, columns: Set[str]) -> str | None:
    """The shape of a file whose first line is not JSON, but begins an object."""
    several = "has objects that are written over several lines; write one object per line (jq -c .)"
    try:
        value, end = json.JSONDecoder().raw_decode(text)
    except json.JSONDecodeError as error:
        is_cut = len(text) > max(_WHOLE_CHARACTERS, len(first)) and error.pos >= len(text)
        return several if NOT_LINES.match(text) or is_cut else None
    except (ValueError, RecursionError):
        return None
    if end <= len(first):  # the line has an object, and more
        return None
    return (_object_shape(value, columns) if end == len(text) else None) or several
