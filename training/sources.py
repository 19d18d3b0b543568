"""Files and hub data sets to documents, one at a time: nothing here holds more than a document and a buffer."""

from __future__ import annotations

import bz2
import codecs
import csv
import functools
import gzip
import importlib
import io
import itertools
import json
import lzma
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from glob import glob
from pathlib import Path
from typing import Any, BinaryIO, cast

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

_BREAK = re.compile(r"(?:<br\s*/?>\s*)+", re.IGNORECASE)
_SURROGATE = re.compile("[\ud800-\udfff]")
_HEADING = re.compile(r"\s*(=(?: ?=)*) (.*\S) (=(?: ?=)*)\s*")
_JOINER = re.compile(r" @([-.,])@ ")

Progress = Callable[[int], object]


@dataclass(frozen=True, slots=True)
class Document:
    """One text with what is known about it."""

    text: str
    """All text columns as paragraphs, separated by newlines."""
    fields: tuple[str, ...]
    """The text columns apart, e.g. title and content."""
    label: str | None = None
    group: str | None = None


def documents(source: SourceConfig, root: Path, progress: Progress | None = None) -> Iterator[Document]:
    """Stream the documents of a source; those without any text are left out.

    Args:
        root: Folder that a relative path starts from.
        progress: Called with each count of bytes that were read from a file.

    Raises:
        SourceError: names the file, the line or row, and the remedy.
    """
    if source.hub is not None:
        found = _from_hub(source, source.hub)
    else:
        found = itertools.chain.from_iterable(
            _from_file(file, source, progress) for file in files(source, root)
        )
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


def _from_file(file: Path, source: SourceConfig, progress: Progress | None) -> Iterator[Document]:
    kind = _format(file) if source.format == "auto" else source.format
    empty = True
    try:
        with io.BufferedReader(_Counted(file, progress), 2**18) as raw, _decompressed(raw, file) as content:
            for document in _read(kind, content, file, source):
                empty = False
                yield document
    except _damage() as error:
        raise SourceError(f"{file}: cannot be read ({error})") from error
    if empty:
        raise SourceError(f"{file}: holds no text; fill it, or take it out of the source")


def _read(kind: str | None, content: BinaryIO, file: Path, source: SourceConfig) -> Iterator[Document]:
    match kind:
        case "jsonl":
            return _from_rows(_json_rows(content, file), source, str(file))
        case "csv":
            return _from_rows(_csv_rows(content, file), source, str(file))
        case "tsv":
            return _from_rows(_tsv_rows(content, file), source, str(file))
        case "parquet":
            return _from_rows(_parquet_rows(content, file, source), source, str(file))
        case "text":
            return _from_plain_text(content, file, source)
        case "wikitext":
            return _from_wikitext(line for _, line in _lines(content, file, MAX_CHARACTERS))
    known = ", ".join(sorted(set(FORMATS.values())))
    raise SourceError(f"{file}: unknown suffix; rename it, or set the source's `format` to one of {known}")


def _format(file: Path) -> str | None:
    """Format by suffix, looking beneath a compression's suffix; None if unknown or a hidden file."""
    if file.name.startswith("."):
        return None
    inner = file.with_suffix("") if file.suffix in COMPRESSIONS else file
    return FORMATS.get(inner.suffix.lower())


class _Counted(io.FileIO):
    """A file that says how much of it was read."""

    def __init__(self, file: Path, progress: Progress | None) -> None:
        super().__init__(file)
        self._progress = progress

    def readinto(self, buffer: Any) -> int:
        count = super().readinto(buffer) or 0
        if self._progress:
            self._progress(count)
        return count


def _decompressed(raw: BinaryIO, file: Path) -> BinaryIO:
    match file.suffix:
        case ".gz":
            return cast("BinaryIO", gzip.open(raw))
        case ".xz":
            return cast("BinaryIO", lzma.open(raw))
        case ".bz2":
            return cast("BinaryIO", bz2.open(raw))
        case ".zst":
            return io.BufferedReader(_library("zstandard", str(file)).open(raw))
    return raw


def _damage() -> tuple[type[Exception], ...]:
    """What the reading of a file raises if the disk or the file is at fault."""
    zstandard = sys.modules.get("zstandard")
    return (OSError, EOFError, lzma.LZMAError, zlib.error, *([zstandard.ZstdError] if zstandard else []))


