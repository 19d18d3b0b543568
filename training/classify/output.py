"""The folder that `classify` writes: the recipe, the run and the model."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from training.classify import toml
from training.errors import RunError
from training.recipe import Recipe, load_recipe
from training.runtime.lock import run_lock

RECIPE = "recipe.toml"
MODEL = "model"
"""Directory of the checkpoint."""


def check_output(output: Path, table: Path) -> None:
    """Raise RunError if an output folder cannot be used.

    It must not hold files other than those of an earlier `classify`, or be in the folder of the texts. Its name must
    not begin with a dot, because a run's name does not.
    """
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
    """Write the recipe, and load it.

    Args:
        values: Valid keys of a recipe.
        command: The command line, for the first line of the file.

    Raises:
        RunError: another process works in the folder.
    """
    file = output / RECIPE
    command = re.sub(r"[\x00-\x1f\x7f]", " ", command)  # a line break would end the comment
    text = f"# Written by: {command}\n# The same again: bert-train all {RECIPE}\n\n{toml.document(values)}"
    try:
        content = text.encode()
    except UnicodeEncodeError as error:
        raise RunError(f"{output}: the name of a file or folder is not UTF-8; rename it") from error
    with run_lock(output):
        new = file.with_suffix(".new")
        new.write_bytes(content)
        new.replace(file)
    return load_recipe(str(file))
