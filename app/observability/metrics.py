"""The service's Prometheus metrics. Each app has its own registry, so two apps in one process share no counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_TOKENS = (16, 64, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)


class _InferenceTime(Collector):
    """Collects the computing and waiting times of each inference process."""

    read: Callable[[], Mapping[int, tuple[float, float]]] = dict
    """Returns the seconds that each process has computed and waited, by its number."""

    def collect(self) -> Iterator[Metric]:
        """Yield the times as a counter."""
        seconds = CounterMetricFamily(
            "bert_inference_seconds",
            "Time of each inference process: computing a batch, or waiting for one.",
            labels=["process", "state"],
        )
        for process, times in self.read().items():
            for state, value in zip(("computing", "waiting"), times, strict=True):
                seconds.add_metric([str(process), state], value)
        yield seconds


class Metrics:
    """Counters, gauges and histograms. A `read_…` attribute takes the function that returns a gauge's present value."""

    def __init__(self) -> None:
        self.inference_time = _InferenceTime()
        disable_created_metrics()  # type: ignore[no-untyped-call]  # else each counter has a second series, its start time
        self.registry = registry = CollectorRegistry()
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        histogram = partial(Histogram, registry=registry)
        requests = counter("bert_requests", "Task requests by task and HTTP status.", ["task", "status"])
        duration = histogram(
            "bert_request_duration_seconds",
            "Time of a task request by task and HTTP status, from its headers until its response is written.",
            ["task", "status"],
            buckets=_SECONDS,
        )
        seconds = histogram(
            "bert_request_seconds",
            "Time of an answered request by task and stage.",
            ["task", "stage"],
            buckets=_SECONDS,
        )
        # `labels` checks its arguments and takes a lock at each call.
        self._requests_of, self._duration_of = cache(requests.labels), cache(duration.labels)
        self._seconds_of = cache(seconds.labels)
        self._batch_inputs = histogram("bert_batch_size", "Inputs in one batch.", buckets=_COUNTS)
        self._batch_tokens = histogram("bert_batch_tokens", "Tokens in one batch.", buckets=_TOKENS)
        self.refused = counter(
            "bert_requests_refused",
            "Requests refused with 429.",
        ).inc
        self.expired = counter(
            "bert_requests_expired",
            "Requests answered with 504.",
        ).inc
        self.cancelled = counter(
            "bert_requests_cancelled", "Requests whose caller closed the connection before they were computed."
        ).inc
        self._reloads = counter("bert_reloads", "Reloads of the checkpoints while serving, by result.", ["result"])
        for result in ("ok", "failed"):
            self._reloads.labels(result)
        self._last_reload = gauge(
            "bert_last_reload_successful", "0 if the last reload failed: the next start may fail as well."
        )
        self._last_reload.set(1)
        self.read_queue_requests = gauge(
            "bert_queue_requests", "Requests that wait for a batch or are being computed."
        ).set_function
        self.read_queue_tokens = gauge("bert_queue_tokens", "Tokens that wait for a batch.").set_function
        self.read_tokens_per_second = gauge(
            "bert_tokens_per_second",
            "Measured tokens per second at full load; 0 while loading.",
        ).set_function
        self.connections = gauge("bert_connections", "Open connections.").set
        self.read_event_loop_lag = gauge(
            "bert_event_loop_lag_seconds",
            "Mean lag of the event loop in the last seconds; grows instead of the queue if HTTP is the bottleneck.",
        ).set_function
        registry.register(self.inference_time)
        gauge("bert_start_time_seconds", "When the service started, in seconds since 1970.").set_to_current_time()
        self.read_ready = gauge(
            "bert_ready", "1 if the service can answer: loaded, alive, and neither stalled nor draining."
        ).set_function
        ProcessCollector(registry=registry)

    def answered(self, task: str, status: int, seconds: float) -> None:
        """Count a task request after its response was sent, and observe its total time."""
        self._requests_of(task, status).inc()
        self._duration_of(task, status).observe(seconds)

    def latency(self, task: str, stages: Mapping[str, float]) -> None:
        """Observe the seconds of each stage of a request."""
        for stage, seconds in stages.items():
            self._seconds_of(task, stage).observe(seconds)

    def batch(self, inputs: int, tokens: int) -> None:
        """Observe one computed batch."""
        self._batch_inputs.observe(inputs)
        self._batch_tokens.observe(tokens)

    def reloaded(self, *, ok: bool) -> None:
        """Count a reload of the checkpoints."""
        self._reloads.labels("ok" if ok else "failed").inc()
        self._last_reload.set(ok)

    def render(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self.registry)
