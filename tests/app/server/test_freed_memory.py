"""Memory that a burst has freed goes back to the system."""

from __future__ import annotations

import subprocess
import sys

import pytest

_BURST = """
from app.server import freed_memory
from app.server.freed_memory import give_back_after_growth, resident_bytes

freed_memory._GROWTH_BYTES = 50_000_000
before = resident_bytes()
blocks = [b"x" * 65_000 for _ in range(4000)]
last = b"x" * 100_000  # malloc keeps the blocks before it
if {seen}:
    give_back_after_growth(before)
blocks.clear()
kept = resident_bytes()
give_back_after_growth(before)
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
