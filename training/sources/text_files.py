"""Files, compressed or not, to bytes and to decoded lines."""

from __future__ import annotations

import bz2
import codecs
import gzip
import importlib
import io
import lzma
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

from training.errors import SourceError

COMPRESSIONS = (".gz", ".xz", ".bz2", ".zst")

Progress = Callable[[int], object]
"""Called with each count of bytes that were read from a file."""


@contextmanager
def open_bytes(file: Path, progress: Progress | None = None) -> Iterator[BinaryIO]:
    """The contents of a file, decompressed by its suffix.

    Raises:
        SourceError: the file cannot be read or is damaged, there or where its contents are used.
    """
    try:
        with io.BufferedReader(_Counted(file, progress), 2**18) as raw, _decompressed(raw, file) as content:
            yield content
    except _damage() as error:
        raise SourceError(f"{file}: cannot be read ({error})") from error


def decoded_lines(content: BinaryIO, file: Path, limit: int = -1) -> Iterator[tuple[int, str]]:
    """(number from 1, line with its newline), or parts of a line that is longer than the limit.

    Decoded line by line, so that an error can name the line.
    """
    decoder = codecs.getincrementaldecoder("utf-8-sig")()  # a part may end within a character
    number, raw = 0, b"-"
    while raw:
        raw = content.readline(limit)
        number += bool(raw)
        try:
            line = decoder.decode(raw, final=not raw)
        except UnicodeDecodeError as error:
            at = f"{file}, line {number}"
            byte = error.object[error.start]
            raise SourceError(f"{at}: byte {byte:#04x} is no UTF-8; convert the file to UTF-8") from error
        if line:
            yield number, line


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
            return io.BufferedReader(_Zstandard(raw, library("zstandard", str(file)).ZstdDecompressor()))
    return raw


class _Zstandard(io.RawIOBase):
    """The contents of all frames. (zstandard's own reader takes a file that was cut short for a whole one.)"""

    def __init__(self, raw: BinaryIO, decompressor: Any) -> None:
        self._raw = raw
        self._decompressor = decompressor
        self._frame = decompressor.decompressobj()
        self._out = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._out:
            data = self._frame.unused_data or self._raw.read(2**14)
            if not data and not self._frame.eof:
                raise EOFError("the file ends within a frame")
            if not data:
                return 0
            if self._frame.eof:
                self._frame = self._decompressor.decompressobj()
            self._out = memoryview(self._frame.decompress(data))
        count = min(len(buffer), len(self._out))
        buffer[:count], self._out = self._out[:count], self._out[count:]
        return count


def _damage() -> tuple[type[Exception], ...]:
    """What the reading of a file raises if the disk or the file is at fault."""
    zstandard = sys.modules.get("zstandard")
    return (OSError, EOFError, lzma.LZMAError, zlib.error, *([zstandard.ZstdError] if zstandard else []))


def library(name: str, wanted_by: str) -> Any:
    """A module that only some sources need. Raises SourceError, saying how to install it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise SourceError(f"{wanted_by}: needs a library to be read; run `pip install {package}`") from error
