"""Writes values as TOML, as far as recipes need it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any


def inline(value: Any) -> str:
    """A value in one line.

    >>> print(inline({"name": "a \\"b\\"", "text": ["title", "body"], "1.0": True}))
    { name = "a \\"b\\"", text = ["title", "body"], "1.0" = true }
    """
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # all else is the same in TOML
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(inline, value))}]"
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(key)} = {inline(each)}" for key, each in value.items()) + " }"
    return str(value)


def document(values: Mapping[str, Any]) -> str:
    """A document whose tables have headers."""
    return "\n".join(_table(values, "")) + "\n"


def _table(values: Mapping[str, Any], prefix: str) -> Iterator[str]:
    tables = {key: value for key, value in values.items() if isinstance(value, Mapping)}
    for key, value in values.items():
        if key not in tables:
            yield f"{_key(key)} = {inline(value)}"
    for key, value in tables.items():
        yield from ("", f"[{prefix}{_key(key)}]")
        yield from _table(value, f"{prefix}{_key(key)}.")


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else inline(key)
