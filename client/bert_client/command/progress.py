"""How far a long job is: a bar if tqdm is installed, else a counter."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any, Self, TextIO


class Progress:
    """Counts rows; on a terminal, shows every so many seconds which share of the file has been read."""

    def __init__(self, stream: TextIO, every: float = 0.5) -> None:
        self.rows = 0
        self.failed = 0
        self._stream = stream
        self._every = every
        self._began = self._shown = time.monotonic()
        self._visible = stream.isatty()
        self._size: int | None = None
        self._position = self._kept = 0
        self._bar: Any = None

    def of(self, size: int | None) -> Self:
        """Say how many bytes the file has."""
        self._size = size
        return self

    def __enter__(self) -> Self:
        self._bar = _tqdm(self._size, self._stream) if self._visible else None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.close()
        elif self._visible:
            self._stream.write("\n")
        if error is not None:
            return
        speed = (self.rows - self._kept) / max(time.monotonic() - self._began, 1e-6)
        self._stream.write(f"{self.rows:,} rows, {self.failed:,} with an error, {speed:,.0f} rows/s\n")

    def read(self, count: int) -> None:
        """So many more bytes of the file have been read."""
        self._position += count

    def begin(self, rows: int, failed: int) -> None:
        """An earlier run has done these rows."""
        self.rows, self.failed, self._kept = rows, failed, rows

    def count(self, *, failed: bool) -> None:
        """One more row is done."""
        self.rows += 1
        self.failed += failed
        now = time.monotonic()
        if self._visible and now - self._shown >= self._every:
            self._shown = now
            self._show()

    def _show(self) -> None:
        if self._bar is not None:
            self._bar.set_postfix_str(f"{self.rows:,} rows", refresh=False)
            self._bar.update(self._position - self._bar.n)
            return
        share = f"{self._position / self._size:4.0%} " if self._size else ""
        self._stream.write(f"\r{share}{self.rows:,} rows")
        self._stream.flush()


def _tqdm(size: int | None, stream: TextIO) -> Any:
    try:
        from tqdm import tqdm
    except ImportError:
        return None
    return tqdm(total=size, unit="B", unit_scale=True, file=stream)
