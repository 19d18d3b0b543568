"""The folder that `classify` writes: the recipe, the run and the model."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from training.classify import toml
from training.corpus.fingerprint import file_hashes
from training.errors import RunError
from training.recipe import Recipe, load_recipe
from training.runtime.files import read_json
from training.runtime.lock import run_lock

RECIPE = "recipe.toml"
MODEL = "model"
"""Directory of the checkpoint."""


def check_output(output: Path, table: Path) -> None:
    """Raise RunError if the folder has other files than those of an earlier `classify`, if it is in the folder of the
    texts, or if its name begins with a dot, which no name of a run does."""
    if table in (output, *output.parents):
        raise RunError(f"{output} is in {table}, where it would be read as text: name another --output")
    if output.is_dir():
        names = sorted({path.name for path in output.iterdir()} - {"lock"})
        if names and RECIPE not in names:
            raise RunError(f"{output} holds other files ({', '.join(names[:3])}): name another --output")
    elif output.exists():
        raise RunError(f"{output} is a file: name another --output")
    if output.name.startswith("."):
        raise RunError(f"{output} is a hidden folder: name another --output")


def write_recipe(output: Path, values: Mapping[str, Any], command: str) -> Recipe:
    """Write the recipe, and load it. Nothing is written if the same recipe is there: then its run is continued.

    Args:
        values: Valid keys of a recipe.
        command: For the first line of the file.

    Raises:
        RunError: a classifier of another recipe or of other texts is there, or another process works in the folder.
    """
    file = output / RECIPE
    command = re.sub(r"[\x00-\x1f\x7f]", " ", command)  # a line break would end the comment
    text = f"# Written by: {command}\n# The same again: python -m training all {RECIPE}\n\n{toml.document(values)}"
    try:
        content = text.encode()
    except UnicodeEncodeError as error:
        raise RunError(f"{output}: the name of a file or folder is not UTF-8; rename it") from error
    with run_lock(output):
        different = list(_differences(_read(file), values)) if file.exists() else ["all"]
        others = [key for key in different if key != "finetune.minutes"]  # a larger budget trains further
        if others and (output / "finetune").exists():
            raise RunError(
                f"{output} has a classifier of another table or of other settings ({', '.join(others[:3])}): name "
                f"another --output, or delete {output}"
            )
        if different:
            new = file.with_suffix(".new")
            new.write_bytes(content)
            new.replace(file)
    recipe = load_recipe(str(file))
    _check_texts(recipe)
    return recipe


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):
        return {}


def _differences(before: Mapping[str, Any], now: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """The dotted keys whose values differ."""
    for key in sorted({*before, *now}):
        old, new = before.get(key), now.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from _differences(old, new, f"{prefix}{key}.")
        elif old != new:
            yield prefix + key


def _check_texts(recipe: Recipe) -> None:
    """Raise RunError if the run began with other texts in the same files."""
    record = read_json(recipe.folder / "labelled" / "fingerprint.json")
    if record is None or not (recipe.folder / "finetune").exists():
        return
    sources = (*recipe.finetune.train, *recipe.finetune.test)
    if record["files"] != file_hashes(sources, recipe.data, recipe.folder / "file-hashes.json"):
        raise RunError(
            f"the table has changed since {recipe.folder} was made: name another --output, or delete {recipe.folder}"
        )
