"""A file of texts into a file of answers, one row each, in bounded memory."""

from __future__ import annotations

import itertools
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.client.calls import Pair
from app.client.errors import ProblemError
from app.progress import Progress
from app.responses import FillMaskResult, LabelResult
from app.tables import Row, Table, TableError, open_source, open_target, read_table, write_rows

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
    source_format: str
    target_format: str
    columns: tuple[str, ...]
    """One, or two for pairs."""
    added: tuple[str, ...]
    """`LABEL_COLUMNS` or `MASK_COLUMNS`."""
    prefix: str = ""
    """Before the names of what is added."""


def run(job: Job, ask: Ask) -> Progress:
    """Answer every row; one that has no answer gets its reason in the column `error`.

    Raises:
        TableError: the file is not what it is said to be, or lacks a column.
        BertServiceError: nobody answers, or it is no row's fault.
        OSError: a file cannot be read or written.
    """
    with (
        open_source(job.source) as source,
        Progress(source, sys.stderr) as progress,
        open_target(job.target) as target,
    ):
        table = read_table(source.text, job.source_format)
        first = _beginning(table, job.columns)
        columns = table.columns or tuple(dict.fromkeys(name for row in first for name in row.cells))
        names = {name: _free_name(job.prefix + name, columns) for name in job.added}
        checked = (read_columns(row, job.columns) for row in itertools.chain(first, table.rows))
        rows = checked if job.target_format == "jsonl" else _with_all(columns, checked)
        answers = answered(rows, names, job, ask)
        header = (*columns, *names.values()) if columns else ()
        left_out = write_rows(target, job.target_format, _watched(answers, progress), header)
    if left_out:
        left = ", ".join(map(repr, left_out))
        sys.stderr.write(f"not written, as the first rows have no such column: {left}\n")
    return progress


def answered(rows: Iterable[Row], names: Mapping[str, str], job: Job, ask: Ask) -> Iterator[dict[str, Any]]:
    """Rows with the columns of their answers last, under these names. As many wait in memory as the client has
    on its way."""
    waiting: deque[Row] = deque()

    def inputs() -> Iterator[str | Pair]:
        for row in rows:
            waiting.append(row)
            yield _input(row, job.columns)

    for outcome in ask(inputs()):
        row = without(waiting.popleft(), names.values())
        new = dict.fromkeys(job.added) | new_columns(outcome, row.fault)
        if job.target_format != "jsonl":
            new = {
                name: " ".join(map(str, cell)) if isinstance(cell, list) else cell for name, cell in new.items()
            }
        yield row.cells | {names[name]: value for name, value in new.items()}


def read_columns(row: Row, columns: tuple[str, ...]) -> Row:
    """The row, with a fault if a column is not there or is no text."""
    if row.fault is None:
        for column in columns:
            if not isinstance(row.cells.get(column), str):
                missing = "is not there" if column not in row.cells else "is no text"
                return Row(row.cells, f"the field {column!r} {missing}")
    return row


def without(row: Row, names: Collection[str]) -> Row:
    """The row without cells under the answers' names, and with a fault if it had one."""
    taken = [name for name in names if name in row.cells]
    if not taken:
        return row
    own = {name: cell for name, cell in row.cells.items() if name not in names}
    clash = f"the field {taken[0]!r} is not in the first row, so the answers have its name: give --prefix"
    return Row(own, row.fault or clash)


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


def _beginning(table: Table, columns: Sequence[str]) -> list[Row]:
    """The first rows of JSON lines, up to one that has the columns to be read; a table's header has them.

    Raises:
        TableError: none has.
    """
    first: list[Row] = []
    has: dict[str, None] = dict.fromkeys(table.columns or ())
    for row in itertools.islice(table.rows, _FIRST if table.columns is None else 0):
        first.append(row)
        has |= dict.fromkeys(row.cells)
        if all(column in row.cells for column in columns):
            return first
    if not has and first:
        raise TableError(first[0].fault or "the first rows are empty")
    for column in columns if has else ():
        if column not in has:
            raise TableError(f"there is no column {column!r}, but {', '.join(map(repr, has))}")
    return first


def _with_all(columns: Sequence[str], rows: Iterator[Row]) -> Iterator[Row]:
    """The rows, the first with all columns: a table that is written has those of its first row."""
    for row in itertools.islice(rows, 1):
        yield Row(dict.fromkeys(columns) | row.cells, row.fault)
    yield from rows


def _watched(rows: Iterator[dict[str, Any]], progress: Progress) -> Iterator[dict[str, Any]]:
    for row in rows:
        (*_, error) = row.values()
        progress.count(failed=error is not None)
        yield row
