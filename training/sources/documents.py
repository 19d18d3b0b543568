"""Streams documents from files and hub data sets: memory holds one document and a read buffer."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from bert_tables import MissingWords, Table, TableError, cell_text
from bert_tables.cells import cell_label
from bert_tables.files import Progress, open_file
from bert_tables.reader import read_table
from training.errors import SourceError
from training.recipe import CONTAINING, SourceConfig, source_name
from training.sources import plain_text
from training.sources.detokenize import differ, joined
from training.sources.files import files, form_of, format_of_file
from training.sources.hub import hub_place, hub_rows
from training.sources.phrases import longest_containing
from training.sources.tables import Row, columns_of, in_recipe, log_once, path_columns, read_rows, row_labels

FIRST_ROWS = 1000
"""Number of first rows of a source in which each column must occur: JSON lines may leave out null values."""


@dataclass(frozen=True, slots=True)
class Document:
    """One text with its metadata."""

    fields: tuple[str, ...]
    """The text columns, e.g. title and content."""
    label: str | tuple[str, ...] | None = None
    """The label; a tuple if the row has a list, or the source has a separator."""
    group: str | None = None
    """Equal for documents that must not be split between train and dev."""
    domain: str | None = None
    """Value of the source's `by` column."""
    place: str = field(default="", compare=False)
    """Its place in messages: `reviews.csv, line 7`."""

    @property
    def text(self) -> str:
        """All text columns as paragraphs, separated by newlines."""
        return "\n".join(filter(None, self.fields))


def open_files(
    source: SourceConfig, root: Path, progress: Progress | None = None, columns: Sequence[str] | None = None
) -> Iterator[Table]:
    """The files of a source: tables, and other files as tables of lines. Each is opened once, and closed when the next
    is asked for.

    Args:
        columns: The columns of tables to read; by default, all.

    Raises:
        SourceError, TableError: a file is missing, of no known format or cannot be opened.
    """
    for path in files(source, root):
        with open_file(str(path), progress) as opened:
            yield read_table(opened, format_of_file(opened, source), source.table, columns)


def documents_of(source: SourceConfig, opened: Iterable[Table]) -> Iterator[Document]:
    """The documents of opened files, as `documents` gives them, but each text as it is spelled and without the groups
    of `containing`."""
    return _SourceReader(source).read(opened)


def documents(source: SourceConfig, root: Path, progress: Progress | None = None) -> Iterator[Document]:
    """Stream the documents of a source. Rows without text are left out, with a warning that counts them. A source whose
    `group` is `containing` is held in memory; others are not.

    Args:
        root: Folder that a relative path starts from.
        progress: Called with each count of bytes that were read from a file.

    Raises:
        SourceError: names the file, the line or row, and the remedy.
    """
    found = _grouped(source, root, progress)
    if source.treebank == "kept":
        return found
    if source.treebank == "joined":
        return map(_as_written, found)
    again = ((kept, _as_written(kept)) for kept in _grouped(source, root, None))
    return itertools.chain(found, (written for kept, written in again if differ(kept.text, written.text)))


def _grouped(source: SourceConfig, root: Path, progress: Progress | None) -> Iterator[Document]:
    """The documents with their groups."""
    found = documents_of(source, open_files(source, root, progress, columns_of(source)))
    if source.group == CONTAINING:
        alone = list(found)
        groups = longest_containing([document.text for document in alone])
        found = (replace(document, group=group) for document, group in zip(alone, groups, strict=True))
    yield from found


def _as_written(document: Document) -> Document:
    """The text as people write it. Its group is the original text, so that both get into the same part."""
    return replace(document, fields=tuple(map(joined, document.fields)), group=document.group or document.text)


