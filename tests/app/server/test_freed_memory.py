"""Memory that a burst has freed goes back to the system."""

from __future__ import annotations

import sys

import pytest

from app.server import freed_memory
from app.server.freed_memory import FreedMemory, resident_bytes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs glibc and /proc")


def burst() -> bytes:
    """Free 260 MB in blocks that malloc keeps, because a later one is in use."""
    blocks = [bytes(65_000) for _ in range(4000)]
    last = bytes(100_000)
    blocks.clear()
    return last


def test_memory_of_a_burst_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(freed_memory, "_GROWTH_BYTES", 50_000_000)
    memory, before = FreedMemory(), resident_bytes()
    last = burst()
    kept = resident_bytes()
    assert kept > before + 100e6
    memory.give_back_after_growth()
    assert resident_bytes() < kept - 100e6
    assert len(last) == 100_000


def test_memory_of_a_burst_that_was_seen_is_given_back_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(freed_memory, "_GROWTH_BYTES", 50_000_000)
    monkeypatch.setattr(freed_memory, "_PAUSE_SECONDS", 0)
    memory = FreedMemory()
    blocks = [bytes(65_000) for _ in range(4000)]
    last = bytes(100_000)
    memory.give_back_after_growth()
    blocks.clear()
    kept = resident_bytes()
    memory.give_back_after_growth()
    assert resident_bytes() < kept - 100e6
    assert len(last) == 100_000


def test_memory_is_looked_at_every_few_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[bool] = []
    monkeypatch.setattr(FreedMemory, "give_back", lambda _: given.append(True))
    monkeypatch.setattr(freed_memory, "_GROWTH_BYTES", -(2**40))
    memory = FreedMemory()
    for _ in range(3):
        memory.give_back_after_growth()
    assert given == [True]
