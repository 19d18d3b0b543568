"""Memory that a burst has freed goes back to the system."""

from __future__ import annotations

import subprocess
import sys

import pytest

from app.server import freed_memory
from app.server.freed_memory import FreedMemory

_BURST = """
from app.server import freed_memory
from app.server.freed_memory import FreedMemory, resident_bytes

freed_memory._GROWTH_BYTES, freed_memory._PAUSE_SECONDS = 50_000_000, 0
memory = FreedMemory()
blocks = [b"x" * 65_000 for _ in range(4000)]
last = b"x" * 100_000  # malloc keeps the blocks before it
if {seen}:
    memory.give_back_after_growth()
blocks.clear()
kept = resident_bytes()
memory.give_back_after_growth()
print(kept, resident_bytes())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs glibc and /proc")
@pytest.mark.parametrize("seen", [False, True], ids=["unseen", "seen while in use"])
def test_memory_of_a_burst_is_given_back(seen: bool) -> None:
    """In a new process: the free memory of one that has run other tests would take the burst in."""
    run = subprocess.run([sys.executable, "-c", _BURST.format(seen=seen)], check=True, capture_output=True, text=True)
    kept, left = map(int, run.stdout.split())
    assert kept > 200e6
    assert left < kept - 200e6


def test_memory_is_looked_at_every_few_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[bool] = []
    monkeypatch.setattr(FreedMemory, "give_back", lambda _: given.append(True))
    monkeypatch.setattr(freed_memory, "_GROWTH_BYTES", -(2**40))
    memory = FreedMemory()
    for _ in range(3):
        memory.give_back_after_growth()
    assert given == [True]
