"""The command line of `classify`: its options, and the overrides of the recipe."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bert_tables import TableError
from bert_tables.dialect import add_dialect_options, stated_dialect
from training.errors import RecipeError, SourceError
from training.recipe import MULTI_LABEL, SourceConfig, apply_override, parse_recipe
from training.sources.files import FORMATS
from training.sources.tables import in_recipe

_CHOSEN = (
    *("name.", "run.", "data.", "export.", "finetune.train.", "finetune.test."),
    *("source.path.", "source.hub.", "source.text.", "source.label.", "source.format."),
)
"""Keys that `classify` writes itself, or that have an option."""

_KEYS = {
    "set text, label, group or by of the source": "state --text, --label, source.group or source.by for",
    "; in a recipe, the source's `table` states it": "",
    "in a recipe, the source's `format` states it": "--format states it",
    "set the source's `format`": "add --format",
    "set the source's `separator`": "add --separator",
    "set `format`": "add --format",
}
"""Words of messages that name a key of a source, and those that name the option of `classify` in its place."""

Values = dict[str, Any]
"""A recipe, or a table of it, as TOML gives it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `classify`. A table's dialect has the same options as in `bert`."""
    add = parser.add_argument
    add("table", metavar="TABLE", help="CSV, TSV, JSONL, Parquet or fastText file; or a folder with a folder per label")
    add("--text", metavar="COLUMNS", help="columns with the text, such as title,body [the one that fits]")
    add("--label", metavar="COLUMNS", help="column with the label, or several with 1 and 0 [the one that fits]")
    add("--separator", metavar="MARK", help="what separates the labels of a cell, such as '#' [; | or , if it fits]")
    add("--output", metavar="FOLDER", required=True, help="folder for the model, the report and the recipe")
    add("--test", metavar="TABLE", help="table with the same columns for the report [a part of TABLE]")
    add("--minutes", type=float, metavar="N", help="minutes for the whole command, about [by the number of texts]")
    add(
        "--format", choices=["auto", *FORMATS], default="auto", help="format of the table [by its name and first bytes]"
    )
    add_dialect_options(add)


def absolute(path: str) -> Path:
    """The absolute path. The shell leaves a `~` in quotation marks; it is the home folder."""
    return Path(os.path.abspath(path if os.path.exists(path) else os.path.expanduser(path)))  # noqa: PTH100, PTH110, PTH111


def stated_values(overrides: Sequence[str]) -> dict[str, Any]:
    """The overrides as tables; `source` and `finetune` always exist.

    Raises:
        RecipeError: an override is not of the form key=value, or `classify` chooses its key.
    """
    values: dict[str, Any] = {"source": {}, "finetune": {}}
    for override in overrides:
        key = override.partition("=")[0]
        if f"{key}.".startswith(_CHOSEN):
            raise RecipeError(
                f"{override}: classify chooses {key} itself or has an option for it; leave it out, or write a recipe"
            )
        apply_override(values, override)
    if pretrained := values["finetune"].get("pretrained"):
        values["finetune"]["pretrained"] = str(absolute(pretrained))
    return values


def source_of(given: argparse.Namespace, stated: Values) -> SourceConfig:
    """The table as a source, without its columns. Raises RecipeError if an override makes no sense."""
    source = {"path": str(absolute(given.table)), "format": given.format, "separator": given.separator}
    source["table"] = stated_dialect(given)
    source |= ({"text": given.text.split(",")} if given.text else {}) | stated["source"]  # `read` needs two texts
    finetune = {key: value for key, value in stated["finetune"].items() if key not in ("labels", "problem_type")}
    finetune |= {"problem_type": MULTI_LABEL} if source["separator"] else {}
    others = {key: value for key, value in stated.items() if key != "source"}
    recipe = parse_recipe(others | {"name": "classify", "finetune": finetune | {"train": [source]}}, "command line")
    return recipe.finetune.train[0]


def as_options(error: SourceError | TableError) -> str:
    """The message of an error about a recipe's source, with the options of `classify` in place of keys."""
    message = str(error) if isinstance(error, SourceError) else in_recipe(str(error))
    for key, option in _KEYS.items():
        message = message.replace(key, option)
    return message
