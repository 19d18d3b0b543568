"""Opens files and standard input as bytes and as text: recognised, and decompressed, by their first bytes."""

from __future__ import annotations

import bz2
import codecs
import gzip
import importlib
import io
import lzma
import os
import re
import select
import stat
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO, cast

from bert_tables.errors import TableError

COMPRESSION_SUFFIXES = (".gz", ".xz", ".bz2", ".zst")
READ_ERRORS = (OSError, EOFError, lzma.LZMAError, zlib.error)
"""Errors of reading if the disk or the contents of a compressed file are damaged."""

MAX_LINE = 2**27
"""Maximum characters of a line, so that a small compressed file does not fill the memory."""
_MAX_LAYERS = 3
_MIN_UTF8_SHARE = 0.1
"""Minimum share of valid UTF-8 among the lines with other characters than ASCII. Below it, these lines are valid by
chance: in GBK or KOI8-R, one word can be."""

Progress = Callable[[int], object]
"""Called with each number of bytes that were read from a file, before decompression."""

_KINDS = (
    (
        rb"PK(\x03\x04|\x05\x06).*(\[Content_Types\]\.xml|xl/|word/|opendocument)|\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1",
        "an Excel workbook or another Office file",
        "save the sheet or its table as CSV",
    ),
    (
        rb"PK(\x03\x04|\x05\x06)|7z\xbc\xaf\x27\x1c|Rar!\x1a\x07|.{257}ustar|"
        rb"\x1f\x9d|\x04\x22\x4d\x18|\xff\x06\x00\x00sNaPpY|\]\x00\x00|LZIP\x01",
        "an archive, such as zip, or compressed",
        "unpack it, and give the file inside",
    ),
    (
        rb"ARROW1\x00|FEA1\x00|\xff{4}.{3}\x00\x10\x00\x00\x00|ORC[\x00-\x08\x0b\x0c\x0e-\x1f]|Obj\x01|"
        rb"SQLite format 3\x00|\x89HDF|\x93NUMPY|\x80[\x02-\x05]",
        "a file of Arrow, ORC, Avro, SQLite, HDF5, NumPy or pickle",
        "write it as CSV, JSON lines or Parquet, such as a split of datasets.load_from_disk(FOLDER) by to_parquet",
    ),
    (rb"%PDF-|\{\\rtf|\x89PNG|\xff\xd8\xff|GIF8[79]a", "a PDF or RTF document or a picture", "give a file of texts"),
    (rb"version https://git-lfs\.github\.com/spec/", "a Git LFS pointer, not the data", "run `git lfs pull`"),
)
_MARKUP = (
    rb"(?i)\s*<(!--|\?xml|(!doctype\s+html|html|head|meta|body|table)\b)",
    "an HTML page or an XML document",
    "if a download gave a page (an error, a login), download the file again; else convert it to CSV or JSON lines",
)
_BYTE_ORDER_MARKS = (  # UTF-32's begins as UTF-16's does
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


@dataclass(frozen=True, slots=True)
class File:
    """An opened file."""

    name: str
    """Name for messages."""
    content: BinaryIO
    """Decompressed content; it has `peek` and `read1`."""
    head: bytes
    """The first bytes of `content`."""
    size: int | None
    """Size in bytes, before decompression; None for a pipe."""
    is_compressed: bool

    @property
    def is_parquet(self) -> bool:
        """Whether the first bytes are those of a Parquet file."""
        return re.match(rb"PAR1[\x00-\x1f]", self.head) is not None

    @property
    def start(self) -> bytes:
        """The first bytes. If they begin with a byte order mark, it is removed, and the rest is converted to UTF-8."""
        marked = self.marked_encoding
        return self.head.decode(marked, "replace").encode() if marked else self.head

    def check_kind(self, *, markup: bool) -> None:
        """Raise TableError if the first bytes are not text or, with `markup`, if they are HTML or XML."""
        for pattern, what, remedy in (*_KINDS, *[_MARKUP] * markup):
            if re.match(pattern, self.start, re.DOTALL):
                raise TableError(f"{self.name}: is {what}; {remedy}")

    @property
    def marked_encoding(self) -> str | None:
        """The encoding of the byte order mark; None without one."""
        return next((name for mark, name in _BYTE_ORDER_MARKS if self.head.startswith(mark)), None)


@contextmanager
def open_file(name: str, progress: Progress | None = None) -> Iterator[File]:
    """Open a file, or standard input for `-`. A compressed file is recognised by its first bytes, and decompressed.

    Raises:
        TableError: it cannot be opened, or is damaged at its beginning.
    """
    shown = "standard input" if name == "-" else name
    try:
        raw = io.BufferedReader(_CountingFile(0 if name == "-" else name, progress), 2**16)
    except OSError as error:
        raise TableError(f"{shown}: cannot be read ({error.strerror})") from error
    try:
        try:
            status = os.fstat(raw.fileno())
            head, content = raw.peek(1), cast("BinaryIO", raw)
            layers = 0
            while decompressed := _decompressed(content, head, shown):
                if (layers := layers + 1) > _MAX_LAYERS:
                    raise TableError(f"{shown}: is compressed more than {_MAX_LAYERS} times; decompress it first")
                content = decompressed
                head = cast("Any", content).peek(1)
        except READ_ERRORS as error:
            raise TableError(f"{shown}: cannot be read ({error})") from error
        yield File(shown, content, head, status.st_size if stat.S_ISREG(status.st_mode) else None, content is not raw)
    finally:
        raw.raw.close()  # `raw.close` would wait for a thread that reads, and a pipe may never give more


def text_lines(file: File, encoding: str, *, keep_returns: bool = False) -> Iterator[str]:
    """The lines of a file, with their ends. A byte that is not in the encoding becomes a lone surrogate, which
    `text_fault` finds.

    An encoding that extends ASCII is used for lines that are not valid UTF-8, because a folder, or a file made of
    several, may have both. If the file begins with nearly no line in UTF-8, the encoding is used for all lines.

    Args:
        keep_returns: Whether a carriage return ends no line if the first line ends in a line feed.

    Raises:
        TableError: the file is cut off or damaged; raised after the last whole line before that place.
    """
    name = codecs.lookup(encoding).name
    wide = name.startswith(("utf-16", "utf-32"))
    errors = "surrogatepass" if wide else "surrogateescape"
    is_mixed = not wide and name != "utf-8" and _may_be_mixed(file.head, encoding)
    newline = "\n" if keep_returns and re.match(rb"[^\r\n]*\r?\n", file.start) else ""
    text = io.TextIOWrapper(file.content, "utf-8" if is_mixed else encoding, errors, newline=newline)
    number, last = 0, ""
    try:
        for line in iter(partial(text.readline, MAX_LINE), ""):
            if len(line) == MAX_LINE:
                raise TableError(f"{file.name}: a line after line {number} has more than {MAX_LINE:,} characters")
            if line == "\r\n" and last.endswith("\r"):  # "\r\r\n": text mode on Windows has written "\r\n"
                continue
            number += not last or last.endswith(("\n", "\r"))
            last = line
            if is_mixed and not _is_unicode(line):
                line = line.encode(errors=errors).decode(encoding, errors)
            if line := line.lstrip("\ufeff"):  # the byte order mark of a file that was appended
                yield line
    except (*READ_ERRORS, UnicodeError) as error:
        if "start with BOM" not in str(error):  # a UnicodeDecodeError from Python 3.13 on
            raise damage(file.name, f"line {number}", error) from error
        remedy = f"state --encoding {name}-le or {name}-be if it is {name}, else its own encoding"
        raise TableError(f"{file.name}: does not begin with a byte order mark; {remedy}") from error
    finally:
        if not file.content.closed:
            text.detach()  # otherwise it closes the file


def _may_be_mixed(head: bytes, encoding: str) -> bool:
    """Whether lines of a file that begins with these bytes may be UTF-8, though another encoding is stated."""
    ascii_bytes = bytes(range(128))
    if ascii_bytes.decode(encoding, "replace") != ascii_bytes.decode():
        return False
    decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")  # the last bytes may be half a character
    valid = [_is_unicode(line) for line in decoder.decode(head).splitlines() if not line.isascii()]
    return sum(valid) >= _MIN_UTF8_SHARE * len(valid)


def _is_unicode(line: str) -> bool:
    """Whether a text has no lone surrogate, which stands for a byte of another encoding."""
    try:
        line.encode()  # faster than a search for surrogates
    except UnicodeEncodeError:
        return False
    return True


def damage(name: str, place: str, error: Exception) -> TableError:
    """The error of a file that can be read only up to a place."""
    what = "cut off" if isinstance(error, EOFError | UnicodeDecodeError) else "damaged"
    return TableError(f"{name}: the file is {what} after {place} ({error}); get a whole copy of it")


def text_fault(text: str, encoding: str) -> str | None:
    """The fault of a text that holds a NUL or bytes that are not in its encoding; None without one."""
    if "\0" in text:
        return "it holds a NUL byte; if the file is UTF-16, add --encoding utf-16-le"
    if _is_unicode(text):
        return None
    code = ord(next(character for character in text if "\ud800" <= character <= "\udfff")) - 0xDC00
    if not 0x80 <= code <= 0xFF:
        return "it holds a lone surrogate of UTF-16"
    return f"byte {code:#04x} is not {encoding.removesuffix('-sig').upper()}: add --encoding windows-1252, or another"


def library(name: str, wanted_by: str) -> Any:
    """Import an optional module. Raises TableError that says how to install it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise TableError(f"{wanted_by}: needs a library to be read; run `pip install {package}`") from error


def _decompressed(content: BinaryIO, head: bytes, name: str) -> BinaryIO | None:
    """The decompressed content of a file; None if its first bytes are not those of a compressed file."""
    if head.startswith(b"\x1f\x8b\x08"):
        return cast("BinaryIO", gzip.GzipFile(fileobj=content, mode="rb"))
    if re.match(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)", head):
        return io.BufferedReader(_DecompressedFile(content, bz2.BZ2Decompressor, OSError))
    if head.startswith(b"\xfd7zXZ\x00"):
        start = partial(lzma.LZMADecompressor, lzma.FORMAT_XZ)
        return io.BufferedReader(_DecompressedFile(content, start, lzma.LZMAError))
    if re.match(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18", head):  # pzstd begins with a skippable frame
        zstandard = library("zstandard", name)
        start = zstandard.ZstdDecompressor(max_window_size=2**31).decompressobj  # `zstd --long=31`
        return io.BufferedReader(_DecompressedFile(content, start, zstandard.ZstdError))
    return None


class _CountingFile(io.FileIO):
    """A file that reports the number of bytes read. Standard input stays open."""

    def __init__(self, file: str | int, progress: Progress | None) -> None:
        super().__init__(file, closefd=isinstance(file, str))
        self._progress = progress

    def readinto(self, buffer: Any) -> int:
        while (count := super().readinto(buffer)) is None:  # a non-blocking pipe that is empty for now
            select.select([self], [], [])
        if self._progress:
            self._progress(count)
        return count


class _DecompressedFile(io.RawIOBase):
    """The contents of all streams of a compressed file.

    The readers of the standard library ignore damage after the first stream. zstandard's takes a truncated file for a
    whole one.

    Args:
        start: Makes the decompressor of a stream.
        error: The decompressor's error if the stream is damaged.
    """

    def __init__(self, raw: BinaryIO, start: Callable[[], Any], error: type[Exception]) -> None:
        self._raw = raw
        self._start = start
        self._error = error
        self._stream = start()
        self._out = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._out:
            # zstandard cannot limit the output; a kilobyte becomes 32 MB at most.
            data, limited = b"", hasattr(self._stream, "needs_input")
            size = 2**14 if limited else 2**10
            if self._stream.eof:
                data = self._stream.unused_data.lstrip(b"\0")  # padding
                while not data and (more := self._raw.read(size)):
                    data = more.lstrip(b"\0")
                if not data:
                    return 0
                self._stream = self._start()
            elif (not limited or self._stream.needs_input) and not (data := self._raw.read(size)):
                raise EOFError("the file ends within a frame")
            try:
                self._out = memoryview(self._stream.decompress(data, *[2**16] * limited))
            except self._error as error:
                raise OSError(str(error)) from error
        count = min(len(buffer), len(self._out))
        buffer[:count], self._out = self._out[:count], self._out[count:]
        return count
