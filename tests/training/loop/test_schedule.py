"""The learning rate over a run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.loop.schedule import rate_factor


@given(st.floats(0, 1), st.integers(1, 10_000), st.integers(0, 10_000), st.floats(0, 1))
def test_rate_factor_is_between_0_and_1(progress: float, budget: int, warmup: int, decay_fraction: float) -> None:
    assert 0 <= rate_factor(progress * budget, budget, warmup, decay_fraction) <= 1


@pytest.mark.parametrize(
    ("tokens", "warmup", "decay_fraction", "factor"),
    [(0, 0, 0.5, 1), (10, 10, 1.0, 1), (55, 10, 1.0, 0.5), (100, 10, 0.0, 1)],
    ids=["no warm-up", "decay after the warm-up", "half of the decay", "no decay"],
)
def test_rate_factor_of_100_tokens(tokens: int, warmup: int, decay_fraction: float, factor: float) -> None:
    assert rate_factor(tokens, 100, warmup, decay_fraction) == factor
