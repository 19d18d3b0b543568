"""Timing of alternatives, on a machine that may do other work too."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence


def best_seconds(
    calls: Sequence[Callable[[], object]], rounds: int, clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    """Seconds of each call: the best of some rounds. In each round the calls follow one another."""
    best = [math.inf] * len(calls)
    for _ in range(rounds):
        for i, call in enumerate(calls):
            started = clock()
            call()
            best[i] = min(best[i], clock() - started)
    return best
