"""Waiting for a state that has no event."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

LOOKS = 60_000
"""Looks, not seconds: the clock of a virtual machine that was paused jumps, and would end the wait at once."""
PAUSE_SECONDS = 0.005


async def until(condition: Callable[[], object]) -> None:
    """Look until it is true.

    Raises:
        TimeoutError: it was not true in `LOOKS` looks, some minutes.
    """
    for _ in range(LOOKS):
        if condition():
            return
        await asyncio.sleep(PAUSE_SECONDS)
    raise TimeoutError("what the test waits for did not come")
