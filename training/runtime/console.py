"""Guards standard output and standard error, so that their errors do not end a training."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO


class Console:
    """A stream in front of standard output or standard error. Characters that its encoding lacks are escaped. After an
    error, as of a closed terminal, a pipe without a reader or a full disk, all further text is dropped silently."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace", line_buffering=True)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write a text, or drop it."""
        self._attempt(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        """Write what is buffered, or drop it."""
        self._attempt(self._stream.flush)

    def _attempt(self, call: Callable[[], object]) -> None:
        try:
            call()
        except OSError:
            # The null device takes what is still buffered, too: an error at the interpreter's exit changes its status.
            with suppress(OSError), Path(os.devnull).open("wb") as null:  # OSError: a stream without a descriptor
                os.dup2(null.fileno(), self._stream.fileno())


def guard_console() -> None:
    """Put a `Console` in front of both streams of this process, once."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)  # None if its descriptor is closed
        if not isinstance(stream, Console):
            setattr(sys, name, Console(stream or Path(os.devnull).open("w")))  # noqa: SIM115 (until the process ends)
