"""Files and hub data sets to documents, streamed: memory holds one document and a read buffer."""

from __future__ import annotations

import hashlib
import itertools
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from glob import glob
from pathlib import Path
from typing import Any, BinaryIO

from training.errors import SourceError
from training.recipe import SourceConfig
from training.sources.detokenize import differ, joined
from training.sources.tables import Row, column, csv_rows, json_rows, parquet_rows, tsv_rows
from training.sources.text_files import COMPRESSIONS, Progress, decoded_lines, library, open_bytes

FORMATS = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".tab": "tsv",
    ".parquet": "parquet",
    ".txt": "text",
    ".text": "text",
    ".tokens": "wikitext",
    ".raw": "wikitext",
}
"""What `format = "auto"` makes of a suffix; WikiText itself ships as `.tokens` and `.raw`."""

MAX_CHARACTERS = 4_000_000
"""A longer stretch of plain text without a blank line is read as several documents, to bound memory."""

_BREAK = re.compile(r"(?:<br\s*/?>\s*)+", re.IGNORECASE)
_SURROGATE = re.compile("[\ud800-\udfff]")
_HEADING = re.compile(r"\s*(=(?: ?=)*) (.*\S) (=(?: ?=)*)\s*")
_JOINER = re.compile(r" @([-.,])@ ")


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


def documents(source: SourceConfig, root: Path, progress: Progress | None = None) -> Iterator[Document]:
    """Stream the documents of a source; those without any text are left out.

    Args:
        root: Folder that a relative path starts from.
        progress: Called with each count of bytes that were read from a file.

    Raises:
        SourceError: names the file, the line or row, and the remedy.
    """
    chosen = files(source, root)
    if source.hub is not None and not chosen:
        found = _from_hub(source, source.hub)
    else:
        found = itertools.chain.from_iterable(_from_file(file, source, progress) for file in chosen)
    found = itertools.islice(found, source.limit)
    if source.treebank == "kept":
        return found
    if source.treebank == "joined":
        return map(_as_written, found)
    again = documents(source.model_copy(update={"treebank": "kept"}), root)
    return itertools.chain(found, _other_spellings(again))


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


def files(source: SourceConfig, root: Path) -> list[Path]:
    """The files of a source in the order they are read; none if it is to come from the hub.

    Raises:
        SourceError: no file is there.
    """
    if source.path is None:
        return []
    place = root / source.path
    if place.is_file():
        return [place]
    if place.is_dir():
        chosen = source.format != "auto"
        shown = (file for file in sorted(place.rglob("*")) if not _is_hidden(file.relative_to(place)))
        found = [file for file in shown if file.is_file() and (chosen or _format(file) is not None)]
        if not found:
            ending = "" if chosen else f" ending in {', '.join(FORMATS)}"
            raise SourceError(f"{place}: the directory holds no file{ending}")
        return found
    found = sorted(Path(name) for name in glob(str(place), recursive=True) if Path(name).is_file())  # noqa: PTH207
    if not found and source.hub is None:
        raise SourceError(f"{place}: no such file; relative paths start from the recipe's `data`, now {root}")
    return found


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def file_hashes(sources: Iterable[SourceConfig], root: Path) -> dict[str, str]:
    """SHA-256 of each file of some sources by its path from the root; nothing of what the hub holds."""
    return {os.path.relpath(file, root): _sha256(file) for source in sources for file in files(source, root)}


def _sha256(file: Path) -> str:
    try:
        with file.open("rb") as handle:
            return hashlib.file_digest(handle, "sha256").hexdigest()
    except OSError as error:
        raise SourceError(f"{file}: cannot be read ({error.strerror})") from error


# --- one file ----------------------------------------------------------------------------------------------


def _from_file(file: Path, source: SourceConfig, progress: Progress | None) -> Iterator[Document]:
    empty = True
    with open_bytes(file, progress) as content:
        for document in _read(content, file, source):
            empty = False
            yield document
    if empty:
        raise SourceError(f"{file}: holds no text; fill it, or take it out of the source")


