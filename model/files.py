"""Reading the files of a checkpoint directory, with errors that name the cause and the next step."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from model.errors import CheckpointError


def file_names(directory: Path) -> set[str]:
    """Names of the files in a directory, dangling links included.

    Raises:
        CheckpointError: it is not a directory, or cannot be listed.
    """
    try:
        return {file.name for file in directory.iterdir()}
    except PermissionError as error:
        raise CheckpointError(directory, _unreadable(error)) from None
    except (OSError, ValueError):  # ValueError: the name contains a NUL
        advice = "to download a model, run: hf download OWNER/NAME --local-dir DIRECTORY"
        raise CheckpointError(directory, f"is not a directory; {advice}") from None


def check_readable(file: Path) -> None:
    """Raise CheckpointError if a file is missing, cannot be read, or only names the place of its content."""
    try:
        with file.open("rb") as stream:
            start = stream.read(32)
    except FileNotFoundError:
        reason = "is missing"
        if file.is_symlink():
            reason = f"is a link to {file.readlink()}, which is missing; copy the directory again with cp -rL"
        raise CheckpointError(file, reason) from None
    except OSError as error:
        raise CheckpointError(file, _unreadable(error)) from None
    if start.startswith(b"version https://git-lfs"):
        raise CheckpointError(file, "is a Git LFS pointer, not the file itself; run git lfs pull in its directory")


def read_json(file: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises CheckpointError."""
    check_readable(file)
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(file, f"cannot be read as JSON: {error}") from None
    if not isinstance(values, dict):
        raise CheckpointError(file, "is not a JSON object")
    return values


def _unreadable(error: OSError) -> str:
    return f"cannot be read: {error.strerror}; check its permissions for the user id {os.geteuid()}"
