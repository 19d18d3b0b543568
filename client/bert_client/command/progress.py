"""The progress of a long job: a counter on a terminal, and a summary at the end."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterable
from typing import Any, TextIO

from bert_client.command.output import printable
from bert_tables import MissingWords

SHOWN_ERRORS = 3
"""Number of kinds of errors in the summary, the most frequent first."""
_MAX_KINDS = 1000
_MAX_CHARACTERS = 300
"""This and the number of kinds bound the memory for errors that quote their row."""


class Progress:
    """Counts rows, and shows their number and the share of the file that has been read on a terminal.

    Args:
        every: Seconds between two updates.
    """

    def __init__(self, stream: TextIO, every: float = 0.5) -> None:
        self.rows = self.failed = 0
        """Numbers of rows: all, and those with an error."""
        self.size: int | None = None
        """Bytes of the file, if known."""
        self._stream = stream
        self._every = every
        self._start = self._shown = time.monotonic()
        self._visible = stream.isatty()
        self._bytes_read = 0
        self._earlier_rows = 0
        self._errors: Counter[str] = Counter()
        self._examples: dict[str, str] = {}
        self._warnings = self._unknown = 0
        self._words = MissingWords()

    def read(self, count: int) -> None:
        """Add bytes of the file that have been read."""
        self._bytes_read += count

    def begin(self, rows: int, failed: int) -> None:
        """Start with the rows of an earlier run."""
        self.rows = self._earlier_rows = rows
        self.count_errors("an error of an earlier run", failed)

    def count(self, error: str | None, texts: Iterable[tuple[str, Any]] = (), *, is_unknown: bool = False) -> None:
        """Add a row, which has an answer or an error.

        Args:
            texts: Column and cell of each text.
            is_unknown: Whether the text is mostly [UNK].
        """
        self.rows += 1
        self._unknown += is_unknown
        for column, text in texts:
            self._words.count(column, text)
        if error is not None:
            self.count_errors(error, 1)
        if self._visible and time.monotonic() - self._shown >= self._every:
            self._shown = time.monotonic()
            share = f"{self._bytes_read / self.size:4.0%} " if self.size else ""
            self._stream.write(f"\r{share}{self.rows:,} rows")
            self._stream.flush()

    def count_errors(self, error: str, rows: int) -> None:
        """Add to the number of rows with an error. A negative number is of rows that now have an answer.

        Errors that differ only in numbers are of the same kind.
        """
        self.failed += rows
        kind = re.sub(r"\d+", "0", error)[:_MAX_CHARACTERS]
        if kind in self._examples or len(self._examples) < _MAX_KINDS:
            self._examples.setdefault(kind, error[:_MAX_CHARACTERS])
            self._errors[kind] += rows

    def warn(self, warnings: list[str]) -> None:
        """Write the warnings that are new in this list."""
        for warning in warnings[self._warnings :]:
            self._stream.write("\r" * self._visible + f"{warning}\n")
        self._warnings = len(warnings)

    def end_line(self) -> None:
        """End the counter's line, if there is one."""
        self._stream.write("\n" * self._visible)

    def summarize(self) -> None:
        """Write the numbers of the job, and the most frequent errors."""
        speed = (self.rows - self._earlier_rows) / max(time.monotonic() - self._start, 1e-6)
        self._stream.write(f"{self.rows:,} rows, {self.failed:,} with an error, {speed:,.0f} rows/s\n")
        for kind, count in (+self._errors).most_common(SHOWN_ERRORS):
            self._stream.write(f"  {min(count, self.failed):,} such as: {printable(self._examples[kind])}\n")
        if self._unknown:
            self._stream.write(f"{self._unknown:,} rows are mostly [UNK]: their answers say little about them\n")
        self._stream.writelines(f"{printable(note)}\n" for note in self._words.notes(self.rows))
