"""Warnings while a run can still be corrected."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

LEFT_PLATEAU = "left_plateau"
ADVICE = "advice"

PATIENCE = 1 / 3
"""Share of the budget by which a run should have left the plateau."""

LINES = 10
"""Newest lines of the log whose mean, plus two standard errors, is compared with the unigram entropy. They are a tenth
of a short run or 500 steps of a long one. Single lines of a short run have only a few hundred masked tokens."""

MARGIN = 0.2
"""Nats by which the loss must be lower than the unigram entropy. A network that knows word frequencies only can come
closer, because those of the last examples differ from those of the corpus."""

REMEDY = "raise the budget, lower pretrain.batch_tokens, or try another learning_rate"


@dataclass(slots=True)
class Advisor:
    """Checks a run's metrics at every line of its log."""

    unigram_entropy: float | None = None
    """Masked-LM loss of a model that has learned only the frequencies of tokens, in nats."""
    left_plateau: bool = False
    _warned: bool = False
    _losses: deque[float] = field(default_factory=lambda: deque(maxlen=LINES))

    def look(self, figures: Mapping[str, float], spent: float) -> Iterator[tuple[str, str]]:
        """Events and their texts, after the share `spent` of the budget."""
        entropy = self.unigram_entropy
        if entropy is None or self.left_plateau or "mlm_loss" not in figures:
            return
        self._losses.append(figures["mlm_loss"])
        loss, known = statistics.fmean(self._losses), len(self._losses) == LINES
        if known and loss + 2 * statistics.stdev(self._losses) / math.sqrt(LINES) < entropy - MARGIN:
            self.left_plateau = True
            yield LEFT_PLATEAU, f"masked-LM loss {loss:.3f} is clearly below the unigram entropy {entropy:.3f}"
        elif known and spent >= PATIENCE and not self._warned:
            self._warned = True
            yield (
                ADVICE,
                f"still on the plateau: {spent:.0%} of the budget is spent and the masked-LM loss {loss:.3f} "
                f"is not clearly below the unigram entropy {entropy:.3f}: nothing but word frequencies is learned. "
                f"Stop the run, and {REMEDY}.",
            )
