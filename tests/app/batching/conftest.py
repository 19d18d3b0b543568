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
    batching = [f"app.batching.{module}" for module in ("admission", "engine", "lifecycle")]
    for module in (*batching, "app.inference.contract", "tests.app.backends"):
        monkeypatch.setattr(f"{module}.time", clock)
    return clock
