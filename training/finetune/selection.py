"""The weights of a fine-tuning run that were best on dev, kept on disk beside its checkpoints."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from training.loop.checkpoint import write_tensors
from training.loop.log import RunLog

logger = logging.getLogger(__name__)


class Score(NamedTuple):
    """How good a state is on dev, means over its sources; a greater one is better."""

    accuracy: float
    gain: float
    """Minus the loss in nats: it decides between equal accuracies"""


NOTHING = Score(-1.0, 0.0)
"""Worse than anything."""


@dataclass(slots=True)
class Best:
    """Looks at every evaluation of one run. It survives a kill: steps that are trained again score the same."""

    file: Path
    patience: int | None = None
    """Evaluations without a better one after which `enough` holds"""
    step: int = -1
    score: Score = NOTHING
    _stale: int = 0

    def forget(self) -> None:
        """Begin anew: what an earlier run left may be of other texts or labels."""
        self.file.unlink(missing_ok=True)

    def recall(self, log: RunLog) -> None:
        """Go on from what an earlier run left in the file and in its log."""
        if (state := self._read()) is not None:
            self.step, self.score = state["step"], Score(*state["score"])
        self._stale = sum(line["event"] == "evaluation" and line["step"] > self.step for line in log)

    def offer(self, step: int, score: Score, model: nn.Module) -> bool:
        """Keep the model if it is better than all before; whether it was.

        Raises:
            RunError: the disk is full.
        """
        if score <= self.score:
            self._stale += step > self.step
            return False
        write_tensors(self.file, {"step": step, "score": tuple(score), "model": model.state_dict()})
        self.step, self.score, self._stale = step, score, 0
        return True

    def restore(self, model: nn.Module) -> None:
        """Give the model its best weights; without any evaluation, those it has are the best."""
        if (state := self._read()) is not None:
            model.load_state_dict(state["model"])

    @property
    def enough(self) -> bool:
        """Whether going on has not helped for too long."""
        return self.patience is not None and self._stale >= self.patience

    def _read(self) -> dict[str, Any] | None:
        if not self.file.is_file():
            return None
        try:
            return torch.load(self.file, map_location="cpu", weights_only=True)
        except Exception as error:  # torch.load raises whatever the broken bytes provoke
            logger.warning("%s cannot be read (%s); the next evaluation writes it anew", self.file, error)
            return None
