"""Requests that are refused by their head, on a real port."""

from __future__ import annotations

import re
import socket
import threading
import time
from functools import partial
from typing import Any

import httpx
import pytest

from tests.app.conftest import PATIENCE

JSON = {"Content-Type": "application/json"}
JSON_POST = b"POST /sentiment HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
KEY = JSON | {"Authorization": "Bearer abcdefghijklmnop"}
GUARDED = {"api_keys": "abcdefghijklmnop", "max_body_bytes": 1000}
guarded = pytest.mark.parametrize("url", [GUARDED], indirect=True)
BROWSER = {"Origin": "https://example.org"}
with_browsers = pytest.mark.parametrize("url", [GUARDED | {"cors_origins": BROWSER["Origin"]}], indirect=True)

REFUSED: dict[str, tuple[dict[str, str], bytes, int]] = {
    "no key": ({}, b"{}", 401),
    "a wrong key": ({"Authorization": "Bearer ponmlkjihgfedcba"}, b"{}", 401),
    "no type": ({"Authorization": KEY["Authorization"]}, b"{}", 415),
    "no JSON": (KEY | {"Content-Type": "text/plain"}, b"good", 415),
    "compressed": (KEY | {"Content-Encoding": "gzip"}, b"good", 415),
    "no timeout": (KEY | {"X-Request-Timeout-Ms": "soon"}, b"{}", 422),
    "too large": (KEY, b" " * 1001, 413),
}


@guarded
@pytest.mark.parametrize(("headers", "content", "status"), REFUSED.values(), ids=REFUSED)
def test_head_that_is_invalid_is_refused_and_counted(
    url: str, headers: dict[str, str], content: bytes, status: int
) -> None:
    with httpx.Client(base_url=url, timeout=PATIENCE) as client:
        refused = client.post("/sentiment", headers=headers, content=content)
        assert (refused.status_code, refused.json()["status"]) == (status, status)
        assert client.post("/sentiment", headers=KEY, json={"inputs": "good"}).status_code == 200
        counted = client.get("/metrics").text
    labels = f'{{status="{status}",task="sentiment"}}'
    assert f"bert_requests_total{labels} 1.0" in counted
    assert f"bert_request_duration_seconds_count{labels} 1.0" in counted


@guarded
def test_refusal_has_the_callers_request_id(url: str) -> None:
    answer = httpx.post(url + "/sentiment", headers={"X-Request-ID": "order-1"}, timeout=PATIENCE)
    assert (answer.status_code, answer.headers["x-request-id"]) == (401, "order-1")


@with_browsers
def test_refusal_can_be_read_by_an_allowed_origin(url: str) -> None:
    answer = httpx.post(url + "/sentiment", headers=BROWSER, timeout=PATIENCE)
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (401, BROWSER["Origin"])


POST = JSON_POST + b"Content-Length: "


@pytest.mark.parametrize("url", [{"max_queue_tokens": 20}], indirect=True)
def test_refusal_keeps_the_connection_open(url: str, backend: Any) -> None:
    backend.gate.clear()
    waiting = [
        threading.Thread(target=partial(httpx.post, url + "/sentiment", json={"inputs": inputs}, timeout=PATIENCE))
        for inputs in ("a", "a " * 13)
    ]
    for i, thread in enumerate(waiting):
        thread.start()
        until_counted(url, f"bert_queue_requests {i + 1}.0")
    with socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1])), timeout=PATIENCE) as connection:
        connection.sendall(POST + b"60\r\n\r\n" + b" " * 60 + POST + b"70\r\n\r\n" + b" " * 30)
        refused = receive(connection, 2)  # two at once, half of the second body is missing
        backend.gate.set()
        for thread in waiting:
            thread.join(PATIENCE)
        connection.sendall(b" " * 40 + POST + b'17\r\n\r\n{"inputs":"good"}')
        answered = receive(connection, 1)
    assert re.findall(rb"HTTP/1.1 (\d+)", refused) == [b"429", b"429"]
    assert re.findall(rb"retry-after: (\d+)", refused) == [b"1", b"1"]
    assert answered.startswith(b"HTTP/1.1 200")
    assert sum(len(batch) for batch in backend.batches) == 3


def until_counted(url: str, line: str, sending: bytes = b"") -> None:
    """Wait until the metrics have a line; `sending`: with a request before each look."""
    end = time.monotonic() + PATIENCE
    while line not in httpx.get(url + "/metrics", timeout=PATIENCE).text:
        if sending:
            httpx.post(url + "/sentiment", content=sending, headers=JSON, timeout=PATIENCE)
        assert time.monotonic() < end
        time.sleep(0.01)


def receive(connection: socket.socket, answers: int) -> bytes:
    """So many answers, whose bodies are JSON objects at the end of a packet each."""
    received = b""
    while len(re.findall(rb"\r\n\r\n\{.*?\}(?=HTTP|\Z)", received, re.DOTALL)) < answers:
        part = connection.recv(1 << 16)
        assert part, received
        received += part
    return received


@pytest.mark.parametrize("length", [b"Content-Length: 100000", b"Transfer-Encoding: chunked"])
@pytest.mark.parametrize(
    ("url", "then", "statuses"),
    [
        ({"max_upload_bytes": 100_000}, "disconnect", []),
        ({"max_upload_bytes": 100_000, "request_timeout_ms": 3000}, "stall", [b"504"]),
        ({"max_upload_bytes": 100_000}, "complete", [b"400"]),
        ({"max_upload_bytes": 100_000}, "break", [b"400"]),
    ],
    indirect=["url"],
)
def test_uploads_release_their_reservation_however_they_end(
    url: str, length: bytes, then: str, statuses: list[bytes]
) -> None:
    chunked = length.endswith(b"chunked")
    with socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1])), timeout=PATIENCE) as connection:
        connection.sendall(JSON_POST + length + b"\r\n\r\n" + (b"186a0\r\n" if chunked else b"") + b"x" * 90_000)
        until_counted(url, "bert_requests_refused_total 1.0", sending=b"x" * 70_000)
        if then == "complete":
            connection.sendall(b"x" * 10_000 + (b"\r\n0\r\n\r\n" if chunked else b""))
        elif then == "break":
            connection.sendall(b"x" * 10_000 + b"no request, and no chunk\r\n\r\n")
        received = b"" if then == "disconnect" else connection.recv(1 << 16)
    if then == "break" and chunked:  # the connection closes
        statuses = []
    assert re.findall(rb"HTTP/1.1 (\d+)", received)[:1] == statuses
    end = time.monotonic() + PATIENCE
    while httpx.post(url + "/sentiment", content=b"x" * 70_000, headers=JSON, timeout=PATIENCE).status_code == 429:
        assert time.monotonic() < end
        time.sleep(0.01)
