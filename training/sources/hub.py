"""Data sets of the Hugging Face hub."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from bert_tables.files import library
from training.errors import SourceError
from training.recipe import SourceConfig
from training.sources.tables import columns_of


def hub_place(source: SourceConfig) -> str:
    """Name of the data set in messages."""
    return f"hub data set {source.hub}, split {source.split}"


def hub_rows(source: SourceConfig) -> Iterator[Mapping[str, Any]]:
    """Rows of a data set, which the library downloads once and keeps. With the recipe's `limit`, they are streamed.

    Raises:
        SourceError: the data set cannot be read.
        TableError: the library of the hub is not installed.
    """
    name, _, configuration = (source.hub or "").partition(":")
    asked = columns_of(source)
    datasets = library("datasets", hub_place(source))
    streaming = source.limit is not None
    try:
        for row in datasets.load_dataset(name, configuration or None, split=source.split, streaming=streaming):
            whole = all(name in row for name in asked)
            yield {name: row[name] for name in asked} if whole else dict(row)  # a message lists the columns
    except Exception as error:  # the library raises errors of any kind
        said = textwrap.shorten(str(error) or type(error).__name__, width=300)
        if "script" in said.lower():
            said += "; look for a copy of the data set in Parquet, or download its files and give their path"
        raise SourceError(f"{hub_place(source)}: {said}") from error
