"""The table of recipe fields in docs/recipe.md, from `training.recipe`; run this file to renew it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from bert_tables.dialect import Dialect
from training.recipe import recipe_keys

DOCUMENT = Path(__file__).parents[2] / "docs" / "recipe.md"
PLACE = re.compile(r"(?<=<!-- fields -->\n).*?(?=<!-- end of fields -->)", re.DOTALL)


def table() -> str:
    """Every key of a recipe with its default and its docstring."""
    lines = ["", "| key | default | what it does |", "|---|---|---|"]
    for key, field in recipe_keys():
        about = " ".join((field.description or "").split()).replace("|", "\\|")
        lines.append(f"| `{key}` | {_default(field)} | {about} |")
    return "\n".join([*lines, "", ""])


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    return "" if field.default in (None, (), Dialect()) else f"`{_toml(field.default)}`"


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(inner)}" for key, inner in value.items()) + " }"
    return str(value) if isinstance(value, (int, float)) else f'"{value}"'


if __name__ == "__main__":
    DOCUMENT.write_text(PLACE.sub(lambda _: table(), DOCUMENT.read_text()))
