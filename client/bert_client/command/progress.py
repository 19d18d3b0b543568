"""How far a long job is: a counter on a terminal, and a summary at the end."""

from __future__ import annotations

import time
from typing import TextIO


class Progress:
    """Counts rows, and shows on a terminal how many there are and which share of the file has been read.

    Args:
        every: Seconds between two updates.
    """

    def __init__(self, stream: TextIO, every: float = 0.5) -> None:
        self.rows = 0
        self.failed = 0
        self.size: int | None = None
        """Bytes of the file, if known."""
        self._stream = stream
        self._every = every
        self._start = self._shown = time.monotonic()
        self._visible = stream.isatty()
        self._bytes_read = 0
        self._earlier_rows = 0
        self._warnings = 0

    def read(self, count: int) -> None:
        """Add bytes of the file that have been read."""
        self._bytes_read += count

    def begin(self, rows: int, failed: int) -> None:
        """Start with the rows of an earlier run."""
        self.rows, self.failed, self._earlier_rows = rows, failed, rows

    def count(self, *, failed: bool) -> None:
        """Add a row."""
        self.rows += 1
        self.failed += failed
        if self._visible and time.monotonic() - self._shown >= self._every:
            self._shown = time.monotonic()
            share = f"{self._bytes_read / self.size:4.0%} " if self.size else ""
            self._stream.write(f"\r{share}{self.rows:,} rows")
            self._stream.flush()

    def warn(self, warnings: list[str]) -> None:
        """Write the warnings that are new in this list."""
        for warning in warnings[self._warnings :]:
            self._stream.write("\r" * self._visible + f"{warning}\n")
        self._warnings = len(warnings)

    def end_line(self) -> None:
        """End the counter's line, if there is one."""
        self._stream.write("\n" * self._visible)

    def summarize(self) -> None:
        """Write what the job did."""
        speed = (self.rows - self._earlier_rows) / max(time.monotonic() - self._start, 1e-6)
        self._stream.write(f"{self.rows:,} rows, {self.failed:,} with an error, {speed:,.0f} rows/s\n")
