"""Warnings while a run can still be corrected."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

LEFT_PLATEAU = "left_plateau"
ADVICE = "advice"

PATIENCE = 1 / 3
"""Share of the budget after which a run should have left the plateau."""

EXPLOSION = 100
"""Warn of a gradient norm that is this many times the median in the line of the log before."""


@dataclass(slots=True)
class Advisor:
    """Checks a run's metrics at every line of its log."""

    unigram_entropy: float | None = None
    """Masked-LM loss of a model that has learned nothing but the frequency of tokens, in nats."""
    left_plateau: bool = False
    _warned: bool = False
    _usual_norm: float = math.inf

    def look(self, figures: Mapping[str, float], norms: Sequence[float], spent: float) -> Iterator[tuple[str, str]]:
        """Events and their text; `norms` are those of each step since the last look."""
        if self.unigram_entropy is not None and not self.left_plateau:
            yield from self._plateau(figures["mlm_loss"], self.unigram_entropy, spent)
        if explosion := self._exploded(norms):
            yield ADVICE, explosion

    def _plateau(self, loss: float, entropy: float, spent: float) -> Iterator[tuple[str, str]]:
        if loss < entropy:
            self.left_plateau = True
            yield LEFT_PLATEAU, f"masked-LM loss {loss:.3f} is below the unigram entropy {entropy:.3f}"
        elif spent >= PATIENCE and not self._warned:
            self._warned = True
            yield (
                ADVICE,
                f"STILL ON THE PLATEAU: {spent:.0%} of the budget is spent and the masked-LM loss {loss:.3f} "
                f"is not below the unigram entropy {entropy:.3f}: nothing but word frequencies is learned. "
                "Stop, and try a smaller batch, fewer layers, another learning_rate, or a larger budget.",
            )

    def _exploded(self, norms: Sequence[float]) -> str | None:
        norm, usual, self._usual_norm = max(norms), self._usual_norm, statistics.median(norms)
        if norm <= EXPLOSION * usual:
            return None
        return (
            f"EXPLODING GRADIENT: its norm was {norm:.3g}, {norm / usual:.0f} times the usual {usual:.3g}. If the loss "
            "does not recover, lower learning_rate or raise warmup_fraction."
        )
