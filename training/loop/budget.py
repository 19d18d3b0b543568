"""A budget in minutes: the speed of a run, measured once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from training.examples.loader import BatchStream
from training.loop.trainer import TrainingLoss, measure_speed
from training.runtime.distributed import DistContext
from training.runtime.files import read_json, write_json

SPEED_SECONDS = 10.0
"""Time for measuring the speed; at most a tenth of the budget."""


def budget_record(
    file: Path,
    minutes: float | None,
    loss: TrainingLoss,
    stream: BatchStream,
    dist: DistContext,
    micro_batches: int = 1,
) -> dict[str, Any]:
    """The record of a run's budget in a file, the same on all ranks: `minutes`, and `tokens_per_second` of all ranks
    together. It is measured again only for another budget, so that a resumed run keeps its record.

    Args:
        micro_batches: micro-batches of one rank, in a step.
    """
    known = read_json(file)
    if known is None or known["minutes"] != minutes:
        seconds = SPEED_SECONDS if minutes is None else min(SPEED_SECONDS, 6 * minutes)
        speed = measure_speed(loss, stream, micro_batches, seconds) * dist.world_size
        known = {"minutes": minutes, "tokens_per_second": round(speed)}
    known = dist.all_gather(known)[0]
    if dist.is_main:
        write_json(file, known)
    return known