def _read(content: BinaryIO, file: Path, source: SourceConfig) -> Iterator[Document]:
    kind = _format(file) if source.format == "auto" else source.format
    match kind:
        case "jsonl":
            return _from_rows(json_rows(content, file), source, str(file))
        case "csv":
            return _from_rows(csv_rows(content, file), source, str(file))
        case "tsv":
            return _from_rows(tsv_rows(content, file), source, str(file))
        case "parquet":
            columns = filter(None, (*source.text, source.label, source.group))
            return _from_rows(parquet_rows(content, file, list(columns)), source, str(file))
    lines = (line for _, line in decoded_lines(content, file, MAX_CHARACTERS))
    match kind:
        case "text":
            return _joined(_plain_paragraphs(lines), " " if source.lines == "wrapped" else "\n")
        case "wikitext":
            return _joined(_wikitext_paragraphs(lines))
    known = ", ".join(sorted(set(FORMATS.values())))
    raise SourceError(f"{file}: unknown suffix; rename it, or set the source's `format` to one of {known}")


def _format(file: Path) -> str | None:
    """Format by suffix, looking beneath a compression's suffix; None if unknown."""
    inner = file.with_suffix("") if file.suffix in COMPRESSIONS else file
    return FORMATS.get(inner.suffix.lower())


# --- columns ------------------------------------------------------------------------------------------------


def _from_rows(rows: Iterable[Row], source: SourceConfig, place: str) -> Iterator[Document]:
    for where, row in rows:
        at = f"{place}, {where}"
        read = (_text(column(row, name, at), at) for name in source.text)
        if source.escaped_newlines:
            read = (field.replace("\\n", "\n") for field in read)
        fields = tuple(map(_clean if source.label is None else _tidy, read))
        text = "\n".join(filter(None, fields))
        if text:
            label = source.label and _label(column(row, source.label, at))
            group = source.group and _label(column(row, source.group, at))
            yield Document(text, fields, label, group)


def _text(value: Any, at: str) -> str:
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return "\n".join(value)
    raise SourceError(f"{at}: a text column holds {type(value).__name__} {value!r:.40}; name a column of text")


def _label(value: Any) -> str | None:
    if value is None or value == "":
        return None
    if isinstance(value, float) and value.is_integer():  # pandas writes 1 as 1.0 if another row has no label
        return str(int(value))
    return str(value)


def without_breaks(text: str) -> str:
    """Breaks of HTML become newlines."""
    return _BREAK.sub("\n", text) if "<" in text else text


def _clean(text: str) -> str:
    return _tidy(without_breaks(text))


def _tidy(text: str) -> str:
    """Breaks of other systems become newlines; half characters are replaced."""
    if not text.isascii():
        text = _SURROGATE.sub("\ufffd", text)  # JSON can spell what no file can hold
    return text.replace("\r\n", "\n").replace("\r", "\n").strip()


# --- running text -------------------------------------------------------------------------------------------


def _plain_paragraphs(lines: Iterable[str]) -> Iterator[str | None]:
    """Lines of text, and None where a blank line ends a document."""
    for line in lines:
        yield _clean(line) or None


def _wikitext_paragraphs(lines: Iterable[str]) -> Iterator[str | None]:
    """Lines of text, and None where a heading of level 1 begins a document. Headings are no text."""
    for line in lines:
        heading = _HEADING.fullmatch(line)
        if heading is None:
            if paragraph := _clean(line):
                yield _JOINER.sub(r"\1", paragraph).replace("<unk>", "[UNK]")
        elif heading[1] == heading[3] == "=":
            yield None


def _joined(paragraphs: Iterable[str | None], separator: str = "\n") -> Iterator[Document]:
    waiting: list[str] = []
    size = 0
    for paragraph in itertools.chain(paragraphs, [None]):
        if waiting and (paragraph is None or size >= MAX_CHARACTERS):
            text = separator.join(waiting)
            yield Document(text, (text,))
            waiting, size = [], 0
        if paragraph is not None:
            waiting.append(paragraph)
            size += len(paragraph)


# --- the hub ------------------------------------------------------------------------------------------------


def _from_hub(source: SourceConfig, hub: str) -> Iterator[Document]:
    hub_library = library("datasets", f"hub data set {hub}")
    name, _, configuration = hub.partition(":")
    place = f"hub data set {hub}, split {source.split}"
    try:
        dataset = hub_library.load_dataset(name, configuration or None, split=source.split, streaming=True)
        rows = ((f"row {number}", row) for number, row in enumerate(dataset, 1))
        if source.format == "wikitext":
            lines = (_text(column(row, source.text[0], place), place) for _, row in rows)
            yield from _joined(_wikitext_paragraphs(lines))
        else:
            yield from _from_rows(rows, source, place)
    except (OSError, ValueError) as error:  # no such data set, configuration or split; no network
        raise SourceError(f"{place}: {error}") from error
