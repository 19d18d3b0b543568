"""TensorBoard event files: the figures of every line of the log."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from training.errors import RunError
from training.loop.state import TrainState


class Board:
    """Writes every line of a run's log as TensorBoard events."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise RunError("tensorboard is not installed: pip install tensorboard") from error
        self.writer = SummaryWriter(folder)

    def write(self, event: str, state: TrainState, figures: Mapping[str, Any]) -> None:
        """Numbers as scalars, under the event and their source; text as text."""
        for name, value in _flat(figures):
            if isinstance(value, str):
                self.writer.add_text(f"{event}/{name}", value, state.step)
            else:
                self.writer.add_scalar(f"{event}/{name}", value, state.step)
        self.writer.flush()


def _flat(figures: Mapping[str, Any], prefix: str = "") -> list[tuple[str, float | str]]:
    found: list[tuple[str, float | str]] = []
    for name, value in figures.items():
        found += _flat(value, f"{prefix}{name}/") if isinstance(value, Mapping) else [(prefix + name, value)]
    return found
