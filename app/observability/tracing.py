"""Traces for OpenTelemetry. FastAPI makes one span per request and sends it; this module adds ids and stages.

Traces need the `otel` extra and OpenTelemetry's own variables, at least OTEL_EXPORTER_OTLP_ENDPOINT. Without these, no
spans are made.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from importlib.util import find_spec

from fastapi.telemetry import TelemetryConfig
from opentelemetry import trace

logger = logging.getLogger(__name__)


def config() -> TelemetryConfig:
    """FastAPI's telemetry settings: which spans it records, and whether it sends them as the environment says."""
    logging.getLogger("fastapi").addFilter(_name_variables)
    return TelemetryConfig(
        auto_configure=_is_installed(),
        metrics=False,  # they are in /metrics
        logs=False,  # they would carry callers' texts
        operation_spans=False,
        exclude=lambda scope: scope["path"].startswith(("/health/", "/v2/health/", "/metrics")),  # polled often
    )


def warn_if_missing(environ: Mapping[str, str]) -> None:
    """Log a warning if the environment asks for traces that cannot be sent."""
    if any(name.startswith("OTEL_EXPORTER_") for name in environ) and not _is_installed():
        logger.warning("no traces are sent although OTEL_EXPORTER_... is set: install the extra, bert-service[otel]")


def _name_variables(record: logging.LogRecord) -> bool:
    """Rewrite FastAPI's warning that it cannot send traces: name variables to set, not FastAPI's own parameters."""
    if "telemetry configuration failed" in record.msg:
        reason = record.getMessage().rpartition("failed: ")[2].partition(" Configure ")[0]
        remedy = "Set OTEL_EXPORTER_OTLP_ENDPOINT=http://HOST:4318, and no OTEL_..._EXPORTER or OTEL_..._PROTOCOL"
        record.msg, record.args = f"no traces are sent: {reason} {remedy}", None
    return True


def _is_installed() -> bool:
    return find_spec("opentelemetry.sdk") is not None


def enabled() -> bool:
    """Whether spans are recorded; known once the app has started."""
    return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


def note_request(request_id: str) -> None:
    """Set the request id on the current span."""
    trace.get_current_span().set_attribute("bert.request_id", request_id)


def remove_query() -> None:
    """Remove the query from the span of an agent that wraps the app, in all attributes that have it by convention."""
    span = trace.get_current_span()
    attributes = getattr(span, "attributes", None) or {}
    for name in {"http.target", "http.url", "url.full", "url.query"}.intersection(attributes):
        span.set_attribute(name, "" if name == "url.query" else attributes[name].partition("?")[0])


def note_stages(stages: Mapping[str, float]) -> None:
    """Add a child span per stage, given its seconds by name. Stages are consecutive, and the last one ends now."""
    if not trace.get_current_span().is_recording():
        return
    tracer = trace.get_tracer("bert-service")
    at = time.time_ns() - int(sum(stages.values()) * 1e9)
    for name, seconds in stages.items():
        span = tracer.start_span(name, start_time=at)
        at += int(seconds * 1e9)
        span.end(at)