def _library(name: str, wanted_by: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise SourceError(f"{wanted_by}: needs a library to be read; run `pip install {package}`") from error


def _lines(content: BinaryIO, file: Path, limit: int = -1) -> Iterator[tuple[int, str]]:
    """(number from 1, line with its newline), or parts of a line that is longer than the limit.

    Decoded line by line, so that an error can name the line.
    """
    decoder = codecs.getincrementaldecoder("utf-8-sig")()  # a part may end within a character
    for number, raw in enumerate(iter(functools.partial(content.readline, limit), b""), 1):
        try:
            line = decoder.decode(raw)
        except UnicodeDecodeError as error:
            byte = f"byte {error.object[error.start]:#04x}"
            raise SourceError(
                f"{file}, line {number}: {byte} is no UTF-8; convert the file to UTF-8"
            ) from error
        yield number, line


# --- formats with columns -----------------------------------------------------------------------------------

Row = tuple[str, Mapping[str, Any]]
"""Where it is, for messages ("line 7"), and its columns."""


def _from_rows(rows: Iterable[Row], source: SourceConfig, place: str) -> Iterator[Document]:
    for where, row in rows:
        at = f"{place}, {where}"
        fields = tuple(_clean(_text(_column(row, name, at), at)) for name in source.text)
        text = "\n".join(filter(None, fields))
        if text:
            label = source.label and _label(_column(row, source.label, at))
            group = source.group and _label(_column(row, source.group, at))
            yield Document(text, fields, label, group)


def _column(row: Mapping[str, Any], name: str, at: str) -> Any:
    try:
        return row[name]
    except KeyError:
        raise SourceError(f"{at}: no column {name!r}; there are {', '.join(map(str, row))}") from None


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


def _clean(text: str) -> str:
    """Breaks of HTML and of other systems become newlines; half characters are replaced."""
    if "<" in text:
        text = _BREAK.sub("\n", text)
    if not text.isascii():
        text = _SURROGATE.sub("\ufffd", text)  # JSON can spell what no file can hold
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if (
        "\\n" in text and "\n" not in text
    ):  # as Yahoo, Amazon and Yelp reviews are published (Zhang et al. 2015)
        text = text.replace("\\n", "\n")
    return text.strip()


def _json_rows(content: BinaryIO, file: Path) -> Iterator[Row]:
    for number, line in _lines(content, file):
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


def _csv_rows(content: BinaryIO, file: Path) -> Iterator[Row]:
    return _table((line for _, line in _lines(content, file)), file, delimiter=",")


def _tsv_rows(content: BinaryIO, file: Path) -> Iterator[Row]:
    """Quoted as a spreadsheet does, unless the first lines show that a quotation mark is just text (GLUE)."""
    lines = (line for _, line in _lines(content, file))
    beginning = list(itertools.islice(lines, 1000))
    fields = [line.rstrip("\r\n").split("\t") for line in beginning]
    regular = len({len(row) for row in fields}) == 1
    stray = any(_is_stray(field) for row in fields for field in row)
    quoting = csv.QUOTE_NONE if regular and stray else csv.QUOTE_MINIMAL
    return _table(itertools.chain(beginning, lines), file, delimiter="\t", quoting=quoting)


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
                names = values
            elif len(values) == len(names):
                yield at, dict(zip(names, values, strict=True))
            elif values:
                counts = f"{len(values)} fields, but the header names {len(names)} ({', '.join(names)})"
                raise SourceError(f"{file}, {at}: {counts}; quote a field that holds a delimiter or a newline")
    except csv.Error as error:
        remedy = 'in a quoted field, a quotation mark is written twice ("")'
        raise SourceError(f"{file}, line {reader.line_num}: {error}; {remedy}") from error


def _parquet_rows(content: BinaryIO, file: Path, source: SourceConfig) -> Iterator[Row]:
    parquet = _library("pyarrow.parquet", str(file))
    wanted = [name for name in (*source.text, source.label, source.group) if name is not None]
    try:
        table = parquet.ParquetFile(content)
        columns = dict.fromkeys(table.schema_arrow.names)
        for name in wanted:
            _column(columns, name, str(file))
        rows = (row for batch in table.iter_batches(512, columns=wanted) for row in batch.to_pylist())
        for number, row in enumerate(rows, 1):
            yield f"row {number}", row
    except ValueError as error:  # pyarrow's own errors are ValueErrors
        raise SourceError(f"{file}: no Parquet file, or a damaged one ({error})") from error


# --- plain text ---------------------------------------------------------------------------------------------


def _from_plain_text(content: BinaryIO, file: Path, source: SourceConfig) -> Iterator[Document]:
    """A blank line ends a document; lines stay lines unless the source says that they are only wrapped."""
    separator = " " if source.lines == "wrapped" else "\n"
    paragraphs: list[str] = []
    size = 0
    for _, line in _lines(content, file, MAX_CHARACTERS):
        paragraph = _clean(line)
        if not paragraph or size >= MAX_CHARACTERS:
            yield from _joined(paragraphs, separator)
            paragraphs, size = [], 0
        if paragraph:
            paragraphs.append(paragraph)
            size += len(paragraph)
    yield from _joined(paragraphs, separator)


def _from_wikitext(lines: Iterable[str]) -> Iterator[Document]:
    """A heading of level 1 begins a document; headings are no text."""
    paragraphs: list[str] = []
    for line in lines:
        heading = _HEADING.fullmatch(line)
        if heading is None:
            paragraph = _JOINER.sub(r"\1", _clean(line)).replace("<unk>", "[UNK]")
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
    library = _library("datasets", f"hub data set {hub}")
    name, _, configuration = hub.partition(":")
    place = f"hub data set {hub}, split {source.split}"
    try:
        dataset = library.load_dataset(name, configuration or None, split=source.split, streaming=True)
        rows = ((f"row {number}", row) for number, row in enumerate(dataset, 1))
        if source.format == "wikitext":
            yield from _from_wikitext(_text(_column(row, source.text[0], place), place) for _, row in rows)
        else:
            yield from _from_rows(rows, source, place)
    except (OSError, ValueError) as error:  # no such data set, configuration or split; no network
        raise SourceError(f"{place}: {error}") from error
