"""Reading the files of a checkpoint directory, with errors that name the cause and the next step."""

from __future__ import annotations

import errno
import json
import os
import re
from pathlib import Path
from typing import Any

from model.errors import CheckpointError

_REMEDIES = {
    errno.EACCES: f"check its permissions for the user id {os.geteuid()}",
    errno.EPERM: f"check its permissions for the user id {os.geteuid()}",
    errno.ENODEV: "its file system cannot map files into memory; copy it to a local disk",
    errno.ENOSPC: "free some space on its disk",
    errno.EDQUOT: "free some of the space that this user may use",
    errno.EROFS: "its file system is read-only; choose another folder",
    errno.EMFILE: "this process may not open more files; raise its limit (ulimit -n 65536)",
    errno.EIO: "its disk or network file system fails; copy it to a local disk",
    errno.ESTALE: "its network file system has lost it; run the command again",
}


def system_remedy(error: Exception) -> str:
    """The remedy for an error of the operating system, after `; `; "" if none is known. Errors of Rust libraries have
    the number only in their text."""
    written = re.search(r"\(os error (\d+)\)", str(error))
    code = int(written[1]) if written else getattr(error, "errno", None)
    return f"; {_REMEDIES[code]}" if code in _REMEDIES else ""


def file_names(directory: Path) -> set[str]:
    """Names of the files in a directory, dangling links included.

    Raises:
        CheckpointError: it is not a directory, or cannot be listed.
    """
    try:
        return {file.name for file in directory.iterdir()}
    except (OSError, ValueError) as error:  # ValueError: the name contains a NUL
        if isinstance(error, OSError) and system_remedy(error):
            raise CheckpointError(directory, _unreadable(error)) from None
        advice = "to download a model, run: hf download OWNER/NAME --local-dir DIRECTORY"
        if isinstance(error, NotADirectoryError):
            advice = "give the directory of the model, which has config.json"
        raise CheckpointError(directory, f"is not a directory; {advice}") from None


def check_readable(file: Path) -> None:
    """Raise CheckpointError if a file is missing, cannot be read, or is a Git LFS pointer."""
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
    """The JSON object in a file, with or without a byte order mark. Raises CheckpointError."""
    check_readable(file)
    try:
        values = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise CheckpointError(file, f"cannot be read as JSON: {error}") from None
    if not isinstance(values, dict):
        raise CheckpointError(file, "is not a JSON object")
    return values


def _unreadable(error: OSError) -> str:
    return f"cannot be read: {error.strerror}{system_remedy(error)}"
