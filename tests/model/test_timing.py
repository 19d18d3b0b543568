from __future__ import annotations

from model.timing import best_seconds


def test_best_seconds_of_calls_that_take_turns() -> None:
    called: list[str] = []
    times = iter([0, 3, 3, 4, 10, 12, 20, 25])  # the first call takes 3 and 2 seconds, the second 1 and 5
    calls = [lambda: called.append("first"), lambda: called.append("second")]
    assert best_seconds(calls, rounds=2, clock=lambda: next(times)) == [2, 1]
    assert called == ["first", "second"] * 2
