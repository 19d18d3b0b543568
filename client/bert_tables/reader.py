"""Reads tables: CSV, TSV, JSON lines, Parquet and plain lines, compressed or not, in many dialects.

>>> with open_table("reviews.csv") as table:
...     for row in table.rows:
...         print(row.number, row.fault or row.cells["text"])

1. The first bytes of a file show its kind; its name shows the format of text. 2. A `Dialect` states how a table is
written. Its missing options are detected if the first lines leave no doubt. 3. A broken row has a `fault`, and reading
goes on. Nothing is shifted, joined or left out silently. 4. Rows are read on demand: memory does not grow with the
file.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence, Set, Sized
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from bert_tables.delimited import Record, holds_rows, mark_returns, records
from bert_tables.dialect import DELIMITER_NAMES, LINE, Dialect, detect
from bert_tables.errors import TableError
from bert_tables.files import (
    COMPRESSION_SUFFIXES,
    READ_ERRORS,
    File,
    Progress,
    damage,
    library,
    open_file,
    text_fault,
    text_lines,
)
from bert_tables.header import doubt_of_header, find_column
from bert_tables.json_lines import BEGINS_JSON, NOT_LINES, OTHER_SHAPE, holds_columns, raise_error, read_object

SizedT = TypeVar("SizedT", bound=Sized)

_SUFFIXES = {
    "csv": (".csv",),
    "tsv": (".tsv", ".tab"),
    "jsonl": (".jsonl", ".ndjson", ".json"),
    "parquet": (".parquet", ".pq"),
    "lines": (".txt", ".text"),
}
FORMATS = tuple(_SUFFIXES)

FASTTEXT_LABEL = "__label__"
"""Beginning of a label in a line of fastText."""

_DELIMITERS = {"csv": ",", "tsv": "\t"}
_BEGINNING_LINES = 1000
_BEGINNING_CHARACTERS = 2**20
"""Maximum number of first lines from which the dialect is detected, and of their characters."""
_SHOWN_WARNINGS = 5
_DATA = re.compile(r"-?\d+(\.\d+)?|(\S* ){3}.*|.{61,}", re.DOTALL)
"""A number or a sentence, which is rarely the name of a column."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row."""

    number: int
    """The line in which it begins, from 1; in a Parquet file, the row."""
    cells: dict[str, Any]
    """Cells by column. If the row has a fault, only those that could be read."""
    fault: str | None = None
    """The reason why the cells must not be used."""
    cell_faults: tuple[tuple[str, str], ...] = ()
    """Columns whose cell must not be used, each with the reason. Other columns can be used."""


@dataclass(frozen=True, slots=True)
class Table:
    """An opened table."""

    name: str
    """Name of the file, for messages."""
    format: str
    columns: tuple[str, ...] | None
    """Names of the columns; None for JSON lines, each of which has its own."""
    rows: Iterator[Row]
    """The rows. Raises TableError if the file is cut off or damaged, after the rows before that place."""
    warnings: list[str]
    """Warnings, which grow while rows are read."""
    size: int | None
    """Bytes of the file; None for a pipe."""
    delimiter: str | None = None
    """Delimiter of a CSV or TSV file, stated or detected."""
    metadata: Mapping[bytes, bytes] = field(default_factory=dict)
    """Metadata of the schema of a Parquet file."""
    has_mark: bool = False
    """Whether the file begins with a byte order mark."""

    def rows_for(self, columns: Collection[str]) -> Iterator[Row]:
        """The rows, with the faults of these columns' cells as faults of the row. In other columns, only the first
        fault of each column becomes a warning."""
        noted: set[str] = set()
        for row in self.rows:
            fault = row.fault
            for name, reason in row.cell_faults:
                if name in columns:
                    fault = fault or f"in the column {name!r}, {reason}"
                elif name not in noted:
                    noted.add(name)
                    self.warnings.append(f"{self.place(row)}: in the column {name!r}, {reason}")
            yield replace(row, fault=fault) if row.cell_faults else row

    def place(self, row: Row) -> str:
        """The place of a row in messages."""
        return f"{self.name}, {'row' if self.format == 'parquet' else 'line'} {row.number}"

    def column(self, address: str) -> str:
        """The name of a column by its address; see `find_column`.

        Raises:
            TableError: the column is missing; the message lists the columns.
        """
        if self.columns is None:
            return address
        is_data = any(_DATA.fullmatch(name) and name != str(n) for n, name in enumerate(self.columns, 1))
        if address.isdecimal() and self.format in _DELIMITERS and is_data:
            warning = f"{self.name}: the header looks like a row; if it is one, state --no-header (header = false)"
            self.warnings.extend({warning}.difference(self.warnings))
        if (name := find_column(self.columns, address)) is not None:
            return name
        shown = ", ".join(map(repr, self.columns[:50]))
        notes = "".join(f" ({warning})" for warning in self.warnings)
        is_doubtful = self.format in (*_DELIMITERS, "lines") and self.columns[0] != "1"
        advice = "; if that is not its header, state --format, --first-line, --no-header or --delimiter" * is_doubtful
        raise TableError(f"{self.name}: it has no column {address!r}; its columns are {shown}{advice}{notes}")


