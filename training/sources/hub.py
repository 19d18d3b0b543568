"""Data sets of the Hugging Face hub. They are streamed once, and later passes read a copy of the rows."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from bert_tables import TableError
from bert_tables.files import library
from training.errors import SourceError
from training.recipe import SourceConfig, source_name
from training.sources.tables import columns_of, read_rows


def hub_place(source: SourceConfig) -> str:
    """Name of the data set in messages."""
    return f"hub data set {source.hub}, split {source.split}"


@contextmanager
def hub_rows(source: SourceConfig, cache: Path | None) -> Iterator[Iterable[Mapping[str, Any]]]:
    """Rows of a data set, copied while they are streamed.

    Only the caller knows whether a pass has read all the rows that it needs, because of the recipe's `limit`. If the
    block ends without an error, later passes read the copy; otherwise it is deleted.

    Args:
        cache: Folder of the copy; None for no copy.

    Raises:
        SourceError: the data set, a row of it, or the copy cannot be read.
        TableError: the library of the hub is not installed.
    """
    file = None if cache is None else cache / _file_name(source)
    if file is None:
        yield _streamed_rows(source)
    elif file.exists():
        yield _copied_rows(file, source)
    else:
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_name(f"{file.name}.{os.getpid()}.new")
        try:
            with gzip.open(part, "wt", compresslevel=1, encoding="utf-8", newline="\n") as copy:
                yield _copying(_streamed_rows(source), copy)
            part.replace(file)
        finally:
            part.unlink(missing_ok=True)


def _copying(rows: Iterable[Mapping[str, Any]], copy: TextIO) -> Iterator[Mapping[str, Any]]:
    for cells in rows:
        copy.write(json.dumps(cells, default=str) + "\n")
        yield cells


def _copied_rows(file: Path, source: SourceConfig) -> Iterator[Mapping[str, Any]]:
    try:
        for _, cells in read_rows(file, "jsonl", source, None):
            yield cells
    except TableError as error:
        raise SourceError(f"{error}; delete the file") from error


def _streamed_rows(source: SourceConfig) -> Iterator[Mapping[str, Any]]:
    name, _, configuration = (source.hub or "").partition(":")
    asked = columns_of(source)
    datasets = library("datasets", hub_place(source))
    try:
        for row in datasets.load_dataset(name, configuration or None, split=source.split, streaming=True):
            whole = all(name in row for name in asked)
            yield {name: row[name] for name in asked} if whole else dict(row)  # a message lists the columns
    except Exception as error:  # the library raises errors of any kind
        said = textwrap.shorten(str(error) or type(error).__name__, width=300)
        if "script" in said.lower():
            said += "; look for a copy of the data set in Parquet, or download its files and give their path"
        raise SourceError(f"{hub_place(source)}: {said}") from error


def _file_name(source: SourceConfig) -> str:
    """A name for the copy, which depends on the part of the data set that is read."""
    what = [source.hub, source.split, source.format, columns_of(source), source.limit]
    key = hashlib.blake2b(json.dumps(what).encode(), digest_size=6).hexdigest()
    return f"{source_name(source)}-{key}.jsonl.gz"
