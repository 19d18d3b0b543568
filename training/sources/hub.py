"""Data sets of the Hugging Face hub, streamed once: later passes read a copy of the rows."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from bert_client.files import library
from bert_client.tables import TableError, open_table
from training.errors import SourceError
from training.recipe import SourceConfig, source_name
from training.sources.tables import Row, columns_of

_MESSAGE_CHARACTERS = 300


def hub_place(source: SourceConfig) -> str:
    """How messages call the data set."""
    return f"hub data set {source.hub}, split {source.split}"


class HubRows:
    """The rows of a data set, copied while they are streamed.

    Only the caller knows whether a pass has had all rows that it needs, because of the recipe's `limit`: `keep`
    then makes the copy one that later passes read, and without it `close` deletes the copy.
    """

    def __init__(self, source: SourceConfig, cache: Path | None) -> None:
        """Args:
        cache: Folder of the copy; None for no copy.
        """
        self._source = source
        self._file = None if cache is None else cache / _file_name(source)
        self._copy: TextIO | None = None
        self._copy_name = Path()

    def __iter__(self) -> Iterator[Row]:
        if self._file is None:
            return enumerate(_streamed_rows(self._source), 1)
        if self._file.exists():
            return _copied_rows(self._file)
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._copy_name = self._file.with_name(f"{self._file.name}.{os.getpid()}.new")
        self._copy = gzip.open(self._copy_name, "wt", compresslevel=1, encoding="utf-8", newline="\n")  # noqa: SIM115
        return self._stream(self._copy)

    def _stream(self, copy: TextIO) -> Iterator[Row]:
        for number, cells in enumerate(_streamed_rows(self._source), 1):
            copy.write(json.dumps(cells, default=str) + "\n")
            yield number, cells

    def keep(self) -> None:
        """The rows so far are all that a pass needs."""
        if self._copy is not None and self._file is not None:
            self._copy.close()
            self._copy_name.replace(self._file)
            self._copy = None

    def close(self) -> None:
        """Delete an unfinished copy."""
        if self._copy is not None:
            self._copy.close()
            self._copy_name.unlink()


def _file_name(source: SourceConfig) -> str:
    what = [source.hub, source.split, source.format, columns_of(source), source.limit]
    key = hashlib.blake2b(json.dumps(what).encode(), digest_size=6).hexdigest()
    return f"{source_name(source)}-{key}.jsonl.gz"


def _copied_rows(file: Path) -> Iterator[Row]:
    try:
        with open_table(file) as table:
            for row in table.rows:
                if row.fault is not None:
                    raise SourceError(f"{file}, line {row.number}: {row.fault}; delete the file")
                yield row.number, row.cells
    except TableError as error:
        raise SourceError(f"{error}; delete the file") from error


def _streamed_rows(source: SourceConfig) -> Iterator[Mapping[str, Any]]:
    name, _, configuration = (source.hub or "").partition(":")
    asked = columns_of(source)
    try:
        datasets = library("datasets", hub_place(source))
        rows = iter(datasets.load_dataset(name, configuration or None, split=source.split, streaming=True))
    except TableError as error:
        raise SourceError(str(error)) from error
    except Exception as error:  # the library raises what its own parts raise: any kind
        raise _error(source, error) from error
    while True:
        try:
            row = next(rows)
        except StopIteration:
            return
        except Exception as error:
            raise _error(source, error) from error
        whole = all(name in row for name in asked)
        yield {name: row[name] for name in asked} if whole else dict(row)  # a message tells which there are


def _error(source: SourceConfig, error: Exception) -> SourceError:
    said = " ".join(str(error).split()) or type(error).__name__
    remedy = ""
    if "script" in said.lower():
        remedy = "; look for a copy of the data set in Parquet, or download its files and give their path"
    if len(said) > _MESSAGE_CHARACTERS:
        said = f"{said[:_MESSAGE_CHARACTERS]}..."
    return SourceError(f"{hub_place(source)}: {said}{remedy}")
