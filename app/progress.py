"""How far a long job is, on standard error: a bar if tqdm is installed, else a counter."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any, Self

from app.tables import Source

_EVERY = 0.5  # seconds


class Progress:
    """Counts rows; shows the share of the file that has been read, if somebody is looking."""

    def __init__(self, source: Source) -> None:
        self.rows = 0
        self.failed = 0
        self._source = source
        self._began = self._shown = time.monotonic()
        self._visible = sys.stderr.isatty()
        self._bar = _tqdm(source.size) if self._visible else None

    def __enter__(self) -> Self:
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
            sys.stderr.write("\n")
        if error is not None:
            return
        speed = self.rows / max(time.monotonic() - self._began, 1e-6)
        sys.stderr.write(f"{self.rows:,} rows, {self.failed:,} with an error, {speed:,.0f} rows/s\n")

    def count(self, *, failed: bool) -> None:
        """One more row is done."""
        self.rows += 1
        self.failed += failed
        now = time.monotonic()
        if self._visible and now - self._shown >= _EVERY:
            self._shown = now
            self._show()

    def _show(self) -> None:
        read = self._source.position()
        if self._bar is not None:
            self._bar.set_postfix_str(f"{self.rows:,} rows", refresh=False)
            self._bar.update(read - self._bar.n)
            return
        share = f"{read / self._source.size:4.0%} " if self._source.size else ""
        sys.stderr.write(f"\r{share}{self.rows:,} rows")
        sys.stderr.flush()


def _tqdm(size: int | None) -> Any:
    try:
        from tqdm import tqdm
    except ImportError:
        return None
    return tqdm(total=size, unit="B", unit_scale=True)
