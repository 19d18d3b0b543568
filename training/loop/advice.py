"""Warnings while a run can still be corrected."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

LEFT_PLATEAU = "left_plateau"
ADVICE = "advice"

PATIENCE = 1 / 3
"""Share of the budget after which a run should have left the plateau."""

LINES = 10
"""Newest lines of the log whose mean is compared with the unigram entropy, plus two standard errors. They are a tenth
of a short run or 500 steps of a long one: single lines of a short run have a few hundred masked tokens."""

EXPLOSION = 100
"""Warn of a gradient norm that is this many times the median in the line of the log before."""


@dataclass(slots=True)
class Advisor:
    """Checks a run's metrics at every line of its log."""

    unigram_entropy: float | None = None
    """Masked-LM loss of a model that has learned nothing but the frequency of tokens, in nats."""
    left_plateau: bool = False
    _warned: bool = False
    _losses: deque[float] = field(default_factory=lambda: deque(maxlen=LINES))
    _usual_norm: float = math.inf

    def look(self, figures: Mapping[str, float], norms: Sequence[float], spent: float) -> Iterator[tuple[str, str]]:
        """Events and their text; `norms` are those of each step since the last look."""
        if self.unigram_entropy is not None and not self.left_plateau:
            self._losses.append(figures["mlm_loss"])
            yield from self._plateau(self.unigram_entropy, spent)
        if explosion := self._exploded(norms):
            yield ADVICE, explosion

    def _plateau(self, entropy: float, spent: float) -> Iterator[tuple[str, str]]:
        loss, known = statistics.fmean(self._losses), len(self._losses) == LINES
        if known and loss + 2 * statistics.stdev(self._losses) / math.sqrt(LINES) < entropy:
            self.left_plateau = True
            yield LEFT_PLATEAU, f"masked-LM loss {loss:.3f} is below the unigram entropy {entropy:.3f}"
        elif spent >= PATIENCE and not self._warned:
            self._warned = True
            yield (
                ADVICE,
                f"STILL ON THE PLATEAU: {spent:.0%} of the budget is spent and the masked-LM loss {loss:.3f} "
                f"is not clearly below the unigram entropy {entropy:.3f}: nothing but word frequencies is learned. "
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
