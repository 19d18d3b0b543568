"""Which files a source has, and what each of them is."""

from __future__ import annotations

from collections.abc import Sequence
from glob import escape, glob
from itertools import chain
from pathlib import Path

from bert_tables import format_of
from bert_tables.files import COMPRESSION_SUFFIXES, open_file
from training.errors import MissingTextError, SourceError
from training.recipe import SourceConfig
from training.sources.tables import log_once

FORMATS = ("csv", "document", "fasttext", "jsonl", "parquet", "text", "tsv", "wikitext")
TABLES = ("csv", "jsonl", "parquet", "tsv")
"""Formats with columns."""

_WIKITEXT_SUFFIXES = (".tokens", ".raw")
"""Of the files in which WikiText is published."""
_MARKDOWN_SUFFIXES = (".md", ".markdown")


def size(sources: Sequence[SourceConfig], root: Path) -> int | None:
    """Bytes of all files that will be read, for a progress bar; None if a `limit` or a hub data set hides them."""
    found = [files(source, root) for source in sources]
    if any(source.limit for source in sources) or not all(found):
        return None
    return sum(file.stat().st_size for file in chain.from_iterable(found))


def files(source: SourceConfig, root: Path) -> list[Path]:
    """The files of a source in the order they are read; none if it is to come from the hub.

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
    pattern = f"{escape(str(place))}/**/*" if is_folder else str(place)
    names = glob(pattern, recursive=True)  # noqa: PTH207 (unlike pathlib's, it passes over hidden files)
    found = [file for file in sorted(map(Path, names)) if file.is_file()]
    if is_folder and source.format == "auto":
        known = [file for file in found if _format_of_suffix(file)]
        if any(_is_table(file, source) for file in known):  # Markdown beside tables describes them
            known = [file for file in known if _inner_suffix(file) not in _MARKDOWN_SUFFIXES]
        if known and len(known) < len(found):
            suffixes = ", ".join(sorted({file.suffix or "none" for file in set(found).difference(known)})[:5])
            log_once(
                f"{place}: {len(found) - len(known)} of {len(found)} files have other suffixes ({suffixes}) and are "
                "not read; set the source's `format`, or rename them"
            )
        found = known
    if empty := [file for file in found if not file.stat().st_size and _is_table(file, source)]:
        if len(empty) == len(found):
            raise SourceError(f"{place}: all its tables are empty")
        log_once(f"{place}: {len(empty)} of {len(found)} tables are empty ({empty[0].name}) and are not read")
        found = [file for file in found if file not in empty]
    if not found and source.hub is None:
        reason = f"no such file; relative paths start from the recipe's `data`, now {root}"
        if is_folder:
            reason = (
                "the directory holds no file of a known suffix; set `format`, or rename the files to .txt or the like"
            )
        raise MissingTextError(f"{place}: {reason}")
    return found


def format_of_file(file: Path, source: SourceConfig) -> tuple[str, str | None]:
    """One of `FORMATS`, and that of its table if it has columns: WikiText comes as text and, from the hub, as Parquet.

    Raises:
        SourceError: neither the recipe, nor the suffix, nor the first bytes tell.
        TableError: the file cannot be read.
    """
    by_suffix = _format_of_suffix(file)
    form = by_suffix if source.format == "auto" else source.format
    table = by_suffix if form == "wikitext" else form
    if table not in TABLES:
        with open_file(str(file)) as opened:
            if opened.is_parquet:
                table, form = "parquet", "wikitext" if form == "wikitext" else "parquet"
            elif form is None:
                opened.check_kind(markup=True)  # an Excel workbook is better saved as CSV than renamed
    if form is None:
        known = ", ".join(FORMATS)
        raise SourceError(f"{file}: unknown suffix; rename it, or set the source's `format` to one of {known}")
    return form, table if table in TABLES else None


def _is_table(file: Path, source: SourceConfig) -> bool:
    return (_format_of_suffix(file) if source.format == "auto" else source.format) in TABLES


def _format_of_suffix(file: Path) -> str | None:
    if _inner_suffix(file) in _WIKITEXT_SUFFIXES:
        return "wikitext"
    found = "lines" if _inner_suffix(file) in _MARKDOWN_SUFFIXES else format_of(str(file))
    return "text" if found == "lines" else found


def _inner_suffix(file: Path) -> str:
    """The suffix of the file, or before the one of a compression."""
    return (file.with_suffix("") if file.suffix.lower() in COMPRESSION_SUFFIXES else file).suffix.lower()
