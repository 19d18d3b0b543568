"""Turns a file of texts into a file of answers, one row each, in bounded memory."""

from __future__ import annotations

import itertools
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from queue import Empty, Queue
from threading import Event, Thread
from time import monotonic, sleep
from typing import Any, TextIO

from bert_client.command.output import OVERWRITE_ADVICE, RowWriter, StalePartialFileError, open_output
from bert_client.command.progress import Progress
from bert_client.errors import BertServiceError, ProblemError
from bert_client.http.calls import FLUSH
from bert_client.results import FillMaskResult, LabelResult, Model
from bert_tables import Dialect, Row, Table, TableError, cell_text, find_column, open_table

Result = FillMaskResult | LabelResult
Ask = Callable[[Iterable[Any]], Iterator[Result | ProblemError]]
"""One of the client's streams."""
FindModel = Callable[[], Model | None]
"""Asks the service for the model of the task."""

LABEL_COLUMNS = ("label", "score", "truncated", "error")
SCORES = "scores"
"""The field of all labels with their scores in JSON lines. A table has a column per label instead."""
MASK_COLUMNS = ("words", "scores", "truncated", "error")
FIRST_ROWS = 100
"""Number of rows that determine the columns of JSON lines, which have no header."""

MAX_ROWS_AHEAD = 256
"""Maximum number of rows that are read before the client takes them."""
MAX_WAIT_SECONDS = 0.2
"""Total time for which a row may wait for others to fill its request. Only pauses of the input count."""

PROCESS_ENDED = "the inference process ended during the request of this row"
"""Error of a row whose request ended the inference process. Such rows are sent again at the end of the job."""
RESEND_PAUSE_SECONDS = 60.0
"""Pause before the first row that is sent again, and after each that ends the process again: the service itself ends
after three such ends within a minute."""
MAX_CONSECUTIVE_ENDS = 3
"""Number of consecutive rows that end the process again, after which the rest is not sent."""


@dataclass(frozen=True, slots=True)
class FileJob:
    """The input, output and question of a job."""

    source: str
    target: str
    source_format: str | None
    target_format: str
    """Format of the output, one of `bert_client.command.output.FORMATS`."""
    columns: tuple[str, ...]
    """The column of the texts, or the two of the pairs; names or numbers."""
    new_columns: tuple[str, ...]
    """`LABEL_COLUMNS` or `MASK_COLUMNS`; with all labels in JSON lines, also `SCORES`."""
    prefix: str
    """Prefix of the new columns' names."""
    dialect: Dialect
    question: Mapping[str, Any]
    """The task and its options, on which the answers depend."""
    overwrite: bool = False
    """Whether to replace the target, and a partial file with which the job cannot go on."""

    @property
    def options(self) -> dict[str, Any]:
        """The options that must be the same in a command that continues this job."""
        formats = {"format": self.source_format, "output format": self.target_format}
        columns = {"column": list(self.columns), "prefix": self.prefix}
        return {**self.question, **columns, **formats, **asdict(self.dialect)}

    @property
    def takes_half_pairs(self) -> bool:
        """Whether a pair with one empty text is answered as one text: a review may lack a title or a body."""
        return len(self.columns) == 2 and self.question["task"] in ("sentiment", "classify")

    @property
    def writes_best_label(self) -> bool:
        """Whether only the best of the model's labels is written."""
        return self.question["task"] in ("sentiment", "classify") and not self.question["all_labels"]


@dataclass(frozen=True, slots=True)
class NewColumns:
    """The columns that a job adds to its rows."""

    names: Mapping[str, str]
    """The name in the file of each of the job's new columns."""
    labels: Mapping[str, str]
    """The name of each label's column, if labels have columns."""
    target_format: str

    @classmethod
    def of(cls, job: FileJob, columns: Collection[str], model: Model | None) -> NewColumns:
        """Name the new columns so that no column of the file has the same name."""
        names = {name: _free_name(job.prefix + name, columns) for name in job.new_columns}
        taken = (*columns, *names.values())
        labels = {label: _free_name(job.prefix + label, taken) for label in _label_columns(job, model)}
        return cls(names, labels, job.target_format)

    @property
    def added(self) -> list[str]:
        """All names, in order."""
        return [*self.names.values(), *self.labels.values()]

    def cells(self, new: Mapping[str, Any]) -> dict[str, Any]:
        """The cells of a row in the file, from those of `new_cells`."""
        found = {column: _joined(new.get(name), self.target_format) for name, column in self.names.items()}
        return found | {column: new.get(SCORES, {}).get(label) for label, column in self.labels.items()}


