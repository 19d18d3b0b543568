"""The learning rate over a run: warm-up, level, decay (Hu et al. 2024, https://arxiv.org/abs/2404.06395)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Schedule:
    """Rises linearly for `warmup_tokens`, stays level, and falls linearly to 0 over the last part of the budget.

    >>> schedule = Schedule(budget_tokens=1000, warmup_tokens=100, decay_fraction=0.2)
    >>> [round(schedule.factor(tokens), 3) for tokens in (50, 100, 500, 800, 900, 1000)]
    [0.5, 1.0, 1.0, 1.0, 0.5, 0.0]
    """

    budget_tokens: int
    warmup_tokens: int
    decay_fraction: float
    """Share of the budget in which the rate falls, limited to the part after the warm-up."""

    @property
    def decay_start(self) -> int:
        """Tokens after which the rate falls."""
        return max(self.warmup_tokens, round(self.budget_tokens * (1 - self.decay_fraction)))

    def factor(self, tokens: float) -> float:
        """Share of the peak learning rate after N tokens."""
        if tokens < self.warmup_tokens:
            return tokens / self.warmup_tokens
        if tokens <= self.decay_start or self.decay_start >= self.budget_tokens:
            return 1.0
        return max(0.0, (self.budget_tokens - tokens) / (self.budget_tokens - self.decay_start))