def format_of(name: str, dialect: Dialect | None = None) -> str | None:
    """The format of a file name, if it shows one. A pipe (`-`) has lines; with a dialect, lines are a CSV table."""
    path = Path(name)
    suffix = (path.with_suffix("") if path.suffix.lower() in COMPRESSION_SUFFIXES else path).suffix.lower()
    found = next((form for form, suffixes in _SUFFIXES.items() if suffix in suffixes), None)
    if name == "-":
        found = "lines"
    is_table = dialect is not None and replace(dialect, encoding=None) != Dialect()  # plain lines have an encoding, too
    return "csv" if found in (None, "lines") and is_table else found


@contextmanager
def open_table(
    name: str | Path,
    *,
    format: str | None = None,  # noqa: A002 (it is the word)
    dialect: Dialect | None = None,
    columns: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> Iterator[Table]:
    """Open a file, or standard input for `-`.

    Args:
        format: One of `FORMATS`; by default, that of the file's name. A file with Parquet's first bytes is always read
            as Parquet.
        dialect: Dialect of a CSV or TSV file. Its encoding is also used for JSON lines and plain lines.
        columns: The only columns of a Parquet file to read; names or numbers.
        progress: Called with each number of bytes that were read.

    Raises:
        TableError: the file cannot be read as a table at all.
    """
    with open_file(str(name), progress) as file:
        if format is None and format_of(str(name), dialect) == "lines":
            _check_lines(file)
        yield read_table(file, format or format_of(str(name), dialect), dialect or Dialect(), columns)


def has_fasttext_label(line: str) -> bool:
    """Whether a line begins with a label of fastText."""
    return re.match(rf"\s*{FASTTEXT_LABEL}\S", line) is not None


def _check_lines(file: File) -> None:
    """Raise TableError if a file named as plain lines begins like JSON, with a label of fastText, or with a header that
    has the column `text`."""
    first = re.split(rb"[\r\n]", file.start, maxsplit=1)[0].decode("utf-8", "replace")
    cells = [cell.strip('"') for cell in re.split(rf"[{''.join(DELIMITER_NAMES)}]", first)]
    found = {
        "JSON": BEGINS_JSON.match(file.start) is not None,
        f"lines with labels of fastText ({FASTTEXT_LABEL}...)": has_fasttext_label(first),
        f"a table with the column {LINE!r}": len(cells) > 1 and LINE in cells,
    }
    if what := next((what for what, is_found in found.items() if is_found), None):
        raise TableError(f"{file.name}: holds {what}; state its format, or lines to read each line as a text")


def read_table(file: File, form: str | None, dialect: Dialect, columns: Sequence[str] | None) -> Table:
    """The table in an opened file; see `open_table`."""
    if file.is_parquet:
        return _parquet(file, columns)
    file.check_kind(markup=form != "lines")
    if form is None:
        raise TableError(f"{file.name}: its name does not tell its format; state the format ({', '.join(FORMATS)})")
    if form == "parquet":
        raise TableError(f"{file.name}: is not a Parquet file, or its beginning is damaged")
    encoding = file.marked_encoding or dialect.encoding or "utf-8"
    skipped = (dialect.first_line or 1) - 1
    if form in _DELIMITERS:
        rest = itertools.islice(text_lines(file, encoding, keep_returns=True), skipped, None)
        return _delimited(file, form, dialect, map(mark_returns, rest), encoding, frozenset(columns or ()))
    lines: Iterator[str] = itertools.islice(text_lines(file, encoding), skipped, None)
    if form == "lines":
        texts = (
            (number, line.rstrip("\r\n"), text_fault(line, encoding)) for number, line in enumerate(lines, skipped + 1)
        )
        rows = (Row(number, {LINE: text}, fault) for number, text, fault in texts)
        return Table(file.name, form, (LINE,), rows, [], file.size, has_mark=file.marked_encoding is not None)
    numbered: Iterator[tuple[int, str]] = (
        (number, line) for number, line in enumerate(lines, skipped + 1) if not line.isspace()
    )
    first, numbered = _beginning(numbered, 1)  # a second line of a pipe may come late
    if holds_columns("".join(line for _, line in first)):
        first, numbered = _beginning(numbered, 2)
    if holds_columns("".join(line for _, line in first)) or (not skipped and NOT_LINES.match(file.start)):
        raise TableError(f"{file.name}: {OTHER_SHAPE}")
    rows = (Row(number, *read_object(line, encoding)) for number, line in numbered)
    return Table(file.name, form, None, rows, [], file.size)


# --- CSV and TSV ----------------------------------------------------------------------------------------------


def _delimited(file: File, form: str, dialect: Dialect, lines: Iterator[str], encoding: str, asked: Set[str]) -> Table:
    beginning, lines = _beginning(lines)
    skipped = (dialect.first_line or 1) - 1
    if beginning and (stated := re.fullmatch(r"(?i)sep=([,;|\t])[\r\n]*", beginning[0])):  # Excel reads it
        dialect = replace(dialect, delimiter=dialect.delimiter or stated[1])
        skipped, beginning = skipped + 1, beginning[1:]
        next(lines)
    complete, note = detect(dialect, _DELIMITERS[form], beginning)
    doubt, is_sure = None, False
    if dialect.header is True and dialect.first_line is None:
        if BEGINS_JSON.match(file.start):
            raise TableError(f"{file.name}: holds JSON, not {form.upper()}; state the format jsonl")
        doubt, is_sure = doubt_of_header([*records(iter(beginning), complete, skipped)], asked)
    if is_sure:
        raise TableError(f"{file.name}: {doubt}")
    warnings = [f"{file.name}: {message}" for message in (note, doubt) if message]
    found = records(lines, complete, skipped)
    header, first = _header(file, found, complete, encoding)
    columns = _names(file, header, warnings)
    rows = _rows(file, (header, columns), itertools.chain(first, found), complete, encoding, warnings)
    return Table(
        file.name,
        form,
        columns,
        rows,
        warnings,
        file.size,
        complete.delimiter,
        has_mark=file.marked_encoding is not None,
    )


def _beginning(lines: Iterator[SizedT], most: int = _BEGINNING_LINES) -> tuple[list[SizedT], Iterator[SizedT]]:
    """The first lines, and all lines. An error among the former is raised after them."""
    beginning: list[SizedT] = []
    size = 0
    try:
        while len(beginning) < most and size <= _BEGINNING_CHARACTERS:
            beginning.append(next(lines))
            size += len(beginning[-1])
    except StopIteration:
        pass
    except TableError as error:
        lines = raise_error(error)
    return beginning, itertools.chain(beginning, lines)


def _header(file: File, found: Iterator[Record], dialect: Dialect, encoding: str) -> tuple[list[str], list[Record]]:
    """The cells of the header, and the records that were read for them but are rows."""
    if isinstance(dialect.header, tuple):
        return [*dialect.header], []
    blank: list[Record] = []
    for first in found:
        if any(map(str.strip, first.cells)):
            break
        blank.append(first)
    else:
        raise TableError(f"{file.name}: is empty")
    if not dialect.header:
        count = len(first.cells)
        return [str(number) for number in range(1, count + 1)] if count > 1 else [LINE], [*blank, first]
    if fault := first.fault or text_fault("".join(first.cells), encoding):
        raise TableError(f"{file.name}, line {first.number}: in the header, {fault}")
    return first.cells, []


def _names(file: File, given: Sequence[str], warnings: list[str]) -> tuple[str, ...]:
    """The names of columns. One that has none, or that of another column, is called by its number."""
    counts = Counter(given)
    numbers = [f"column {n}" if str(n) in counts else str(n) for n in range(1, len(given) + 1)]
    names = tuple(name if name and counts[name] == 1 else n for name, n in zip(given, numbers, strict=True))
    for repeated in filter(None, (name for name in counts if counts[name] > 1)):
        called = ", ".join(n for name, n in zip(given, numbers, strict=True) if name == repeated)
        warnings.append(f"{file.name}: several columns are called {repeated!r}; here they are called {called}")
    return names


def _rows(
    file: File,
    header: tuple[list[str], tuple[str, ...]],
    found: Iterator[Record],
    dialect: Dialect,
    encoding: str,
    warnings: list[str],
) -> Iterator[Row]:
    """The rows. `header`: its cells, and the names of the columns."""
    suspicious, (given, columns) = 0, header
    for record in found:
        cells = record.cells
        if len(columns) == 1 and not cells:  # a blank line: the only column's text is empty
            cells = [""]
        elif not cells or (len(columns) > 1 and len(cells) == 1 and cells[0].isspace()):
            continue
        fault = record.fault
        if fault is None and len(cells) != len(columns):
            fault = _count_fault(cells, columns, dialect)
        if fault is None and len(columns) > 1 and dialect.header and cells == given:
            fault = "the row repeats the header; delete it"
        if fault is None and record.lines > 1 and holds_rows(cells, dialect.delimiter or ""):
            suspicious += 1
            if suspicious <= _SHOWN_WARNINGS:
                lines = f"line {record.number}: a quoted cell up to line {record.number + record.lines - 1}"
                remedy = 'if its quotation mark is only text, write it twice in a quoted cell, or state --quote ""'
                warnings.append(f"{file.name}, {lines} holds what seem to be whole rows; {remedy}")
        named = dict(zip(columns, cells + [""] * (len(columns) - len(cells)), strict=False))
        faults = named.items() if text_fault("".join(cells), encoding) else ()
        cell_faults = tuple((name, why) for name, cell in faults if (why := text_fault(cell, encoding)))
        yield Row(record.number, named, fault, cell_faults)
    if suspicious > _SHOWN_WARNINGS:
        warnings.append(f"{file.name}: {suspicious - _SHOWN_WARNINGS} more quoted cells seem to hold whole rows")


def _count_fault(cells: list[str], columns: tuple[str, ...], dialect: Dialect) -> str:
    names = ", ".join(columns[:10]) + ", ..." * (len(columns) > 10)
    counts = f"the row has {len(cells)} cell{'s' * (len(cells) != 1)}, the header has {len(columns)} ({names})"
    mark = DELIMITER_NAMES.get(dialect.delimiter or "", repr(dialect.delimiter))
    remedy = (
        f"if the {mark} is not the delimiter, state --delimiter; else quote a cell that holds one or a line end, with "
        "no space before the quotation mark; if all rows end in a delimiter, let the header end in one"
    )
    return f"{counts}; {remedy}"


# --- Parquet --------------------------------------------------------------------------------------------------


def _parquet(file: File, columns: Sequence[str] | None) -> Table:
    if not file.content.seekable() or file.is_compressed:
        raise TableError(f"{file.name}: a Parquet file is read from its path, not compressed; decompress it first")
    parquet, arrow_error = library("pyarrow.parquet", file.name), library("pyarrow", file.name).ArrowException
    try:
        opened = parquet.ParquetFile(file.content)
        names, metadata = tuple(opened.schema_arrow.names), opened.schema_arrow.metadata or {}
    except (ValueError, OSError, arrow_error) as error:
        raise TableError(f"{file.name}: the Parquet file is damaged or cut off ({error})") from error
    warnings: list[str] = []
    shown = _names(file, names, warnings)
    asked = None if columns is None or shown != names else {find_column(names, each) for each in columns} - {None}
    batches = opened.iter_batches(512, columns=None if asked is None else [name for name in names if name in asked])
    renamed = batches if shown == names else (batch.rename_columns(shown) for batch in batches)
    rows = _parquet_rows(file, renamed, arrow_error)
    return Table(file.name, "parquet", shown, rows, warnings, file.size, metadata=metadata)


def _parquet_rows(file: File, batches: Iterator[Any], arrow_error: type[Exception]) -> Iterator[Row]:
    # Text that is not UTF-8, dates after the year 9999, unknown time zones
    conversion_errors = (arrow_error, ValueError, OverflowError, LookupError)
    number = 0
    while True:
        try:
            batch = next(batches, None)
        except (*READ_ERRORS, ValueError, arrow_error) as error:
            raise damage(file.name, f"row {number}", error) from error
        if batch is None:
            return
        try:
            rows = [Row(number, cells) for number, cells in enumerate(batch.to_pylist(), number + 1)]
        except conversion_errors:
            rows = [_parquet_row(batch, i, number + 1 + i, conversion_errors) for i in range(len(batch))]
        for name in (each.name for each in batch.schema if _may_be_text(each.type)):
            for row in rows:  # Hive, Impala and old versions of Spark do not mark texts as such
                with suppress(AttributeError, KeyError, UnicodeDecodeError):  # null, unreadable, no text
                    row.cells[name] = row.cells[name].decode()
        yield from rows
        number += len(rows)


def _may_be_text(arrow_type: Any) -> bool:
    """Whether a column has bytes that may be text, also in a dictionary."""
    name = str(getattr(arrow_type, "value_type", arrow_type))
    return name in ("binary", "large_binary", "binary_view") or name.startswith("fixed_size_binary")


def _parquet_row(batch: Any, index: int, number: int, conversion_errors: tuple[type[Exception], ...]) -> Row:
    """A row of a batch, cell by cell, because some cell of the batch cannot be converted. Such a cell is left empty."""
    cells, faults = {}, []
    for name in batch.schema.names:
        cell = batch.column(name).slice(index, 1)
        has_nanoseconds = str(cell.type).startswith("timestamp[ns")  # Python has none
        try:
            cells[name] = (cell.cast("string") if has_nanoseconds else cell)[0].as_py()
        except conversion_errors as error:
            cells[name] = None
            faults.append((name, f"a cell cannot be read ({error}) and is left empty"))
    return Row(number, cells, None, tuple(faults))