def run(job: FileJob, ask: Ask, find_model: FindModel = lambda: None) -> bool:
    """Answer every row. A row without an answer gets the reason in the column `error`.

    Args:
        find_model: Called once, before the first row is sent.

    Returns:
        Whether some row has an answer, or the file has no rows.

    Raises:
        TableError: the file is not a table, lacks a column, or cannot be read to its end. Rows before that are
            answered.
        BertServiceError: the service cannot be reached, or refuses for a reason that is not a single row.
        OSError: the output cannot be written.
    """
    can_begin_again = job.overwrite and Path(job.source).is_file()  # other inputs cannot be read twice
    try:
        return _run(job, ask, find_model, resume=can_begin_again or not job.overwrite)
    except StalePartialFileError as error:
        if not can_begin_again:
            raise TableError(f"{error}; {OVERWRITE_ADVICE}") from error
        sys.stderr.write(f"{error}; beginning again\n")
        return _run(job, ask, find_model, resume=False)


def _run(job: FileJob, ask: Ask, find_model: FindModel, *, resume: bool) -> bool:
    progress = Progress(sys.stderr)
    with (
        open_table(job.source, format=job.source_format, dialect=job.dialect, progress=progress.read) as opened,
        open_output(job.target, job.options, sys.stderr, overwrite=job.overwrite, resume=resume) as output,
    ):
        progress.size = opened.size
        errors: list[TableError] = []
        table = replace(opened, rows=_until_error(opened.rows, errors))
        may_pause = table.size is None and job.target_format == "jsonl"
        table = _with_columns(table, job.columns, may_pause=may_pause)
        columns = table.columns or ()
        read = tuple(map(table.column, job.columns)) if columns else job.columns
        model = find_model()
        new_columns = NewColumns.of(job, columns, model)
        error_column, added = new_columns.names["error"], new_columns.added
        delimiters = {"csv": table.delimiter if table.format == "csv" else ",", "tsv": "\t"}
        delimiter = delimiters.get(job.target_format)
        writer = RowWriter(delimiter, (*columns, *added) if columns else ())
        inputs = table.rows_for(read)

        def line_of(cells: dict[str, Any], new: dict[str, Any]) -> str:
            answer = new_columns.cells(new)
            if new["error"] is not None:  # such a row keeps its own cells under the new names
                answer |= cells | {error_column: new["error"]}
            return writer.row(cells | answer)

        def ask_again(cells: dict[str, Any]) -> dict[str, Any]:
            ((_, new),) = answer_rows([Row(0, cells)], read, ask, one_is_enough=job.takes_half_pairs)
            return new

        given = (writer.note_left_out(row.cells) for row in inputs)
        output.begin(writer.header(has_mark=table.has_mark), added, given, model)
        progress.begin(output.rows, output.failed)
        progress.warn(table.warnings)
        if job.writes_best_label and model and model.problem_type == "multi_label_classification":
            sys.stderr.write("a text may have several labels: only the best is written; --all-labels writes all\n")
        try:
            checked = (check_row(row, read, added, one_is_enough=job.takes_half_pairs) for row in inputs)
            ahead = read_ahead(checked, output.flush)
            for row, new in answer_rows(ahead, read, ask, one_is_enough=job.takes_half_pairs):
                output.add(row.cells, line_of(row.cells, new), failed=new["error"] is not None)
                texts = [(column, row.cells.get(column)) for column in read]
                progress.count(new["error"], texts, is_unknown=new.get("unknown_tokens", 0) > 0)
                progress.warn(table.warnings)
        finally:
            progress.end_line()
            progress.warn(table.warnings)
        if errors:
            raise errors[0]
        if progress.failed:
            resender = Resender(ask_again, sys.stderr)

            def revised_line(cells: dict[str, Any]) -> str | None:
                new = resender.new_cells(cells) if cells.get(error_column) == PROCESS_ENDED else None
                return None if new is None else line_of(cells, new)

            output.revise(delimiter, PROCESS_ENDED, revised_line)
            resender.summarize()
            progress.count_errors(PROCESS_ENDED, -resender.answered)
    if writer.left_out:
        left_out = ", ".join(map(repr, sorted(writer.left_out)))
        sys.stderr.write(f"not written, as the first rows have no such column: {left_out}\n")
    progress.summarize()
    return progress.failed < progress.rows or not progress.rows


