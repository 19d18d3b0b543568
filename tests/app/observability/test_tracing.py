"""Traces, as a collector receives them: over HTTP, as protobuf."""

from __future__ import annotations

import gzip
import os
import signal
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.trace import TracerProvider
from starlette.types import ASGIApp, Receive, Scope, Send

from app.http.application import create_app
from app.http.auth import announce
from app.settings import Settings
from tests.app.process import PATIENCE, WITHOUT_TORCH, running

TRACE_ID, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


class Collector(HTTPServer):
    """Keeps what it is sent."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.received: list[tuple[str, ExportTraceServiceRequest]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def spans(self) -> list[Span]:
        return [
            span
            for _, request in self.received
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


class Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers["Content-Encoding"] == "gzip":
            body = gzip.decompress(body)
        self.server.received.append((self.path, ExportTraceServiceRequest.FromString(body)))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (its own name)
        pass


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def attributes(span: Span) -> dict[str, Any]:
    return {entry.key: entry.value.string_value or entry.value.int_value for entry in span.attributes}


async def lifespan_of(app: FastAPI) -> None:
    """Start and end an app, as a server does."""
    messages = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])
    said: list[str] = []

    async def receive() -> Any:
        return next(messages)

    async def send(message: Any) -> None:
        said.append(message["type"])

    await app({"type": "lifespan", "app": app}, receive, send)
    assert said == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


def test_requests_become_spans_with_their_stages(collector: Collector, checkpoints: dict[str, str]) -> None:
    collecting = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_SERVICE_NAME": "tested"}
    sent = {"traceparent": f"00-{TRACE_ID}-{CALLER}-01", "X-Request-ID": "order-1"}
    origin = "https://example.org"
    preflight = {"Origin": origin, "Access-Control-Request-Method": "POST", "X-Request-ID": "order-0"}
    with running(checkpoints | WITHOUT_TORCH | collecting | {"BERT_CORS_ORIGINS": origin}) as process:
        process.until_ready()
        with httpx.Client(base_url=process.url, timeout=PATIENCE) as client:
            client.get("/v2/health/live").raise_for_status()
            client.options("/sentiment?a=secret", headers=preflight).raise_for_status()
            client.post("/sentiment?a=secret", json={"inputs": "a secret"}, headers=sent).raise_for_status()
            assert client.post("/hf/fill-mask", json={"inputs": "none"}).status_code == 422
            assert client.post("/fill-mask", content=b"x", headers={"Content-Type": "text/plain"}).is_error
        process.process.send_signal(signal.SIGTERM)
        code, output = process.end()
    assert code == 0, output
    assert {path for path, _ in collector.received} == {"/v1/traces"}
    spans = collector.spans()
    requests = {span.name: span for span in spans if span.kind == Span.SPAN_KIND_SERVER}
    (asked,) = [requests.pop(name) for name in list(requests) if name.startswith("OPTIONS")]
    assert attributes(asked)["bert.request_id"] == "order-0"
    assert set(requests) == {"POST /sentiment", "POST /hf/fill-mask", "POST /fill-mask"}  # no health check
    answered, refused = requests["POST /sentiment"], requests["POST /hf/fill-mask"]
    assert (answered.trace_id.hex(), answered.parent_span_id.hex()) == (TRACE_ID, CALLER)
    assert attributes(answered)["bert.request_id"] == "order-1"
    assert attributes(answered)["http.response.status_code"] == 200
    assert attributes(refused)["http.response.status_code"] == 422
    early = attributes(requests["POST /fill-mask"])  # by its head
    assert (early["http.response.status_code"], early["http.route"]) == (415, "/fill-mask")
    assert refused.trace_id != answered.trace_id
    children = sorted(
        (span for span in spans if span.parent_span_id == answered.span_id),
        key=lambda span: span.start_time_unix_nano,
    )
    assert [child.name for child in children] == ["tokenize", "queue", "inference"]
    assert {child.trace_id for child in children} == {answered.trace_id}
    edges = [edge for child in children for edge in (child.start_time_unix_nano, child.end_time_unix_nano)]
    assert edges == sorted(edges)
    assert answered.start_time_unix_nano <= edges[0] < edges[-1] <= answered.end_time_unix_nano
    resource = collector.received[0][1].resource_spans[0].resource
    assert {entry.key: entry.value.string_value for entry in resource.attributes}["service.name"] == "tested"
    assert b"secret" not in b"".join(request.SerializeToString() for _, request in collector.received)


def test_unreachable_collector_does_not_affect_answers(checkpoints: dict[str, str]) -> None:
    away = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_EXPORTER_OTLP_TIMEOUT": "1"}
    with running(checkpoints | WITHOUT_TORCH | away) as process:
        process.until_ready()
        assert httpx.post(f"{process.url}/sentiment", json={"inputs": "good"}, timeout=PATIENCE).status_code == 200
        process.process.send_signal(signal.SIGTERM)
        code, output = process.end()
    assert code == 0, output


async def test_traces_that_cannot_be_sent_are_one_warning_with_the_extra(
    backend: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk", None)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    announce(Settings(), os.environ)
    app = create_app(Settings(), backend)
    await lifespan_of(app)
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "no traces are sent although OTEL_EXPORTER_... is set: install the extra, bert-service[otel]"
    ]


@pytest.mark.parametrize(("name", "value"), [("ENDPOINT", "collector:4318"), ("PROTOCOL", "grpc")])
async def test_traces_that_fastapi_cannot_send_are_a_warning_with_the_variables(
    backend: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str, value: str
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv(f"OTEL_EXPORTER_OTLP_{name}", value)
    await lifespan_of(create_app(Settings(), backend))
    (message,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert message.startswith("no traces are sent: ")
    assert message.endswith("http://HOST:4318, and no OTEL_..._EXPORTER or OTEL_..._PROTOCOL")
    assert "telemetry=" not in message


async def test_traces_are_off_without_the_variables(backend: Any) -> None:
    provider = trace.get_tracer_provider()
    await lifespan_of(create_app(Settings(), backend))
    assert trace.get_tracer_provider() is provider
    assert type(provider).__name__ == "ProxyTracerProvider"  # the API's own, before a program sets one


class Agent:
    """A middleware that OpenTelemetry's operator or `ddtrace-run` adds to the app."""

    def __init__(self, app: ASGIApp, seen: list[Scope]) -> None:
        self.app, self.seen = app, seen

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.seen.append(scope)
        await self.app(scope, receive, send)


@pytest.mark.parametrize("path", ["/health/live", "/sentiment", "/nowhere"])
async def test_query_is_in_no_span_of_another_agent(backend: Any, path: str) -> None:
    seen: list[Scope] = []
    app = create_app(Settings(), backend)
    app.add_middleware(Agent, seen=seen)
    written = {
        "http.url": f"http://t{path}?a=secret",
        "http.target": f"{path}?a=secret",
        "url.full": f"http://t{path}?a=secret",
        "url.query": "a=secret",
        "url.path": path,
    }
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://t") as client:
        with TracerProvider().get_tracer("agent").start_as_current_span("around the app", attributes=written) as span:
            await client.get(f"{path}?a=secret")
    assert [scope["query_string"] for scope in seen] == [b""]
    assert "secret" not in str(span.attributes)  # type: ignore[attr-defined]
    assert span.attributes["http.url"] == f"http://t{path}"  # type: ignore[attr-defined]
