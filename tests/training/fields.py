"""The table of recipe keys in docs/recipe.md, from `training.recipe`; run this file to renew it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from training.recipe import Recipe, SourceConfig

DOCUMENT = Path(__file__).parents[2] / "docs" / "recipe.md"
PLACE = re.compile(r"(?<=<!-- fields -->\n).*?(?=<!-- end of fields -->)", re.DOTALL)


def table() -> str:
    """Every key of a recipe with its default and its docstring, as Markdown."""
    lines = ["", "| key | default | what it does |", "|---|---|---|"]
    lines += [*_rows(Recipe), *_rows(SourceConfig, "source."), "", ""]
    return "\n".join(lines)


def _rows(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        if name in ("loaded", "overrides"):  # set by load_recipe
            continue
        table = _table_of(field.annotation)
        if table is None or table is not field.annotation:  # a value, or a table that may be left out
            about = " ".join((field.description or "").split()).replace("|", "\\|")
            yield f"| `{prefix}{name}` | {_default(field)} | {about} |"
        if table is not None:
            yield from _rows(table, f"{prefix}{name}.")


def _table_of(annotation: Any) -> type[BaseModel] | None:
    """The table that a key holds, required or optional; None if it holds a value."""
    kinds = [annotation, *(get_args(annotation) if get_origin(annotation) is UnionType else ())]
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    return "" if field.default in (None, ()) else f"`{_toml(field.default)}`"


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
