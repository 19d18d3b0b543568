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


def test_metrics_do_not_tell_when_each_series_was_made() -> None:
    metrics = Metrics()
    metrics.answered("fill-mask", 200, 0.25)
    assert b"_created" not in metrics.render()


@pytest.mark.parametrize("name", ["tokens_per_second", "queue_requests", "queue_tokens", "ready"])
def test_gauges_are_read_when_the_metrics_are_collected(name: str) -> None:
    metrics, values = Metrics(), iter((1, 0))
    getattr(metrics, f"read_{name}")(lambda: next(values))
    assert f"bert_{name} 1.0" in metrics.render().decode()
    assert f"bert_{name} 0.0" in metrics.render().decode()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="process metrics are read from /proc")
def test_process_metrics_tell_memory_cpu_and_open_files() -> None:
    text = Metrics().render().decode()
    for name in ("process_resident_memory_bytes", "process_cpu_seconds_total", "process_open_fds"):
        value = next(line.split()[1] for line in text.splitlines() if line.startswith(f"{name} "))
        assert float(value) > 0
