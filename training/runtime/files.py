"""Writes files atomically."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from model.files import system_remedy
from training.errors import RunError

DONE = "done.json"
"""File that marks a complete result, and records what it has."""

FULL_BYTES = 2**20
"""A disk with less free space counts as full."""


def read_json(file: Path) -> Any:
    """Contents of a JSON file; None if it is missing or incomplete."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def write_json(file: Path, values: Any) -> None:
    """Write a JSON file atomically. Raises OSError with the file's name."""
    part = file.with_suffix(".tmp")
    try:
        part.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        error.filename = str(file)  # the error of a full disk names no file
        raise
    part.replace(file)


def reason(error: Exception, folder: Path) -> str:
    """The reason why a file cannot be written to a folder. Torch and NumPy do not say that the disk is full."""
    with suppress(OSError):
        if shutil.disk_usage(folder).free < FULL_BYTES:
            return f"its disk is full ({error})"
    return f"{error}{system_remedy(error)}"


def write_tensors(file: Path, state: dict[str, Any]) -> None:
    """Write a file for `torch.load` atomically; it also survives a power failure.

    Raises:
        RunError: the disk is full or the folder is read-only; the previous file is unchanged.
    """
    import torch  # takes seconds, and the workers of `prepare` do not need it

    part = file.with_suffix(".part")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as stream:
            torch.save(state, stream)
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(file)
    except (OSError, RuntimeError) as error:
        raise RunError(
            f"{file}: cannot write the checkpoint: {reason(error, file.parent)}. Earlier checkpoints are "
            "unchanged: free some space and run the same command again"
        ) from error
    finally:
        with suppress(OSError):
            part.unlink()
