"""The measured speed, and what follows from it."""

from __future__ import annotations

import math

import pytest

from app.batching.throughput import Throughput, ThroughputPolicy


def throughput(batch: int = 100, **policy: float) -> Throughput:
    return Throughput(ThroughputPolicy(**policy), fixed_batch_tokens=batch)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("speed", "expected"), [(0, 1024), (1, 1024), (52_000, 5120), (87_000, 8448), (20_000, 1792), (1e9, 16_384)]
)
def test_policy_batch_takes_a_tenth_of_a_second_where_that_is_enough(speed: float, expected: int) -> None:
    assert ThroughputPolicy().batch_tokens(speed, max_useful_tokens=16_384) == expected
    assert ThroughputPolicy().batch_tokens(speed, max_useful_tokens=2048) == min(expected, 2048)


def test_throughput_of_all_processes_and_batch_size_of_one() -> None:
    measured = Throughput(ThroughputPolicy(batch_seconds=1.0, min_batch_tokens=10, batch_token_step=1))
    assert measured.batch_tokens == 10
    measured.set(100.0, processes=2, max_useful_tokens=1000)
    assert (measured.tokens_per_second, measured.batch_tokens) == (100, 50)
    measured.record_batch(100, seconds=1.0, concurrent=2)
    assert measured.tokens_per_second == pytest.approx(100 + 0.1 * 100)
    assert measured.batch_tokens == 55
    measured.set(1e9, processes=2, max_useful_tokens=1000)
    assert measured.batch_tokens == 1000


def test_throughput_beside_idle_processes_is_not_that_of_all() -> None:
    measured = throughput(batch=1000)
    measured.set(16_000.0, processes=16, max_useful_tokens=1000)
    for _ in range(30):
        measured.record_batch(1000, seconds=1.0, concurrent=2)
    assert measured.tokens_per_second == 16_000
    for _ in range(30):
        measured.record_batch(1000, seconds=2.0, concurrent=16)
    assert measured.tokens_per_second == pytest.approx(8000, rel=0.05)


def test_throughput_is_that_of_full_batches() -> None:
    measured = throughput(batch=1000)
    measured.record_batch(10, seconds=0.001, concurrent=1)
    assert measured.tokens_per_second == 0
    measured.record_batch(500, seconds=1.0, concurrent=1)
    assert measured.tokens_per_second == 500


def test_throughput_fast_small_batch_ends_a_slow_time() -> None:
    measured = throughput(batch=1000)
    measured.set(0.01, 1, 1000)
    measured.record_batch(10, seconds=1.0, concurrent=1)
    assert measured.tokens_per_second > 1
    measured.set(1e9, 1, 1000)
    measured.record_batch(10, seconds=1.0, concurrent=1)
    assert measured.tokens_per_second == 1e9


def test_throughput_recovers_from_a_measurement_on_a_busy_machine() -> None:
    measured = Throughput(ThroughputPolicy(min_batch_tokens=10, batch_token_step=1))
    measured.set(0.001, 1, max_useful_tokens=1000)
    assert measured.batch_tokens == 10
    measured.record_batch(10, seconds=0.000_001, concurrent=1)
    assert measured.batch_tokens == 1000


def test_throughput_batch_after_out_of_memory_is_smaller_for_a_while() -> None:
    measured = throughput(batch=100, oom_recovery_batches=3)
    measured.record_out_of_memory(80)
    assert measured.batch_tokens == 40
    for _ in range(2):
        measured.record_batch(40, seconds=1.0, concurrent=1)
        assert measured.batch_tokens == 40
    measured.record_batch(40, seconds=1.0, concurrent=1)
    assert measured.batch_tokens == 80
    measured.set(1.0, 1, 1000)
    assert measured.batch_tokens == 100


def test_throughput_batches_beside_idle_processes_lift_the_limit_of_memory() -> None:
    measured = throughput(batch=100, oom_recovery_batches=3)
    measured.set(1000.0, processes=4, max_useful_tokens=1000)
    measured.record_out_of_memory(80)
    for _ in range(3):
        measured.record_batch(40, seconds=1.0, concurrent=1)
    assert measured.batch_tokens == 80


def test_throughput_of_a_text_that_has_all_threads_is_not_that_of_one_process() -> None:
    measured = Throughput(ThroughputPolicy(batch_seconds=1.0, min_batch_tokens=10, batch_token_step=1))
    measured.set(100.0, processes=2, max_useful_tokens=1000)
    for _ in range(30):
        measured.record_batch(50, seconds=0.6, concurrent=1)
    assert measured.batch_tokens == 50


@pytest.mark.parametrize(("samples", "factor"), [(1, 4), (10, 1)], ids=["hardly known", "known"])
def test_throughput_backlog_is_what_can_be_computed_in_time(samples: int, factor: int) -> None:
    measured = throughput(batch=10, max_queue_fraction=0.5)
    for _ in range(samples):
        measured.record_batch(10, seconds=10.0, concurrent=1)
    assert measured.max_backlog(100) == pytest.approx(50 * factor)
    assert measured.max_backlog(-1) == 0


def test_throughput_unknown_speed_limits_nothing() -> None:
    assert throughput().max_backlog(0.001) == math.inf


@pytest.mark.parametrize(("speed", "expected"), [(0.0, 1), (10.0, 4), (1e6, 1), (1e-3, 60)])
def test_throughput_seconds_for_a_backlog(speed: float, expected: int) -> None:
    measured = throughput()
    measured.tokens_per_second = speed
    assert measured.seconds_for(40) == expected
