"""Which files a source has, and what each of them is."""

from __future__ import annotations

from glob import glob
from pathlib import Path

from bert_client.files import COMPRESSION_SUFFIXES, open_file
from bert_client.tables import TableError, format_of
from training.errors import SourceError
from training.recipe import SourceConfig

FORMATS = ("csv", "fasttext", "jsonl", "parquet", "text", "tsv", "wikitext")
TABLES = ("csv", "jsonl", "parquet", "tsv")
"""Formats with columns."""

_WIKITEXT_SUFFIXES = (".tokens", ".raw")
"""WikiText itself ships so."""


def files(source: SourceConfig, root: Path) -> list[Path]:
    """The files of a source in the order they are read; none if it is to come from the hub.

    Raises:
        SourceError: there is no file.
    """
    if source.path is None:
        return []
    place = root / source.path
    if place.is_file():
        return [place]
    if place.is_dir():
        chosen = source.format != "auto"
        shown = (file for file in sorted(place.rglob("*")) if not _is_hidden(file.relative_to(place)))
        found = [file for file in shown if file.is_file() and (chosen or _format_of_suffix(file))]
        if not found:
            unknown = "" if chosen else " of a known suffix; set `format`, or rename the files to .txt or the like"
            raise SourceError(f"{place}: the directory holds no file{unknown}")
        return found
    found = sorted(Path(name) for name in glob(str(place), recursive=True) if Path(name).is_file())  # noqa: PTH207
    if not found and source.hub is None:
        raise SourceError(f"{place}: no such file; relative paths start from the recipe's `data`, now {root}")
    return found


def format_of_file(file: Path, source: SourceConfig) -> tuple[str, bool]:
    """One of `FORMATS`, and whether the file has columns: WikiText comes as text and, from the hub, as Parquet.

    Raises:
        SourceError: neither the recipe, nor the suffix, nor the first bytes tell.
    """
    by_suffix = _format_of_suffix(file)
    chosen = by_suffix if source.format == "auto" else source.format
    if chosen in (None, "text", "fasttext", "wikitext") and _is_parquet(file):
        by_suffix, chosen = "parquet", "wikitext" if chosen == "wikitext" else "parquet"
    if chosen is None:
        known = ", ".join(FORMATS)
        raise SourceError(f"{file}: unknown suffix; rename it, or set the source's `format` to one of {known}")
    return chosen, (by_suffix if chosen == "wikitext" else chosen) in TABLES


def table_format(file: Path, form: str) -> str | None:
    """The format of a file with columns; None if its first bytes are to tell."""
    return form if form in TABLES else _format_of_suffix(file)


def _format_of_suffix(file: Path) -> str | None:
    inner = file.with_suffix("") if file.suffix.lower() in COMPRESSION_SUFFIXES else file
    if inner.suffix.lower() in _WIKITEXT_SUFFIXES:
        return "wikitext"
    found = format_of(str(file))
    return "text" if found == "lines" else found


def _is_parquet(file: Path) -> bool:
    try:
        with open_file(str(file)) as opened:
            return opened.is_parquet
    except TableError as error:
        raise SourceError(str(error)) from error


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)
