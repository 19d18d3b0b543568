"""Advice during a run, on its length and its metrics."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

LEFT_PLATEAU = "left_plateau"
ADVICE = "advice"

Advice = tuple[str, str]
"""An event of the log, and its text."""

FEW_STEPS = 100
"""Fewer steps hardly move a network."""

PATIENCE = 1 / 3
"""Share of the budget by which a run should have left the plateau."""

LINES = 10
"""Newest lines of the log whose mean, plus two standard errors, is compared with the unigram entropy. They are a tenth
of a short run or 500 steps of a long one. Single lines of a short run have only a few hundred masked tokens."""

MARGIN = 0.2
"""Nats by which the loss must be lower than the unigram entropy. A network that knows word frequencies only can come
closer, because those of the last examples differ from those of the corpus."""

PRETRAINING_REMEDY = "raise the budget, lower pretrain.batch_tokens, or try another learning_rate"
FINETUNING_REMEDY = "repeat with more time (--minutes of classify, finetune.minutes or passes of a recipe)"


@dataclass(slots=True)
class Advisor:
    """Checks the length of a run, and its metrics at every line of its log."""

    remedy: str = PRETRAINING_REMEDY
    """What helps a run that learns too little."""
    unigram_entropy: float | None = None
    """Masked-LM loss of a model that has learned only the frequencies of tokens, in nats."""
    left_plateau: bool = False
    _warned: bool = False
    _losses: deque[float] = field(default_factory=lambda: deque(maxlen=LINES))

    def on_length(
        self, budget: int, asked: int, batch_tokens: int, pass_tokens: int, speed: float, minutes: float
    ) -> Iterator[Advice]:
        """The length of a run, and advice on it.

        Args:
            budget: tokens of the run.
            asked: tokens that the recipe asks for, besides a limit in minutes.
            batch_tokens: tokens of a step.
            pass_tokens: tokens of a pass over the text.
            speed: tokens a second.
            minutes: time of the run, evaluations and checkpoints included.
        """
        steps = max(1, round(budget / batch_tokens))
        yield (
            "budget",
            f"{steps:,} steps of {batch_tokens:,} tokens, which read the text {budget / pass_tokens:.3g} times: about "
            f"{minutes:.1f} minutes at {speed:,.0f} tokens a second",
        )
        if steps < FEW_STEPS:
            yield ADVICE, f"only {steps} steps hardly move a network: {self.remedy}"
        if budget < asked:
            time = minutes * asked / budget
            yield ADVICE, f"{asked / pass_tokens:.3g} passes would be better, and take {time:.1f} minutes"

    def on_figures(self, figures: Mapping[str, float], spent: float) -> Iterator[Advice]:
        """Advice on a line of the log, after the share `spent` of the budget."""
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
                f"Stop the run, and {self.remedy}.",
            )
