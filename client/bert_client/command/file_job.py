"""A file of texts into a file of answers, one row each, in bounded memory."""

from __future__ import annotations

import itertools
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from bert_client.command.output import RowWriter, open_output
from bert_client.command.progress import Progress
from bert_client.errors import ProblemError
from bert_client.http.calls import Pair
from bert_client.tables import Dialect, Row, Table, TableError, open_table
from bert_client.wire import FillMaskResult, LabelResult

Result = FillMaskResult | LabelResult
Ask = Callable[[Iterable[Any]], Iterator[Any]]
"""One of the clients' streams."""


_FIRST = 100
"""Rows of which one must have the columns that are read."""

LABEL_COLUMNS = ("label", "score", "truncated", "error")
MASK_COLUMNS = ("words", "scores", "truncated", "error")


@dataclass(frozen=True, slots=True)
class Job:
    """From where, to where, and which columns are read."""

    source: str
    target: str
    source_format: str | None
    target_format: str
    """One of `bert_client.command.output.FORMATS`."""
    columns: tuple[str, ...]
    """One, or two for pairs; names or numbers."""
    added: tuple[str, ...]
    """`LABEL_COLUMNS` or `MASK_COLUMNS`."""
    prefix: str = ""
    """Before the names of what is added."""
    dialect: Dialect = field(default_factory=Dialect)
    question: Mapping[str, Any] = field(default_factory=dict)
    """The options that the answers depend on."""

    @property
    def options(self) -> dict[str, Any]:
        """What must be the same for a job that goes on."""
        named = {
            "column": list(self.columns),
            "prefix": self.prefix,
            "format": self.source_format,
            "output format": self.target_format,
        }
        return {**self.question, **named, **asdict(self.dialect)}


def run(job: Job, ask: Ask) -> Progress:
    """Answer every row; one that has no answer gets its reason in the column `error`.

    Raises:
        TableError: the file cannot be read as a table, lacks a column, or cannot be read to its end: then the
            rows before are answered.
        BertServiceError: the service cannot be reached, or an error that is not of a single row.
        OSError: the output cannot be written.
    """
    progress = Progress(sys.stderr)
    with (
        open_table(job.source, format=job.source_format, dialect=job.dialect, progress=progress.read) as table,
        open_output(job.target, job.options, sys.stderr) as output,
        progress.of(table.size),
    ):
        read = tuple(map(table.column, job.columns))
        rows = _UntilError(table.rows)
        first = _beginning(table, rows, read)
        columns = table.columns or tuple(dict.fromkeys(name for row in first for name in row.cells))
        names = {name: _free_name(job.prefix + name, columns) for name in job.added}
        writer = RowWriter(job.target_format, (*columns, *names.values()) if columns else ())
        inputs = itertools.chain(first, rows)
        output.begin(writer.header(), (row.cells for row in inputs))
        progress.begin(output.rows, output.failed)
        for given, cells in answered((read_columns(row, read) for row in inputs), names, job, read, ask):
            failed = cells[names["error"]] is not None
            output.add(given, writer.row(cells), failed=failed)
            progress.count(failed=failed)
        for warning in table.warnings:
            sys.stderr.write(f"{warning}\n")
        if rows.error is not None:
            raise rows.error
    if writer.left_out:
        left = ", ".join(map(repr, sorted(writer.left_out)))
        sys.stderr.write(f"not written, as the first rows have no such column: {left}\n")
    return progress


class _UntilError:
    """Rows up to where the file cannot be read on: those before are to be answered first."""

    def __init__(self, rows: Iterator[Row]) -> None:
        self.error: TableError | None = None
        self._rows = rows

    def __iter__(self) -> Iterator[Row]:
        return self

    def __next__(self) -> Row:
        try:
            return next(self._rows)
        except TableError as error:
            self.error = error
            raise StopIteration from None


def answered(
    rows: Iterable[Row], names: Mapping[str, str], job: Job, read: tuple[str, ...], ask: Ask
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """The cells of each row, and the same with the columns of its answer last, under these names. As many rows
    wait in memory as the client has on its way."""
    waiting: deque[Row] = deque()

    def inputs() -> Iterator[str | Pair]:
        for row in rows:
            waiting.append(row)
            yield _input(row, read)

    for outcome in ask(inputs()):
        given = waiting.popleft()
        row = without(given, names.values())
        new = dict.fromkeys(job.added) | new_columns(outcome, row.fault)
        if job.target_format != "jsonl":
            new = {name: " ".join(map(str, cell)) if isinstance(cell, list) else cell for name, cell in new.items()}
        yield given.cells, row.cells | {names[name]: value for name, value in new.items()}


def read_columns(row: Row, columns: tuple[str, ...]) -> Row:
    """The row, with a fault if a column is not there or is no text."""
    if row.fault is None:
        for column in columns:
            if not isinstance(row.cells.get(column), str):
                missing = "is not there" if column not in row.cells else "is not text"
                return Row(row.number, row.cells, f"the field {column!r} {missing}")
    return row


def without(row: Row, names: Collection[str]) -> Row:
    """The row without cells under the answers' names, and with a fault if it had one."""
    taken = [name for name in names if name in row.cells]
    if not taken:
        return row
    own = {name: cell for name, cell in row.cells.items() if name not in names}
    clash = f"the field {taken[0]!r} is not in the first row, so the answers have its name: give --prefix"
    return Row(row.number, own, row.fault or clash)


def new_columns(outcome: Result | ProblemError, fault: str | None) -> dict[str, Any]:
    """What an answer adds to a row."""
    error = fault or (outcome.detail if isinstance(outcome, ProblemError) else None)
    if isinstance(outcome, FillMaskResult) and error is None:
        best = [mask.predictions[0] for mask in outcome.masks]
        words, scores = [entry.token_str for entry in best], [round(entry.score, 6) for entry in best]
        return {"words": words, "scores": scores, "truncated": outcome.truncated, "error": None}
    if isinstance(outcome, LabelResult) and error is None:
        first = outcome.predictions[0]
        score = round(first.score, 6)
        return {"label": first.label, "score": score, "truncated": outcome.truncated, "error": None}
    return {"error": error}


def _input(row: Row, columns: tuple[str, ...]) -> str | Pair:
    """What is asked of a row. Of a broken one, an empty text: it keeps its place among the answers."""
    if row.fault is not None:
        return "" if len(columns) == 1 else ("", "")
    texts = [str(row.cells[column]) for column in columns]
    return texts[0] if len(texts) == 1 else (texts[0], texts[1])


def _free_name(name: str, taken: Collection[str]) -> str:
    """A review's own label is not overwritten by the predicted one."""
    while name in taken:
        name = f"predicted_{name}"
    return name


def _beginning(table: Table, rows: Iterator[Row], columns: tuple[str, ...]) -> list[Row]:
    """The first rows of JSON lines, up to one that has the columns to be read; a table's header has them.

    Raises:
        TableError: none has.
    """
    first: list[Row] = []
    has: dict[str, None] = dict.fromkeys(table.columns or ())
    for row in itertools.islice(rows, _FIRST if table.columns is None else 0):
        first.append(row)
        has |= dict.fromkeys(row.cells)
        if all(column in row.cells for column in columns):
            return first
    if not has and first:
        fault = first[0].fault or "the first rows have no fields"
        raise TableError(f"{table.name}, line {first[0].number}: {fault}")
    for column in columns if has else ():
        if column not in has:
            raise TableError(f"{table.name}: there is no column {column!r}, but {', '.join(map(repr, has))}")
    return first
