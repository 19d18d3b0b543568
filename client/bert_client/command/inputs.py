"""The files of a job with several inputs or folders, and their output files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from bert_client.command.output import has_output_suffix
from bert_tables import format_of
from bert_tables.files import COMPRESSION_SUFFIXES


def writes_folder(names: Sequence[str], output: str) -> bool:
    """Whether the output is a folder with a file for each input."""
    return len(names) > 1 or os.path.isdir(names[0]) or os.path.isdir(output) or output.endswith(os.sep)  # noqa: PTH112


def input_files(names: Sequence[str], output: str) -> list[tuple[str, Path]]:
    """Each real file once, with its path within the output folder, without the suffix.

    Raises:
        ValueError: the output cannot be a folder, or is within a folder that is read; a folder has no data files.
    """
    if output == "-" or has_output_suffix(output) or "-" in names:
        raise ValueError("several files or a folder need a folder as --output; standard input is given alone")
    found: dict[str, tuple[str, Path]] = {}
    for name in names:
        folder = Path(name)
        is_folder = folder.is_dir()
        if is_folder and Path(output).resolve().is_relative_to(folder.resolve()):
            raise ValueError(f"the output {output} is within {name}, where it would be read: write to another folder")
        files = _data_files(folder) if is_folder else [folder]
        if not files:
            raise ValueError(f"{name}: has no file whose suffix is that of a table or text")
        for file in files:
            path = file.relative_to(folder) if is_folder else Path(file.name)
            found.setdefault(os.path.realpath(file), (str(file), _without_suffix(path)))
    return list(found.values())


def _data_files(folder: Path) -> list[Path]:
    """The files in a folder and its subfolders whose suffix is that of a format, without hidden ones."""
    return [
        file
        for file in sorted(folder.rglob("*"))
        if format_of(file.name)
        and file.is_file()
        and not any(part.startswith(".") for part in file.relative_to(folder).parts)
    ]


def _without_suffix(path: Path) -> Path:
    bare = path.with_suffix("") if path.suffix.lower() in COMPRESSION_SUFFIXES else path
    return bare.with_suffix("") if format_of(bare.name) else bare
