"""Files and hub data sets to documents, one at a time: nothing here holds more than a document and a buffer."""

from __future__ import annotations

import bz2
import csv
import gzip
import importlib
import io
import itertools
import json
import lzma
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from glob import glob
from pathlib import Path
from typing import Any

from training.config import SourceConfig
from training.errors import SourceError

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

COMPRESSIONS = (".gz", ".xz", ".bz2", ".zst")

MAX_CHARACTERS = 4_000_000
"""A longer stretch of plain text without a blank line is read as several documents, to bound memory."""

_BREAK = re.compile(r"\s*<br\s*/?>\s*", re.IGNORECASE)
_HEADING = re.compile(r"\s*(=(?: ?=)*) (.*\S) (=(?: ?=)*)\s*")
_JOINER = re.compile(r" @([-.,])@ ")
_DAMAGED = (EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile)


@dataclass(frozen=True, slots=True)
class Document:
    """One text with what is known about it."""

    text: str
    """All text columns as paragraphs, separated by newlines."""
    fields: tuple[str, ...]
    """The text columns apart, e.g. title and content."""
    label: str | None = None
    group: str | None = None


def documents(source: SourceConfig, root: Path) -> Iterator[Document]:
    """Stream the documents of a source; those without any text are left out.

    Raises:
        SourceError: names the file, the line or row, and the remedy.
    """
    if source.hub is not None:
        found = _from_hub(source, source.hub)
    else:
        found = itertools.chain.from_iterable(_from_file(file, source) for file in files(source, root))
    return itertools.islice(found, source.limit)


def files(source: SourceConfig, root: Path) -> list[Path]:
    """The files of a source in the order they are read; none for a hub data set.

    Raises:
        SourceError: no file is there.
    """
    if source.path is None:
        return []
    place = root / source.path
    if place.is_file():
        return [place]
    if place.is_dir():
        found = [file for file in sorted(place.rglob("*")) if file.is_file() and _format(file) is not None]
        if not found:
            raise SourceError(f"{place}: the directory holds no file ending in {', '.join(FORMATS)}")
        return found
    found = sorted(Path(name) for name in glob(str(place), recursive=True) if Path(name).is_file())  # noqa: PTH207
    if not found:
        raise SourceError(f"{place}: no such file; relative paths start from the recipe's `data`, now {root}")
    return found


def source_name(source: SourceConfig) -> str:
    """How reports and folders call a source: its name, else that of its file or data set."""
    name = source.name or source.hub or Path(source.path or "").name.split(".")[0]
    return re.sub(r"[^\w.-]+", "-", name).strip("-.") or "source"


# --- one file ----------------------------------------------------------------------------------------------


def _from_file(file: Path, source: SourceConfig) -> Iterator[Document]:
    kind = _format(file) if source.format == "auto" else source.format
    readers: dict[str | None, Callable[[], Iterator[Document]]] = {
        "jsonl": lambda: _from_rows(_json_rows(file), source, str(file)),
        "csv": lambda: _from_rows(_csv_rows(file, "excel"), source, str(file)),
        "tsv": lambda: _from_rows(_tsv_rows(file), source, str(file)),
        "parquet": lambda: _from_rows(_parquet_rows(file, source), source, str(file)),
        "text": lambda: _from_plain_text(file, source),
        "wikitext": lambda: _from_wikitext(line for _, line in _lines(file)),
    }
    if kind not in readers:
        known = ", ".join(filter(None, readers))
        raise SourceError(f"{file}: unknown suffix; rename it, or set the source's format to one of {known}")
    empty = True
    for document in readers[kind]():
        empty = False
        yield document
    if empty:
        raise SourceError(f"{file}: the file holds no text; remove it from the source, or fill it")


def _format(file: Path) -> str | None:
    """Format by suffix, looking beneath a compression's suffix; None if unknown or a hidden file."""
    if file.name.startswith("."):
        return None
    inner = file.with_suffix("") if file.suffix in COMPRESSIONS else file
    return FORMATS.get(inner.suffix.lower())


