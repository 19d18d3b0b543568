"""A clock that tests move."""

from __future__ import annotations

import pytest


class Clock:
    """Stands in for the module `time`. It stands still unless a test moves `now`."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        """See `time.monotonic`."""
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of deadlines, engines and the lifecycle. The event loop keeps the real one."""
    clock = Clock()
    for module in ("deadline", "engine", "lifecycle"):
        monkeypatch.setattr(f"app.batching.{module}.time", clock)
    return clock
