"""Files and hub data sets to documents, streamed: memory holds one document and a read buffer."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bert_client.files import Progress
from training.errors import SourceError
from training.recipe import SourceConfig, source_name
from training.sources.detokenize import differ, joined
from training.sources.files import files, format_of_file, table_format
from training.sources.hub import HubRows, hub_place
from training.sources.plain_text import (
    FASTTEXT_LABEL,
    clean,
    fasttext_line,
    plain_texts,
    read_lines,
    tidy,
    wikitext_texts,
)
from training.sources.tables import Row, columns_of, label_value, log_once, read_rows, text_value

FIRST_ROWS = 1000
"""Rows of a source of which one must have each column: JSON lines may leave out what is null."""


@dataclass(frozen=True, slots=True)
class Document:
    """One text with what is known about it."""

    text: str
    """All text columns as paragraphs, separated by newlines."""
    fields: tuple[str, ...]
    """The text columns apart, e.g. title and content."""
    label: str | None = None
    group: str | None = None
    """Equal for documents that must not be split between train and dev"""
    domain: str | None = None
    """Value of the source's `by` column"""
    origin: str = field(default="", compare=False)
    """The file, and what its parts are: `reviews.csv, line`"""
    number: int = field(default=0, compare=False)
    """Of the line or row in the file, from 1; 0 if the document is the file."""

    @property
    def place(self) -> str:
        """Where it stands, for messages."""
        return f"{self.origin} {self.number}" if self.number else self.origin


def documents(
    source: SourceConfig, root: Path, progress: Progress | None = None, hub_cache: Path | None = None
) -> Iterator[Document]:
    """Stream the documents of a source; rows without text are left out, with a warning that counts them.

    Args:
        root: Folder that a relative path starts from.
        progress: Called with each count of bytes that were read from a file.
        hub_cache: Folder for a copy of what the hub streams, for later passes.

    Raises:
        SourceError: names the file, the line or row, and the remedy.
    """
    found = _documents(source, root, progress, hub_cache)
    if source.treebank == "kept":
        return found
    if source.treebank == "joined":
        return map(_as_written, found)
    again = _documents(source, root, None, hub_cache)
    return itertools.chain(found, _other_spellings(again))


def _documents(
    source: SourceConfig, root: Path, progress: Progress | None, hub_cache: Path | None
) -> Iterator[Document]:
    chosen = files(source, root)
    rows = _RowReader(source)
    if source.hub is not None and not chosen:
        return _from_hub(source, rows, hub_cache)
    return itertools.islice(_from_files(chosen, source, rows, progress), source.limit)


def _as_written(document: Document) -> Document:
    """The text as people write it; its group is the text as it stood, so that both get into the same part."""
    fields = tuple(map(joined, document.fields))
    text = "\n".join(filter(None, fields))
    return replace(document, text=text, fields=fields, group=document.group or document.text)


def _other_spellings(found: Iterable[Document]) -> Iterator[Document]:
    for document in found:
        written = _as_written(document)
        if differ(document.text, written.text):
            yield written


# --- where documents come from -------------------------------------------------------------------------------


def _from_files(
    chosen: Iterable[Path], source: SourceConfig, rows: _RowReader, progress: Progress | None
) -> Iterator[Document]:
    empty: list[Path] = []
    any_text = False
    for file in chosen:
        has_text = False
        for document in _from_file(file, source, rows, progress):
            has_text = any_text = True
            yield document
        if not has_text:
            empty.append(file)
    rows.finish()
    if not any_text:
        reason = rows.first_skipped or "fill it, or take it out of the source"
        raise SourceError(f"{empty[0]}: holds no text; {reason}")
    if empty:
        log_once(f"{source_name(source)}: {len(empty)} files hold no text (the first is {empty[0]})")


def _from_file(file: Path, source: SourceConfig, rows: _RowReader, progress: Progress | None) -> Iterator[Document]:
    form, has_columns = format_of_file(file, source)
    if has_columns:
        found = read_rows(file, table_format(file, form), source, progress)
        if form == "wikitext":
            return _of_texts(wikitext_texts(rows.lines(found)), file)
        return rows.documents(found, f"{file}, {'row' if form == 'parquet' else 'line'}")
    numbered = read_lines(file, source.table.encoding, progress)
    if form == "fasttext":
        return _from_fasttext(numbered, file)
    lines = (line for _, line in numbered)
    if form == "wikitext":
        return _of_texts(wikitext_texts(lines), file)
    if source.label is None:
        return _of_texts(plain_texts(lines, " " if source.lines == "wrapped" else "\n"), file)
    if source.label != "folder":
        raise _no_columns(file, lines)
    return _whole_file(lines, file)


def _of_texts(texts: Iterable[str], file: Path) -> Iterator[Document]:
    return (Document(text, (text,), origin=str(file)) for text in texts)