class Resender:
    """Asks once more, one by one, for the rows whose request ended the inference process.

    It stops after `MAX_CONSECUTIVE_ENDS`, and at an error of the service that is not the row's. The remaining rows keep
    their error, so the job always ends.

    Args:
        ask_row: Returns the new cells of a row.
    """

    def __init__(self, ask_row: Callable[[dict[str, Any]], dict[str, Any]], stderr: TextIO) -> None:
        self._ask_row = ask_row
        self._stderr = stderr
        self._must_pause = True
        self._consecutive_ends = 0
        self._stop_reason: str | None = None
        self.rows = 0
        """Number of rows with the error, sent or not."""
        self.answered = 0

    def new_cells(self, cells: dict[str, Any]) -> dict[str, Any] | None:
        """The new cells of a row, or None if it is not sent or has the same error again."""
        self.rows += 1
        if self._stop_reason is not None:
            return None
        if self.rows == 1:
            self._stderr.write("sending again, one by one, the rows whose request ended the inference process\n")
        if self._must_pause:
            sleep(RESEND_PAUSE_SECONDS)
        try:
            new = self._ask_row(cells)
        except BertServiceError as error:
            self._stop_reason = repr(str(error))  # escapes control characters
            return None
        self._must_pause = new["error"] == PROCESS_ENDED
        self._consecutive_ends = self._consecutive_ends + 1 if self._must_pause else 0
        if self._consecutive_ends == MAX_CONSECUTIVE_ENDS:
            self._stop_reason = f"{MAX_CONSECUTIVE_ENDS} consecutive rows ended the process again"
        self.answered += new["error"] is None
        return None if self._must_pause else new

    def summarize(self) -> None:
        """Write how many rows now have an answer, and why it stopped."""
        if self.rows:
            reason = f"; stopped: {self._stop_reason}" if self._stop_reason else ""
            self._stderr.write(f"{self.answered:,} of {self.rows:,} such rows have an answer now{reason}\n")


def check_row(row: Row, read: Collection[str], new: Collection[str], *, one_is_enough: bool = False) -> Row:
    """The row. It gets a fault if it lacks a text, or if one of its cells has the name of an answer's column.

    `one_is_enough`: whether all texts but one may be missing.
    """
    texts = {column: cell_text(row.cells.get(column)) for column in read}
    may_lack = one_is_enough and any(text != "" for text in texts.values())
    faults = [row.fault]
    for column, text in texts.items():
        if text is None:
            faults.append(f"the field {column!r} is not text")
        elif not (text or may_lack):
            faults.append(f"the field {column!r} is {'empty' if column in row.cells else 'not there'}")
    if taken := next((name for name in new if name in row.cells), None):
        faults.append(f"the field {taken!r} is not in the first rows, so the answers have its name: give --prefix")
    return replace(row, fault=next(filter(None, faults), None))


def read_ahead(rows: Iterable[Row], answered: Callable[[], object] = lambda: None) -> Iterator[Row | None]:
    """The rows, which a thread reads, and None at each pause of the input.

    The input pauses when no row has been ready for `MAX_WAIT_SECONDS` in all since the last None. A regular file has no
    pauses.

    Args:
        answered: Called after each None, when the rows before it are answered.
    """
    queue: Queue[Row | BaseException | None] = Queue(MAX_ROWS_AHEAD)
    closed = Event()

    def read() -> None:
        end = None
        try:
            for row in rows:
                queue.put(row)
                if closed.is_set():
                    return
        except BaseException as error:
            end = error
        queue.put(end)

    Thread(target=read, name="bert-reader", daemon=True).start()
    timeout = None  # in seconds; None while no row waits, because there is nothing to send
    try:
        while True:
            start = monotonic()
            try:
                row = queue.get(timeout=timeout)
            except Empty:
                timeout = None
                yield None
                answered()
                continue
            if isinstance(row, BaseException):
                raise row
            if row is None:
                return
            timeout = MAX_WAIT_SECONDS if timeout is None else max(timeout - (monotonic() - start), 0)
            yield row
    finally:
        closed.set()
        with suppress(Empty):  # the thread may wait for room
            while True:
                queue.get_nowait()


