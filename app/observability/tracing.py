"""Traces for OpenTelemetry, which FastAPI makes and sends: one span per request, and here what it cannot know.

They need the `otel` extra and the standard variables, OTEL_EXPORTER_OTLP_ENDPOINT above all. Without them there
is no span, and nothing is done.
"""

from __future__ import annotations

import time

from fastapi.telemetry import TelemetryConfig
from opentelemetry import trace

CONFIG = TelemetryConfig(
    auto_configure=True,
    metrics=False,  # /metrics has them
    logs=False,  # they would carry messages, and so callers' texts
    operation_spans=False,
    exclude=lambda scope: scope["path"].startswith(("/health/", "/metrics")),  # who asks every few seconds
)


def enabled() -> bool:
    """Whether there are spans at all; once the app has started."""
    return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


def note_request(request_id: str, query: bytes) -> None:
    """Let the span of this request be found by its id, and hold no text of the caller."""
    span = trace.get_current_span()
    if span.is_recording():
        span.set_attribute("bert.request_id", request_id)
        if query:
            span.set_attribute("url.query", "")


def note_stages(*stages: tuple[str, float]) -> None:
    """(name, seconds) of what was done for this request, one after the other until now: a child span each."""
    if not trace.get_current_span().is_recording():
        return
    tracer = trace.get_tracer("bert-service")
    at = time.time_ns() - sum(_nanoseconds(seconds) for _, seconds in stages)
    for name, seconds in stages:
        span = tracer.start_span(name, start_time=at)
        at += _nanoseconds(seconds)
        span.end(at)


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)