class _SourceReader:
    """One pass over a source. It checks the columns of all rows together, and counts the rows that it skips. If each
    file is one text, a file is a row."""

    def __init__(self, source: SourceConfig) -> None:
        self._source = source
        self._remedy = f"; set text, label, group or by of the source {source_name(source)}"
        self._missing = list(columns_of(source))
        """Columns that no row has had so far, in the order of the recipe."""
        self._first: Row | None = None
        self._rows = 0
        self._skipped = 0
        self._first_skipped = ""
        """The place of the first skipped row, and the reason."""
        self._words = MissingWords()

    def read(self, opened: Iterable[Table]) -> Iterator[Document]:
        """All documents of the files, or of the hub data set if there is none, up to the source's limit."""
        try:
            opened = iter(opened)
            if first := next(opened, None):
                parts = map(self._of_file, itertools.chain([first], opened))
                yield from self._limited(itertools.chain.from_iterable(parts), first.name)
                return
            place = hub_place(self._source)
            rows = ((f"{place}, row {number}", cells) for number, cells in enumerate(hub_rows(self._source), 1))
            yield from self._limited(self._of_rows(rows, place), place)
        except TableError as error:
            said = in_recipe(str(error))
            raise SourceError(f"{said}{self._remedy * ('no column' in said)}") from error

    def _limited(self, found: Iterable[Document], place: str) -> Iterator[Document]:
        count = 0
        for count, document in enumerate(found, 1):
            yield document
            if count == self._source.limit:
                break
        self._check_columns()
        if not count:
            first = f" (the first row is {self._first_skipped})" if self._first_skipped else ""
            raise SourceError(f"{place}: holds no text; fill it, or take it out of the source{first}")
        if self._skipped:
            log_once(
                f"{source_name(self._source)}: {self._skipped:,} of {self._rows:,} rows have no text and are skipped "
                f"(the first is {self._first_skipped})"
            )
        for note in self._words.notes(self._rows):
            log_once(f"{source_name(self._source)}: {note}")

    # --- a file ----------------------------------------------------------------------------------------------

    def _of_file(self, table: Table) -> Iterator[Document]:
        file = Path(table.name)
        form = form_of(file, self._source)
        if table.format != "lines":
            return self._of_rows(read_rows(table, self._source), table.name)
        if {self._source.group, self._source.by} - {None, CONTAINING}:
            raise SourceError(f"{file}: has no column for group or by; leave them out, or write the texts as CSV")
        numbered = plain_text.numbered_lines(table)
        if form == "fasttext":
            return self._of_fasttext(numbered, file)
        if self._source.format == "auto":
            numbered = plain_text.check_unlabelled(numbered, table.name)
        lines: Iterator[str] = (line for _, line in numbered)
        boundary = self._source.boundary
        if self._source.label is None and boundary is None and form != "document":
            lines, boundary = plain_text.surveyed(lines, source_name(self._source)), plain_text.BLANK
        if self._source.label in (None, "folder"):
            return self._of_whole(
                lines, table.name, boundary, self._source.label and path_columns(table.name)["folder"]
            )
        raise SourceError(
            f"{file}: plain text has no column for the label; if each file is one text and its folder names the "
            "label, set the source's `label` to \"folder\"; if its labels are fastText's, set `format` to "
            '"fasttext"; else write the texts as CSV or JSONL'
        )

    def _of_whole(
        self, lines: Iterable[str], place: str, boundary: re.Pattern[str] | None, label: str | None = None
    ) -> Iterator[Document]:
        """The lines as one text, or as one between boundaries."""
        self._rows += 1
        text = ""
        for text in filter(None, map(self._tidy, plain_text.whole_texts(lines, boundary))):
            yield Document((text,), label, place=place)
        if not text:
            self._skip(place)

    def _of_fasttext(self, numbered: Iterable[tuple[int, str]], file: Path) -> Iterator[Document]:
        for number, line in numbered:
            labels, text = plain_text.fasttext_line(line)
            place = f"{file}, line {number}"
            self._rows += bool(labels or text)  # blank lines are not counted
            if text:
                yield Document((text,), labels[0] if len(set(labels)) == 1 else tuple(labels) or None, place=place)
            elif labels:
                self._skip(place)

    # --- rows ------------------------------------------------------------------------------------------------

    def _of_rows(self, rows: Iterable[Row], place: str) -> Iterator[Document]:
        seen = map(self._seen, rows)
        if self._source.boundary and self._source.label is None:
            texts = (cell_text(cells.get(self._source.text[0])) or "" for _, cells in seen)
            lines = (line for text in texts for line in text.splitlines() or [""])
            return self._of_whole(lines, place, self._source.boundary)
        return filter(None, map(self._document, seen))

    def _seen(self, row: Row) -> Row:
        """The row, after counting it and noting its columns.

        Raises:
            SourceError: none of the first rows of the source has one of its columns.
        """
        self._rows += 1
        if self._missing:
            self._first = self._first or row
            self._missing = [name for name in self._missing if name not in row[1]]
            if self._rows == FIRST_ROWS:
                self._check_columns()
        return row

    def _check_columns(self) -> None:
        if self._missing and self._first is not None:
            place, cells = self._first
            there = ", ".join(map(str, cells))
            raise SourceError(f"{place}: no column {self._missing[0]!r}; there are {there}{self._remedy}")

    def _document(self, row: Row) -> Document | None:
        """The row's text columns as a document. None if it has no text, which is counted."""
        place, cells = row
        fields, reason = [], ""
        for name in self._source.text:
            text = cell_text(cells.get(name))
            if text is None:
                value = cells[name]
                reason = f": {name!r} is the {type(value).__name__} {value!r:.40}, not a text"
                break
            self._words.count(name, text)
            if self._source.escaped_newlines:
                text = text.replace("\\n", "\n")
            fields.append(self._tidy(text))
        if reason or not any(fields):
            self._skip(f"{place}{reason}")
            return None
        try:
            labels = row_labels(cells, self._source)
            others = (self._source.group or "", self._source.by or "")
            group, domain = (cell_label(cells.get(name), name) for name in others)
        except TableError as error:
            raise SourceError(f"{place}: {error}") from error
        return Document(tuple(fields), labels, group, domain, place)

    def _tidy(self, text: str) -> str:
        """Normalise the text of a row, or of a file that is one text."""
        text = plain_text.tidy(plain_text.without_breaks(text) if self._source.label is None else text)
        return plain_text.unwrapped(text) if self._source.lines == "wrapped" else text

    def _skip(self, place: str) -> None:
        self._skipped += 1
        self._first_skipped = self._first_skipped or place