def answer_rows(
    rows: Iterable[Row | None], read: tuple[str, ...], ask: Ask, *, one_is_enough: bool = False
) -> Iterator[tuple[Row, dict[str, Any]]]:
    """Each row and its new cells. Memory holds the rows of the client's requests in flight.

    `rows`: a None sends the rows before it, and waits for their answers.
    `one_is_enough`: whether a pair with an empty text is one text.
    """
    waiting: deque[Row] = deque()

    def inputs() -> Iterator[Any]:
        for row in rows:
            if row is None:
                yield FLUSH
                continue
            waiting.append(row)
            texts = tuple(cell_text(row.cells.get(column)) for column in read)
            if one_is_enough and not row.fault:
                texts = tuple(filter(None, texts))
            yield None if row.fault else texts[0] if len(texts) == 1 else texts  # None keeps the row's place

    for outcome in ask(inputs()):
        row = waiting.popleft()
        yield row, {"error": row.fault} if row.fault else new_cells(outcome)


def new_cells(outcome: Result | ProblemError) -> dict[str, Any]:
    """The cells that an answer adds to its row."""
    if isinstance(outcome, ProblemError):
        detail = outcome.detail.replace("set truncate to true", "give --truncate")
        return {"error": PROCESS_ENDED if outcome.ended_process else detail}
    common = {"truncated": outcome.truncated, "error": None, "unknown_tokens": outcome.unknown_tokens}
    if isinstance(outcome, FillMaskResult):
        words = [mask.predictions[0] for mask in outcome.masks]
        return {"words": [one.token_str for one in words], "scores": [round(one.score, 6) for one in words], **common}
    scores = {one.label: round(one.score, 6) for one in outcome.predictions}
    best = outcome.predictions[0].label
    return {"label": best, "score": scores[best], SCORES: scores, **common}


def _label_columns(job: FileJob, model: Model | None) -> list[str]:
    """The labels that get a column each.

    Raises:
        TableError: `/info` does not list the labels.
    """
    if not job.question["all_labels"] or job.target_format == "jsonl":
        return []
    if model is None or model.labels is None:
        raise TableError("/info does not tell the labels, which become columns; write JSON lines (--json)")
    return model.labels


def _joined(cell: Any, form: str) -> Any:
    """The words of several masks as one cell of a table; JSON keeps the list."""
    return " ".join(map(str, cell)) if isinstance(cell, list) and form != "jsonl" else cell


def _until_error(rows: Iterator[Row], errors: list[TableError]) -> Iterator[Row]:
    """The rows before the place where the file cannot be read. The error is kept until they are answered."""
    try:
        yield from rows
    except TableError as error:
        errors.append(error)


def _free_name(name: str, taken: Collection[str]) -> str:
    """A name for a new column. If a column of the file has it already, the new one is called `predicted_…`."""
    while name in taken:
        name = f"predicted_{name}"
    return name


def _with_columns(table: Table, asked: Sequence[str], *, may_pause: bool) -> Table:
    """The table; for JSON lines, with the fields of the first rows as columns, because they have no header.

    `may_pause`: whether the first row that has the asked fields is enough, because more may come late.

    Raises:
        TableError: no row has fields.
    """
    if table.columns is not None:
        return table
    first: list[Row] = []
    for row in itertools.islice(table.rows, FIRST_ROWS):
        first.append(row)
        if may_pause and all(find_column([*row.cells], column) for column in asked):
            break
    columns = tuple(dict.fromkeys(name for row in first for name in row.cells))
    if first and not columns:
        raise TableError(f"{table.name}, line {first[0].number}: {first[0].fault or 'the first rows have no fields'}")
    return replace(table, columns=columns, rows=itertools.chain(first, table.rows))
