"""Files with columns to rows: JSON lines, CSV, TSV, Parquet."""

from __future__ import annotations

import csv
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from training.errors import SourceError
from training.sources.text_files import decoded_lines, library

Row = tuple[str, Mapping[str, Any]]
"""Where it is, for messages ("line 7"), and its columns."""


def column(row: Mapping[str, Any], name: str, at: str) -> Any:
    """Value of a column. Raises SourceError, naming the columns there are."""
    try:
        return row[name]
    except KeyError:
        raise SourceError(f"{at}: no column {name!r}; there are {', '.join(map(str, row))}") from None


def json_rows(content: BinaryIO, file: Path) -> Iterator[Row]:
    """A row per line; blank lines are skipped."""
    for number, line in decoded_lines(content, file):
        if line.isspace():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise SourceError(
                f"{file}, line {number}: invalid JSON ({error}); every line is one object"
            ) from error
        if not isinstance(row, dict):
            remedy = "write one object per line (jq -c '.[]')"
            raise SourceError(f"{file}, line {number}: a JSON {type(row).__name__}, not an object; {remedy}")
        yield f"line {number}", row


def csv_rows(content: BinaryIO, file: Path) -> Iterator[Row]:
    """Rows below a header."""
    return _table((line for _, line in decoded_lines(content, file)), file, delimiter=",")


def tsv_rows(content: BinaryIO, file: Path) -> Iterator[Row]:
    """Quoted as a spreadsheet does, unless the first lines show that a quotation mark is just text (GLUE).

    Raises:
        SourceError: as for any table; or a quoted field holds whole rows, so that marks further down are just
            text as well. To know that before, all would have to be read twice, and some streams cannot be.
    """
    lines = (line for _, line in decoded_lines(content, file))
    beginning = list(itertools.islice(lines, 1000))
    fields = [line.rstrip("\r\n").split("\t") for line in beginning]
    regular = len({len(row) for row in fields}) == 1
    stray = any(_is_stray(field) for row in fields for field in row)
    quoting = csv.QUOTE_NONE if regular and stray else csv.QUOTE_MINIMAL
    for at, row in _table(itertools.chain(beginning, lines), file, delimiter="\t", quoting=quoting):
        if holds := _rows_within([*row.values()]):
            remedy = "write a mark that is just text twice, in a quoted field; or take the tabs out of this one"
            raise SourceError(
                f"{file}, {at}: {holds} rows are one, from a quotation mark to the next; {remedy}"
            )
        yield at, row


def _rows_within(values: Sequence[str]) -> int:
    """How many whole rows a row's quoted fields have glued together.

    0 for a cell of several lines: some of them have too few tabs for a row, or begin with one.
    """
    lines = "\t".join(values).split("\n")
    if len(values) == 1 or len(lines) == 1:
        return 0
    whole = all(line.count("\t") == len(values) - 1 and not line.startswith("\t") for line in lines)
    return len(lines) if whole else 0


def _is_stray(field: str) -> bool:
    """Begins with a quotation mark that does not enclose the field."""
    return field.startswith('"') and not re.fullmatch(r'"(?:[^"]|"")*"', field)


def _table(lines: Iterable[str], file: Path, **dialect: Any) -> Iterator[Row]:
    csv.field_size_limit(2**31 - 1)  # the default refuses a text of over 128 KiB
    reader = csv.reader(lines, strict=True, **dialect)
    names: list[str] = []
    try:
        for values in reader:
            at = f"line {reader.line_num}"
            if not names:
                if again := [name for name, count in Counter(values).items() if count > 1 and name]:
                    raise SourceError(f"{file}: two columns are called {again[0]!r}; rename one")
                names = values
            elif len(values) == len(names):
                yield at, dict(zip(names, values, strict=True))
            elif values:
                counts = f"{len(values)} fields, but the header names {len(names)} ({', '.join(names)})"
                raise SourceError(f"{file}, {at}: {counts}; quote a field that holds a delimiter or a newline")
    except csv.Error as error:
        remedy = 'in a quoted field, a quotation mark is written twice ("")'
        if "new-line character" in str(error):
            remedy = "its lines end in bare carriage returns: write them with newlines"
        raise SourceError(f"{file}, line {reader.line_num}: {error}; {remedy}") from error


def parquet_rows(content: BinaryIO, file: Path, columns: list[str]) -> Iterator[Row]:
    """Rows of the chosen columns, a few hundred in memory at a time."""
    parquet = library("pyarrow.parquet", str(file))
    try:
        table = parquet.ParquetFile(content)
        there = dict.fromkeys(table.schema_arrow.names)
        for name in columns:
            column(there, name, str(file))
        rows = (row for batch in table.iter_batches(512, columns=columns) for row in batch.to_pylist())
        for number, row in enumerate(rows, 1):
            yield f"row {number}", row
    except ValueError as error:  # pyarrow's own errors are ValueErrors
        raise SourceError(f"{file}: no Parquet file, or a damaged one ({error})") from error
