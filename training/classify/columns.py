"""The columns of a table and their values."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bert_tables import Row, Table, TableError
from bert_tables.cells import cell_values, spelled
from training.classify.labels import MIN_TEXTS
from training.classify.values import are_labels
from training.errors import SourceError
from training.recipe import SourceConfig
from training.sources.documents import open_files
from training.sources.files import files
from training.sources.tables import json_value, path_columns, sound_rows

MAX_VALUES = 1000
"""Different values of a column that are counted, because a column with more does not hold labels."""

KEPT_BYTES = 2**28
"""Memory for the first rows, which are kept until the columns are chosen, so that a file is read once: half a million
short reviews. Later rows have no part in the choice of the columns, and `--text` and `--label` state them."""
_CELL_BYTES = 150
"""Memory of a cell without its characters, measured with two and with eight columns."""


@dataclass(slots=True)
class Column:
    """Statistics of a column over the first rows."""

    name: str
    is_folder: bool = False
    """Whether it has the names of the folders of files, which are the label only if `--label folder` says so."""
    rows: int = 0
    """Rows with a value."""
    values: Counter[str] = field(default_factory=Counter)
    """Number of rows with each value, for at most `MAX_VALUES` values; a list has several."""
    has_more: bool = False
    """Whether there are more values."""
    lists: int = 0
    """Rows with a list of several values."""

    def add(self, cell: Any) -> None:
        """Count the cell of a row."""
        try:
            found = list(map(spelled, cell_values(json_value(cell), "")))
        except TableError:  # an error only if the column is chosen
            found = [str(cell)]
        self.rows += bool(found)
        self.lists += len(found) > 1
        for value in found:
            if value in self.values or len(self.values) < MAX_VALUES:
                self.values[value] += 1
            else:
                self.has_more = True

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
        return are_labels(self.values, has_more=self.has_more)


@dataclass(frozen=True, slots=True)
class TableSurvey:
    """A file or folder as a source, with its columns; none for fastText and for folders of texts."""

    name: str
    """Name of the table in messages."""
    source: SourceConfig
    """The source without columns, with the format that its first lines show."""
    files: Iterator[Table]
    """The opened files, from their beginning. They can be read once."""
    columns: Sequence[Column] = ()
    names: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """For columns of numbers that have names in the file's metadata, the name of each number."""


def survey_table(source: SourceConfig, name: str) -> TableSurvey:
    """Open a source, and read its first rows, up to `KEPT_BYTES`.

    Args:
        source: The source, with an absolute path; its columns are ignored.
        name: Name of the table in messages.

    Raises:
        SourceError, TableError: a file cannot be read, or has neither columns nor labels.
    """
    opened = open_files(source, Path())
    first = next(opened)
    opened = itertools.chain([first], opened)
    if first.format == "lines":
        return _without_columns(source, opened, name)
    columns: dict[str, Column] = {}
    kept: list[Table] = []
    rows = size = 0
    has_folders = len({file.parent for file in files(source, Path())}) > 1
    for table in opened:
        if table.format != first.format:
            formats = f"{first.format}, {table.format}"
            raise SourceError(f"{name}: holds files of different formats ({formats}); give one of them")
        begun: list[Row] = []
        of_path = path_columns(table.name) if has_folders else {}
        rest = sound_rows(table)
        kept.append(replace(table, rows=itertools.chain(begun, rest)))
        for row in rest:
            begun.append(row)
            for column, cell in (of_path | row.cells).items():
                is_folder = column == "folder" and column not in row.cells
                (columns.get(column) or columns.setdefault(column, Column(column, is_folder))).add(cell)
                size += _CELL_BYTES + len(str(cell))
            if size >= KEPT_BYTES:
                break
        rows += len(begun)
        if size >= KEPT_BYTES:
            break
    if rows < 2 * MIN_TEXTS and size < KEPT_BYTES:
        raise SourceError(f"{name}: has {rows} rows, but a classifier needs two labels with {MIN_TEXTS} texts each")
    if source.table.header is True:
        _check_header(columns.values(), name)
    return TableSurvey(name, source, itertools.chain(kept, opened), tuple(columns.values()), _class_names(first))


def _class_names(table: Table) -> dict[str, dict[str, str]]:
    """The names of numbers by column, as the library `datasets` writes them into Parquet; -1 is a missing label."""
    found = {}
    features = json.loads(table.metadata.get(b"huggingface", b"{}")).get("info", {}).get("features", {})
    for column, feature in features.items():
        label = feature.get("feature", feature) if isinstance(feature, dict) else {}  # of a list, or itself
        if isinstance(label, dict) and label.get("_type") == "ClassLabel":
            found[column] = {"-1": ""} | {str(number): name for number, name in enumerate(label["names"])}
    return found


def _without_columns(source: SourceConfig, opened: Iterator[Table], name: str) -> TableSurvey:
    """A source of texts whose labels are in their lines or in the names of folders."""
    if source.format == "fasttext":
        return TableSurvey(name, source, opened)
    if source.format == "auto" and len({file.parent for file in files(source, Path())}) > 1:
        return TableSurvey(name, source.model_copy(update={"label": "folder"}), opened)
    raise SourceError(
        f"{name}: is plain text, which has no labels; if it holds a table, add --format csv (or tsv, jsonl); if its "
        "lines begin with labels of fastText, add --format fasttext; if each file is one text, put those of each label "
        "into a folder that is named like it"
    )


def _is_prose(value: str) -> bool:
    """Whether a value looks like a sentence: mostly letters, and three words or an unspaced script."""
    letters = sum(map(str.isalpha, value))
    words = len(value.split())
    return 2 * letters >= len(value) and (words >= 3 or (not value.isascii() and len(value) >= 8 * words))


def _check_header(columns: Iterable[Column], name: str) -> None:
    """Raise SourceError if the header is a row: one of its names is also a value of its column."""
    for column in columns:
        if column.name in column.values:
            raise SourceError(
                f"{name}: its first row seems to be data, because {column.name!r} also is a value of that column; add "
                "--no-header, then the columns are called 1, 2 and so on. If it is a header, rename that column"
            )
