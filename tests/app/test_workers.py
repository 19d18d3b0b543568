"""When a worker is replaced; tests/app/test_server.py has real ones."""

from __future__ import annotations

from app.workers import next_attempt


def test_first_replacement_comes_at_once_and_later_ones_ever_more_slowly() -> None:
    attempt, pauses = 0, []
    for _ in range(9):
        attempt, pause = next_attempt(attempt, lived=5)
        pauses.append(pause)
    assert pauses == [0, 1, 2, 4, 8, 16, 32, 60, 60]
    assert next_attempt(5000, lived=5) == (5001, 60)


def test_worker_that_was_healthy_for_long_is_replaced_at_once() -> None:
    assert next_attempt(7, lived=3600) == (1, 0)
