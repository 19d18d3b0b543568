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


def input_files(names: Sequence[str], output: str, form: str | None = None) -> list[tuple[str, Path]]:
    """Each real file once, with its path within the output folder, without the suffix.

    Args:
        form: The stated format. With it, all files of a folder are read; else those whose suffix is that of a format.

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
        files = _files(folder, form) if is_folder else [folder]
        if not files:
            raise ValueError(f"{name}: has no file whose suffix is that of a table or text; --format states the format")
        for file in files:
            path = file.relative_to(folder) if is_folder else Path(file.name)
            found.setdefault(os.path.realpath(file), (str(file), _without_suffix(path)))
    return list(found.values())


def _files(folder: Path, form: str | None) -> list[Path]:
    """The files in a folder and its subfolders to read, without hidden ones. With a stated format, these are all but
    those of Hive and Spark, such as `_SUCCESS`; else those with the suffix of a format."""
    files = (file for file in sorted(folder.rglob("*")) if format_of(file.name) or (form and file.name[0] != "_"))
    return [file for file in files if file.is_file() and not any(p[0] == "." for p in file.relative_to(folder).parts)]


def _without_suffix(path: Path) -> Path:
    bare = path.with_suffix("") if path.suffix.lower() in COMPRESSION_SUFFIXES else path
    return bare.with_suffix("") if format_of(bare.name) else bare
