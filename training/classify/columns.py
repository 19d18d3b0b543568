"""The columns of a table and their values."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_tables import TableError, cell_values, spelled
from bert_tables.reader import FASTTEXT_LABEL
from training.classify.values import are_labels
from training.errors import SourceError
from training.recipe import SourceConfig
from training.sources.files import files, format_of_file
from training.sources.plain_text import read_lines
from training.sources.tables import read_rows

MAX_VALUES = 1000
"""Different values of a column that are counted, because a column with more does not hold labels."""


@dataclass(frozen=True, slots=True)
class Column:
    """Statistics of a column over all rows."""

    name: str
    rows: int
    """Rows with a value."""
    values: Mapping[str, int]
    """Number of rows with each value, for at most `MAX_VALUES` values; a list is a value as JSON."""
    has_more: bool
    """Whether there are more values."""
    lists: int
    """Rows whose value is a list."""

    @property
    def is_unique(self) -> bool:
        """Whether most values occur once, so that they name no class."""
        return self.has_more or 2 * len(self.values) > self.rows

    @property
    def is_text(self) -> bool:
        """Whether most values are different and look like sentences."""
        is_prose = 2 * sum(map(_is_prose, self.values)) >= len(self.values)
        return self.is_unique and is_prose and not self.is_label

    @property
    def is_label(self) -> bool:
        """Whether few short values occur several times each, or lists or combinations of short values."""
        return are_labels(self.values, has_more=self.has_more, has_lists=self.lists > 0)


@dataclass(frozen=True, slots=True)
class TableSurvey:
    """A file or folder as a source, and its columns; none for fastText and for folders of texts."""

    name: str
    """Name of the table in messages."""
    source: SourceConfig
    """The source without columns, with the format that its first lines show."""
    rows: int
    columns: tuple[Column, ...] = ()


def survey_table(source: SourceConfig, name: str) -> TableSurvey:
    """Read all rows of a source.

    Args:
        source: The source, with an absolute path; its columns are ignored.
        name: Name of the table in messages.

    Raises:
        SourceError, TableError: a file cannot be read, or has neither columns nor labels.
    """
    found = files(source, Path())
    forms = {file: format_of_file(file, source) for file in found}
    kinds = {table or form for form, table in forms.values()}
    if not any(table for _, table in forms.values()):
        return TableSurvey(name, _without_columns(source, found, kinds, name), 0)
    if len(kinds) > 1:
        raise SourceError(f"{name}: holds files of different formats ({', '.join(sorted(kinds))}); give one of them")
    counts: dict[str, _Counts] = {}
    rows = 0
    every = source.model_copy(update={"text": (), "label": None, "group": None, "by": None})
    for file, (_, table) in forms.items():
        for _, cells in read_rows(file, table, every, None):
            rows += 1
            for column, cell in cells.items():
                if (seen := counts.get(column)) is None:
                    seen = counts[column] = _Counts()
                seen.add(cell)
    if not rows:
        raise SourceError(f"{name}: has no rows below its header")
    columns = tuple(seen.column(column) for column, seen in counts.items())
    if source.table.header is True:
        _check_header(columns, name)
    return TableSurvey(name, source, rows, columns)


def _without_columns(source: SourceConfig, found: Sequence[Path], kinds: set[str], name: str) -> SourceConfig:
    """The source of texts whose labels are in their lines or in the names of folders."""
    first = next((line for _, line in read_lines(found[0], source.table.encoding) if line.strip()), "")
    if kinds == {"fasttext"} or FASTTEXT_LABEL in first:
        return source.model_copy(update={"format": "fasttext"})
    if kinds == {"text"} and len({file.parent.name for file in found}) > 1:
        return source.model_copy(update={"label": "folder"})
    raise SourceError(
        f"{name}: is plain text, which has no labels; if it holds a table, add --format csv (or tsv, jsonl); if each "
        "file is one text, put those of each label into a folder that is named like it"
    )


class _Counts:
    """The values of a column so far."""

    def __init__(self) -> None:
        self.rows = 0
        self._values: Counter[str] = Counter()
        self._has_more = False
        self._lists = 0

    def add(self, cell: Any) -> None:
        value, is_list = _counted(cell)
        if value is None:
            return
        self.rows += 1
        self._lists += is_list
        if value in self._values or len(self._values) < MAX_VALUES:
            self._values[value] += 1
        else:
            self._has_more = True

    def column(self, name: str) -> Column:
        return Column(name, self.rows, dict(self._values.most_common()), self._has_more, self._lists)


def _counted(cell: Any) -> tuple[str | None, bool]:
    """A cell as a label (None if it is missing), and whether it is a list. A list of several labels is counted as
    JSON."""
    try:
        values = cell_values(cell, "")
    except TableError:  # an error only if the column is chosen
        return json.dumps(cell, ensure_ascii=False, default=str), False
    if len(values) > 1:
        return json.dumps(values, ensure_ascii=False, default=str), True
    return spelled(values[0]) if values else None, False


def _is_prose(value: str) -> bool:
    """Whether a value looks like a sentence: mostly letters, and three words or an unspaced script."""
    letters = sum(map(str.isalpha, value))
    words = len(value.split())
    return 2 * letters >= len(value) and (words >= 3 or (not value.isascii() and len(value) >= 8 * words))


def _check_header(columns: Sequence[Column], name: str) -> None:
    """Raise SourceError if the header is a row: one of its names is also a value of its column."""
    for column in columns:
        if column.name in column.values:
            raise SourceError(
                f"{name}: its first row seems to be data, because {column.name!r} also is a value of that column; add "
                "--no-header, then the columns are called 1, 2 and so on. If it is a header, rename that column"
            )
