"""The learning rate over a run: warm-up, level, decay (Hu et al. 2024, https://arxiv.org/abs/2404.06395)."""

from __future__ import annotations


def rate_factor(tokens: float, budget: int, warmup: int, decay_fraction: float) -> float:
    """Share of the peak learning rate after N tokens of a budget. It rises linearly over `warmup` tokens, stays level,
    and falls linearly to 0 over the last part of the budget.

    >>> [round(rate_factor(n, 1000, 100, 0.2), 3) for n in (50, 100, 500, 800, 900, 1000)]
    [0.5, 1.0, 1.0, 1.0, 0.5, 0.0]

    Args:
        decay_fraction: share of the budget in which the rate falls, limited to the part after the warm-up.
    """
    if tokens < warmup:
        return tokens / warmup
    decay = budget - max(warmup, round(budget * (1 - decay_fraction)))
    return min(1.0, max(0.0, (budget - tokens) / decay)) if decay > 0 else 1.0
