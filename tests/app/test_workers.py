"""When a worker is replaced; tests/app/test_server.py has real ones."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from app.settings import Settings
from app.workers import FAILED, Workers, next_attempt


def test_first_replacement_comes_at_once_and_later_ones_ever_more_slowly() -> None:
    attempt, pauses = 0, []
    for _ in range(9):
        attempt, pause = next_attempt(attempt, lived=5)
        pauses.append(pause)
    assert pauses == [0, 1, 2, 4, 8, 16, 32, 60, 60]
    assert next_attempt(5000, lived=5) == (5001, 60)


def test_worker_that_was_healthy_for_long_is_replaced_at_once() -> None:
    assert next_attempt(7, lived=3600) == (1, 0)


def test_worker_that_cannot_be_started_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(_: int) -> None:
        raise OSError(errno.EAGAIN, "no more processes")

    workers = Workers(Settings())
    monkeypatch.setattr(workers, "_start", fails)
    serving: Any = object()
    workers.workers, workers.due = [serving], [(0.0, 1)]
    assert workers._start_due() == []
    assert [attempt for _, attempt in workers.due] == [2]
    workers.workers, workers.due = [], [(0.0, 3)]
    assert workers._start_due() == [FAILED]
    assert workers.ending
    assert workers.due == []