def _whole_file(lines: Iterable[str], file: Path) -> Iterator[Document]:
    """The file as one document, whose label is the name of its folder."""
    if text := tidy("".join(lines)):
        yield Document(text, (text,), file.parent.name, origin=str(file))


def _from_fasttext(numbered: Iterable[tuple[int, str]], file: Path) -> Iterator[Document]:
    for number, line in numbered:
        labels, text = fasttext_line(line)
        if len(set(labels)) > 1:
            raise SourceError(f"{file}, line {number}: has the labels {', '.join(labels)}; a text has one")
        if text := tidy(text):
            yield Document(text, (text,), labels[0] if labels else None, origin=f"{file}, line", number=number)


def _no_columns(file: Path, lines: Iterator[str]) -> SourceError:
    if next(lines, "").startswith(FASTTEXT_LABEL):
        return SourceError(f"{file}: its labels are fastText's; set the source's `format` to \"fasttext\"")
    return SourceError(
        f"{file}: plain text has no column for the label; if each file is one text and its folder names the "
        'label, set the source\'s `label` to "folder"; else write the texts as CSV or JSONL'
    )


def _from_hub(source: SourceConfig, rows: _RowReader, cache: Path | None) -> Iterator[Document]:
    streamed = HubRows(source, cache)
    try:
        if source.format == "wikitext":
            texts = wikitext_texts(rows.lines(streamed))
            found: Iterator[Document] = (Document(text, (text,), origin=hub_place(source)) for text in texts)
        else:
            found = rows.documents(streamed, f"{hub_place(source)}, row")
        count = 0
        for document in itertools.islice(found, source.limit):
            count += 1
            yield document
        if source.limit is None:
            rows.finish()
        if not count:
            raise SourceError(f"{hub_place(source)}: holds no text; {rows.first_skipped or 'take it out'}")
        streamed.keep()
    finally:
        streamed.close()


# --- rows ----------------------------------------------------------------------------------------------------


class _RowReader:
    """Rows of all files of a source to documents. It counts the rows that it skips."""

    def __init__(self, source: SourceConfig) -> None:
        self._source = source
        self._tidy = clean if source.label is None else tidy
        self._others = (source.label, source.group, source.by)
        self._unseen = set(columns_of(source))
        self._first: tuple[str, Mapping[str, Any]] | None = None
        self._rows = 0
        self._skipped = 0
        self.first_skipped = ""
        """The place of the first row that was skipped, and why."""

    def documents(self, rows: Iterable[Row], origin: str) -> Iterator[Document]:
        """The documents of some rows.

        Raises:
            SourceError: none of the first rows of the source has one of its columns.
        """
        for number, cells in rows:
            self._look(cells, origin, number)
            fields = self._fields(cells, origin, number)
            text = "\n".join(filter(None, fields))
            if not text:
                continue
            label, group, domain = (name and label_value(cells.get(name)) for name in self._others)
            yield Document(text, fields, label, group, domain, origin, number)

    def lines(self, rows: Iterable[Row]) -> Iterator[str]:
        """The first text column of some rows, each a line of text."""
        place = source_name(self._source)
        for number, cells in rows:
            self._look(cells, f"{place}, row", number)
            line = cells.get(self._source.text[0])
            yield from line.splitlines() if isinstance(line, str) else ()

    def finish(self) -> None:
        """All rows have been read: check the columns, and tell what was skipped."""
        if self._rows:
            self._check_columns()
        if self._skipped:
            log_once(
                f"{source_name(self._source)}: {self._skipped:,} of {self._rows:,} rows have no text and are "
                f"skipped (the first is {self.first_skipped})"
            )

    def _look(self, cells: Mapping[str, Any], origin: str, number: int) -> None:
        self._rows += 1
        if self._unseen:
            self._first = self._first or (f"{origin} {number}", cells)
            self._unseen -= cells.keys()
            if self._rows == FIRST_ROWS:
                self._check_columns()

    def _check_columns(self) -> None:
        if self._unseen and self._first is not None:
            place, cells = self._first
            missing = next(name for name in columns_of(self._source) if name in self._unseen)
            raise SourceError(f"{place}: no column {missing!r}; there are {', '.join(map(str, cells))}")

    def _fields(self, cells: Mapping[str, Any], origin: str, number: int) -> tuple[str, ...]:
        """The text columns; none of a row that has no text."""
        fields = []
        for name in self._source.text:
            text = text_value(cells.get(name))
            if text is None:
                value = cells[name]
                self._skip(f"{origin} {number}: {name!r} is the {type(value).__name__} {value!r:.40}, not a text")
                return ()
            if self._source.escaped_newlines:
                text = text.replace("\\n", "\n")
            fields.append(self._tidy(text))
        if not any(fields):
            self._skip(f"{origin} {number}")
        return tuple(fields)

    def _skip(self, place: str) -> None:
        self._skipped += 1
        self.first_skipped = self.first_skipped or place
