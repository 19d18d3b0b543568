"""The learning rate over a run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.loop.schedule import Schedule

schedules = st.builds(Schedule, st.integers(1, 10_000), st.integers(0, 10_000), st.floats(0, 1))


@given(schedules, st.floats(0, 1))
def test_schedule_factor_is_between_0_and_1(schedule: Schedule, progress: float) -> None:
    assert 0 <= schedule.factor(progress * schedule.budget_tokens) <= 1


@given(schedules)
def test_schedule_decay_starts_after_the_warm_up(schedule: Schedule) -> None:
    assert schedule.decay_start >= schedule.warmup_tokens


def test_schedule_rises_stays_level_and_falls_to_0() -> None:
    factors = [Schedule(100, 6, 0.3).factor(tokens) for tokens in range(101)]
    assert factors[0] == 0
    assert factors[:7] == sorted(factors[:7])
    assert factors[6:71] == [1.0] * 65
    assert factors[70:] == sorted(factors[70:], reverse=True)
    assert factors[85] == pytest.approx(0.5)
    assert factors[100] == 0


def test_schedule_without_warm_up_starts_at_the_peak() -> None:
    assert Schedule(100, 0, 0.5).factor(0) == 1


def test_schedule_that_only_decays_falls_from_the_end_of_the_warm_up() -> None:
    schedule = Schedule(100, 10, 1.0)
    assert (schedule.decay_start, schedule.factor(10), schedule.factor(55)) == (10, 1.0, 0.5)


def test_schedule_without_decay_stays_level() -> None:
    assert Schedule(100, 10, 0.0).factor(100) == 1
