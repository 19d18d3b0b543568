"""Checkpoints of a run: written atomically; the newest readable one is resumed."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from training.runtime.distributed import DistContext
from training.runtime.files import write_tensors

KEEP = 2
"""Checkpoints to keep. The older one is used if the newest cannot be read."""

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class TrainState:
    """Progress of a run. A bit-exact resume needs this, the weights and the optimizer."""

    step: int = 0
    """Optimizer steps."""
    tokens: int = 0
    """Tokens trained on, special tokens and padding included."""
    seconds: float = 0.0
    """Time spent training; evaluation and checkpoints do not count."""
    skipped_in_row: int = 0
    """Skipped steps since the last step that was taken."""
    budget_tokens: int | None = None
    """Tokens of the whole run; None until a budget in minutes is converted."""


@dataclass(frozen=True, slots=True)
class Checkpointer:
    """Checkpoints of one run in one folder. Only rank 0 writes. On resume every rank reads its folder, and the newest
    state is sent to all ranks: after a restart another node, with another disk, may have rank 0."""

    folder: Path
    parts: Mapping[str, Any]
    """Model and optimizer by name: objects with `state_dict` and `load_state_dict`."""
    dist: DistContext

    def save(self, state: TrainState) -> None:
        """Write everything that a bit-exact resume needs, and remove all checkpoints but this one and the one before.

        Raises:
            RunError: the disk is full or the folder is read-only; earlier checkpoints are unchanged.
        """
        if not self.dist.is_main:
            return
        parts = {name: part.state_dict() for name, part in self.parts.items()}
        write_tensors(self.folder / f"state-{state.step:09d}.pt", {"state": asdict(state), **parts})
        for other in (*states(self.folder)[KEEP:], *self.folder.glob("state-*.part")):
            other.unlink()

    def resume(self) -> TrainState | None:
        """Load the checkpoint to continue from, on all ranks; None without one."""
        own = next(filter(None, map(_read, states(self.folder))), None)
        found = self.dist.broadcast_newest(own, own["state"]["step"] if own else 0)
        if found is None:
            return None
        for name, part in self.parts.items():
            part.load_state_dict(found[name])
        state = TrainState(**found["state"])
        logger.info("resuming at step %d", state.step)
        return state


def states(folder: Path) -> list[Path]:
    """The states of an incomplete run, the newest first."""
    return sorted(folder.glob("state-*.pt"), reverse=True)


def _read(file: Path) -> dict[str, Any] | None:
    try:
        state: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # torch.load raises many types for damaged files
        logger.warning("%s cannot be read (%s); trying the checkpoint before", file, error)
        return None
    return state
