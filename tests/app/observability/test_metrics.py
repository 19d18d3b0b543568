"""The metrics in Prometheus' text format."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.observability.metrics import Metrics


def test_metrics_of_two_apps_do_not_share_counts() -> None:
    first, second = Metrics(), Metrics()
    first.refused()
    assert b"bert_requests_refused_total 1.0" in first.render()
    assert b"bert_requests_refused_total 0.0" in second.render()


def test_queue_gauges_hold_the_last_value() -> None:
    metrics = Metrics()
    metrics.queue(3, 30)
    metrics.queue(4, 40)
    text = metrics.render().decode()
    assert "bert_queue_requests 4.0" in text
    assert "bert_queue_tokens 40.0" in text


def test_metrics_count_requests_stages_and_batches() -> None:
    metrics = Metrics()
    metrics.request("fill-mask", 200)
    metrics.duration("fill-mask", 504, 0.25)
    metrics.latency("fill-mask", tokenize=0.001, queue=0.002, inference=0.003)
    metrics.batch(4, 100)
    metrics.expired()
    metrics.cancelled()
    text = metrics.render().decode()
    for line in (
        'bert_requests_total{status="200",task="fill-mask"} 1.0',
        'bert_request_seconds_sum{stage="queue",task="fill-mask"} 0.002',
        'bert_request_duration_seconds_sum{status="504",task="fill-mask"} 0.25',
        "bert_batch_size_sum 4.0",
        "bert_batch_tokens_sum 100.0",
        "bert_requests_expired_total 1.0",
        "bert_requests_cancelled_total 1.0",
    ):
        assert line in text


def test_ready_gauge_follows_readiness() -> None:
    metrics = Metrics()
    seen = []
    for ready in (True, False):
        seen.append(metrics.render().decode())
        metrics.ready(ready=ready)
    assert "bert_ready 0.0" in seen[0]
    assert "bert_ready 1.0" in seen[1]
    assert "bert_ready 0.0" in metrics.render().decode()


def test_tokens_per_second_are_read_when_the_metrics_are_collected() -> None:
    metrics, speeds = Metrics(), iter((1000.0, 2000.0))
    assert b"bert_tokens_per_second 0.0" in metrics.render()
    metrics.read_tokens_per_second(lambda: next(speeds))
    assert b"bert_tokens_per_second 1000.0" in metrics.render()
    assert b"bert_tokens_per_second 2000.0" in metrics.render()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="process metrics are read from /proc")
def test_process_metrics_tell_memory_cpu_and_open_files() -> None:
    text = Metrics().render().decode()
    for name in ("process_resident_memory_bytes", "process_cpu_seconds_total", "process_open_fds"):
        value = next(line.split()[1] for line in text.splitlines() if line.startswith(f"{name} "))
        assert float(value) > 0