def _open(file: Path) -> io.BufferedIOBase:
    match file.suffix:
        case ".gz":
            return gzip.open(file, "rb")
        case ".xz":
            return lzma.open(file, "rb")
        case ".bz2":
            return bz2.open(file, "rb")
        case ".zst":
            zstandard = _library("zstandard", "zstandard", str(file))
            return io.BufferedReader(zstandard.open(file, "rb"))
    return file.open("rb")


def _library(module: str, package: str, wanted_by: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise SourceError(f"{wanted_by}: reading it needs a library; run `pip install {package}`") from error


def _lines(file: Path) -> Iterator[tuple[int, str]]:
    """(line number from 1, line with its newline). Decoded line by line, so an error can name the line."""
    number = 0
    try:
        with _open(file) as handle:
            while raw := handle.readline(4 * MAX_CHARACTERS):
                number += 1
                yield number, raw.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        where = f"{file}, line {number}"
        raise SourceError(
            f"{where}: byte {error.object[error.start]:#04x} is no UTF-8; convert the file to UTF-8"
        ) from error
    except _DAMAGED as error:
        raise SourceError(
            f"{file}, after line {number}: the compressed file is damaged ({error}); fetch it again"
        ) from error


# --- formats with columns -----------------------------------------------------------------------------------

Row = tuple[str, Mapping[str, Any]]
"""Where it is, for messages ("line 7"), and its columns."""


def _from_rows(rows: Iterable[Row], source: SourceConfig, place: str) -> Iterator[Document]:
    for where, row in rows:
        fields = tuple(
            _clean(_text(_column(row, name, f"{place}, {where}"), f"{place}, {where}")) for name in source.text
        )
        text = "\n".join(field for field in fields if field)
        if text:
            label = source.label and _label(_column(row, source.label, f"{place}, {where}"))
            group = source.group and _label(_column(row, source.group, f"{place}, {where}"))
            yield Document(text, fields, label, group)


def _column(row: Mapping[str, Any], name: str, where: str) -> Any:
    try:
        return row[name]
    except KeyError:
        raise SourceError(f"{where}: no column {name!r}; there are {', '.join(map(str, row))}") from None


def _text(value: Any, where: str) -> str:
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return "\n".join(value)
    raise SourceError(f"{where}: the text column holds {type(value).__name__} {value!r:.40}, not text")


def _label(value: Any) -> str | None:
    if value is None or value == "":
        return None
    if isinstance(value, float) and value.is_integer():  # pandas writes a column with holes as 1.0
        return str(int(value))
    return str(value)


def _clean(text: str) -> str:
    """Breaks of HTML and of other systems become newlines."""
    if "<" in text:
        text = _BREAK.sub("\n", text)
    return text.replace("\r\n", "\n").replace("\r", "\n").strip()


def _json_rows(file: Path) -> Iterator[Row]:
    for number, line in _lines(file):
        if line.isspace():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise SourceError(
                f"{file}, line {number}: invalid JSON ({error}); every line is one object"
            ) from error
        if not isinstance(row, dict):
            remedy = "; write one object per line (jq -c '.[]')" if isinstance(row, list) else ""
            raise SourceError(f"{file}, line {number}: a JSON {type(row).__name__}, not an object{remedy}")
        yield f"line {number}", row


def _csv_rows(file: Path, dialect: str, **options: Any) -> Iterator[Row]:
    csv.field_size_limit(2**31 - 1)  # the default refuses a text over 128 KiB
    reader = csv.reader((line for _, line in _lines(file)), dialect, **options)
    names: list[str] = []
    try:
        for values in reader:
            if not names:
                names = values
            elif len(values) == len(names):
                yield f"line {reader.line_num}", dict(zip(names, values, strict=True))
            elif values:
                raise SourceError(
                    f"{file}, line {reader.line_num}: {len(values)} fields, but the header names {len(names)}: "
                    f"{', '.join(names)}; quote the fields"
                )
    except csv.Error as error:
        raise SourceError(f"{file}, line {reader.line_num}: {error}; quote the fields") from error


def _tsv_rows(file: Path) -> Iterator[Row]:
    """Quoted as a spreadsheet does, unless the file's beginning shows quotes that are just text (GLUE)."""
    beginning = [line.rstrip("\r\n").split("\t") for _, line in itertools.islice(_lines(file), 1000)]
    regular = len({len(fields) for fields in beginning}) == 1
    stray = any(_is_stray(field) for fields in beginning for field in fields)
    return _csv_rows(file, "excel-tab", quoting=csv.QUOTE_NONE if regular and stray else csv.QUOTE_MINIMAL)


def _is_stray(field: str) -> bool:
    """Begins with a quote that does not enclose the field."""
    return field.startswith('"') and not re.fullmatch(r'"(?:[^"]|"")*"', field)


def _parquet_rows(file: Path, source: SourceConfig) -> Iterator[Row]:
    parquet = _library("pyarrow.parquet", "pyarrow", str(file))
    try:
        table = parquet.ParquetFile(file)
    except (OSError, ValueError) as error:  # pyarrow's own errors derive from these
        raise SourceError(f"{file}: no readable Parquet file ({error})") from error
    names = set(table.schema_arrow.names)
    wanted = [name for name in (*source.text, source.label, source.group) if name is not None]
    for name in wanted:
        if name not in names:
            raise SourceError(f"{file}: no column {name!r}; there are {', '.join(table.schema_arrow.names)}")
    number = 0
    for batch in table.iter_batches(batch_size=512, columns=wanted):
        for row in batch.to_pylist():
            number += 1
            yield f"row {number}", row


# --- plain text ---------------------------------------------------------------------------------------------


def _from_plain_text(file: Path, source: SourceConfig) -> Iterator[Document]:
    """A blank line ends a document; lines stay lines unless the source says that they are only wrapped."""
    separator = " " if source.lines == "wrapped" else "\n"
    paragraphs: list[str] = []
    size = 0
    for _, line in _lines(file):
        paragraph = _clean(line)
        if paragraph and size < MAX_CHARACTERS:
            paragraphs.append(paragraph)
            size += len(paragraph)
            continue
        yield from _joined(paragraphs, separator)
        paragraphs = [paragraph] if paragraph else []
        size = len(paragraph)
    yield from _joined(paragraphs, separator)


def _from_wikitext(lines: Iterable[str]) -> Iterator[Document]:
    """A heading of level 1 begins a document; deeper headings are left out."""
    paragraphs: list[str] = []
    for line in lines:
        heading = _HEADING.fullmatch(line)
        if heading is None:
            paragraph = _JOINER.sub(r"\1", line.strip()).replace("<unk>", "[UNK]")
            paragraphs += [paragraph] if paragraph else []
        elif heading[1] == heading[3] == "=":
            yield from _joined(paragraphs)
            paragraphs = []
    yield from _joined(paragraphs)


def _joined(paragraphs: list[str], separator: str = "\n") -> Iterator[Document]:
    if paragraphs:
        text = separator.join(paragraphs)
        yield Document(text, (text,))


# --- the hub ------------------------------------------------------------------------------------------------


def _from_hub(source: SourceConfig, hub: str) -> Iterator[Document]:
    library = _library("datasets", "datasets", f"hub data set {hub}")
    name, _, configuration = hub.partition(":")
    place = f"hub data set {hub}, split {source.split}"
    try:
        rows = library.load_dataset(name, configuration or None, split=source.split, streaming=True)
        numbered = ((f"row {number}", row) for number, row in enumerate(rows, 1))
        if source.format == "wikitext":
            lines = (_text(_column(row, source.text[0], f"{place}, {where}"), place) for where, row in numbered)
            yield from _from_wikitext(lines)
        else:
            yield from _from_rows(numbered, source, place)
    except (OSError, ValueError) as error:  # not found, no network, no such split or configuration
        raise SourceError(f"{place}: {error}") from error
