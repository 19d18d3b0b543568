"""The files of a source, and their formats."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from glob import glob
from itertools import chain
from pathlib import Path

from bert_tables import format_of
from bert_tables.files import COMPRESSION_SUFFIXES, File
from training.errors import MissingTextError, SourceError
from training.recipe import SourceConfig
from training.sources.tables import log_once

FORMATS = ("csv", "document", "fasttext", "jsonl", "parquet", "text", "tsv")
TABLES = ("csv", "jsonl", "parquet", "tsv")
"""Formats with columns."""

_MARKDOWN_SUFFIXES = (".md", ".markdown")
_NOTES = ("readme", "license", "licence")
"""Names, without suffix, of files that describe other files of their folder."""
_DATASET_FILES = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json")
"""Metadata files of the library `datasets`."""


def size(sources: Sequence[SourceConfig], root: Path) -> int | None:
    """Bytes of all files to read, for a progress bar; None with a `limit` or a hub data set."""
    found = [files(source, root) for source in sources]
    if any(source.limit for source in sources) or not all(found):
        return None
    return sum(file.stat().st_size for file in chain.from_iterable(found))


def files(source: SourceConfig, root: Path) -> list[Path]:
    """The files of a source in reading order; empty if it comes from the hub.

    A directory or a pattern gives each real file once, even if several symbolic links lead to it.

    Raises:
        MissingTextError: a file does not exist.
        SourceError: all tables are empty.
    """
    if source.path is None:
        return []
    place = root / source.path
    if place.is_file():
        return [place]
    is_folder = place.is_dir()
    folder = next(parent for parent in (place, *place.parents) if parent.is_dir())
    parts = ("**", "*") if is_folder else place.relative_to(folder).parts
    found = [file for file in sorted(_matches(folder, parts)) if file.is_file()]
    found = _without_notes(folder, found, source) if is_folder else found
    top, real = folder.resolve(), {file: file.resolve() for file in sorted(found, reverse=True)}
    last = sorted(real, key=lambda file: real[file] == top / file.relative_to(folder))  # real files replace links
    found = sorted({real[file]: file for file in last}.values())
    if empty := [file for file in found if not file.stat().st_size and _is_table(file, source)]:
        if len(empty) == len(found):
            raise SourceError(f"{place}: all its tables are empty")
        log_once(f"{place}: {len(empty)} of {len(found)} tables are empty ({empty[0].name}) and are not read")
        found = [file for file in found if file not in empty]
    if not found and source.hub is None:
        hint = f"; relative paths start from the recipe's `data`, now {root}"
        reason = "no such file" + hint * (not Path(source.path).is_absolute())
        if is_folder:
            reason = (
                "the directory holds no file of a known suffix; set `format`, or rename the files to .txt or the like"
            )
        raise MissingTextError(f"{place}: {reason}")
    return found


def _matches(folder: Path, parts: Sequence[str]) -> Iterator[Path]:
    """Paths below a folder that match the parts of a pattern. The folder's name is not a pattern, and hidden names do
    not match, unlike with pathlib."""
    if "**" not in parts:
        yield from (folder / name for name in glob(str(Path(*parts)), root_dir=folder))  # noqa: PTH207
        return
    before, after = parts[: parts.index("**")], parts[parts.index("**") + 1 :] or ("*",)
    for top in _matches(folder, before) if before else [folder]:
        for below in _folders(top):
            yield from _matches(below, after)


def _folders(top: Path) -> Iterator[Path]:
    """A folder and those below it, each once, links last. Links to a folder above are not followed."""
    seen = {*map(str, top.resolve().parents)}
    for folder, below, _ in os.walk(top, followlinks=True):
        if (real := os.path.realpath(folder)) in seen:
            below.clear()
            continue
        seen.add(real)
        yield Path(folder)
        shown = (name for name in below if not name.startswith("."))
        below[:] = sorted(shown, key=lambda name: ((Path(folder) / name).is_symlink(), name))


def _without_notes(folder: Path, found: Sequence[Path], source: SourceConfig) -> list[Path]:
    """The files of a folder to read: those of a known format that do not describe others."""
    kept = [file for file in found if file.name not in _DATASET_FILES]
    if source.format == "auto":
        known = [file for file in kept if _format_of_suffix(file)]
        texts = [file for file in known if file.name.partition(".")[0].lower() not in _NOTES]
        if any(_inner_suffix(file) not in _MARKDOWN_SUFFIXES for file in texts):
            known = texts
        if any(_is_table(file, source) for file in known):  # Markdown beside tables describes them
            known = [file for file in known if _inner_suffix(file) not in _MARKDOWN_SUFFIXES]
        kept = known or [file for file in kept if file.suffix == ".arrow"]  # refused later, with the remedy
    if kept and len(kept) < len(found):
        names = sorted({file.name for file in set(found).difference(kept)})
        shown = ", ".join(names[:5]) + ", ..." * (len(names) > 5)
        log_once(
            f"{folder}: {len(found) - len(kept)} of {len(found)} files are not read, because they describe the others "
            f"or their suffix tells no format ({shown}); give the path of one that is a text, or rename it"
        )
    return kept


def form_of(file: Path, source: SourceConfig) -> str | None:
    """One of `FORMATS`, from the recipe or the file's suffix; None if neither tells it."""
    return _format_of_suffix(file) if source.format == "auto" else source.format


def format_of_file(file: File, source: SourceConfig) -> str:
    """The format in which `bert_tables` reads a file, if its first bytes are not those of Parquet: one of `TABLES`, or
    `lines`.

    Raises:
        SourceError: the format follows neither from the recipe, nor from the suffix, nor from the first bytes.
        TableError: the file is of a kind that cannot be read.
    """
    form = form_of(Path(file.name), source)
    if form is None and not file.is_parquet:
        file.check_kind(markup=True)  # an Excel workbook is better saved as CSV than renamed
        known = ", ".join(FORMATS)
        raise SourceError(f"{file.name}: unknown suffix; rename it, or set the source's `format` to one of {known}")
    return form if form in TABLES else "lines"


def _is_table(file: Path, source: SourceConfig) -> bool:
    return form_of(file, source) in TABLES


def _format_of_suffix(file: Path) -> str | None:
    found = "lines" if _inner_suffix(file) in _MARKDOWN_SUFFIXES else format_of(str(file))
    return "text" if found == "lines" else found


def _inner_suffix(file: Path) -> str:
    """The suffix of the file, or the one before that of a compression."""
    return (file.with_suffix("") if file.suffix.lower() in COMPRESSION_SUFFIXES else file).suffix.lower()
