"""Requests that are refused by their head."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import httpx
import pytest

from app.tasks import TASKS
from tests.app.conftest import PATIENCE

JSON = {"Content-Type": "application/json"}
JSON_POST = b"POST /sentiment HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
GOOD = {"inputs": "good"}
KEY = {"Authorization": "Bearer first"}
GUARDED = {"api_keys": "first,second,clé", "max_body_bytes": 1000}
BROWSER = {"Origin": "https://example.org"}

REFUSED: list[tuple[dict[str, str], int, str]] = [
    ({}, 401, "Authorization: Bearer <key>"),
    ({"Authorization": "Bearer third"}, 401, "invalid API key"),
    ({"Authorization": "Bearer sécond"}, 401, "invalid API key"),
    ({"Authorization": "Bearer "}, 401, "Authorization: Bearer <key>"),
    ({"Authorization": "Basic first"}, 401, "Authorization: Bearer <key>"),
    ({"Authorization": "first"}, 401, "Authorization: Bearer <key>"),
    (KEY, 415, "application/json"),
    *(
        (KEY | {"Content-Type": media_type}, 415, "application/json")
        for media_type in ("text/plain", "application/x-www-form-urlencoded", "text/json", "")
    ),
    (KEY | JSON | {"Content-Encoding": "gzip"}, 415, "Content-Encoding"),
    (KEY | JSON | {"Transfer-Encoding": "gzip, chunked"}, 415, ""),
    *((KEY | JSON | {"X-Request-Timeout-Ms": n}, 422, "whole number") for n in ("0", "-5", "1.5", "soon", "", "1e3")),
    (KEY | JSON | {"Content-Length": "1001"}, 413, "1000"),
]


async def unread() -> AsyncIterator[bytes]:
    raise AssertionError("the body was read")
    yield b""


def encoded(headers: dict[str, str]) -> dict[str, bytes]:
    return {name: value.encode() for name, value in headers.items()}


@pytest.mark.parametrize(("headers", "status", "detail"), REFUSED)
async def test_head_that_is_invalid_is_refused_before_the_body_and_counted(
    serve: Any, headers: dict[str, str], status: int, detail: str
) -> None:
    async with serve(**GUARDED) as service:
        refused = await service.client.post("/sentiment", headers=encoded(headers), content=unread())
        labels = f'{{status="{status}",task="sentiment"}}'
        assert await service.metric(f"bert_requests_total{labels}") == 1
        assert await service.metric(f"bert_request_duration_seconds_count{labels}") == 1
    assert (refused.status_code, refused.json()["status"]) == (status, status)
    assert detail in refused.json()["detail"]
    if status == 422:
        assert refused.json()["errors"][0]["loc"] == ["header", "X-Request-Timeout-Ms"]


@pytest.mark.parametrize(
    "headers",
    [
        *({"Authorization": key} for key in ("bearer second", "Bearer clé")),
        *({"Content-Type": f"{kind}"} for kind in ("application/json; charset=utf-8", "Application/JSON")),
        {"Content-Type": "application/a+json"},
        {"Content-Encoding": "identity"},
        *({"X-Request-Timeout-Ms": n} for n in ("5000 ", "5000\t", " 05000", "9" * 20, "9" * 5000)),
    ],
)
async def test_head_may_be_written_in_other_ways(serve: Any, headers: dict[str, str]) -> None:
    async with serve(**GUARDED) as service:
        head = encoded(KEY | JSON | headers)
        assert (await service.client.post("/sentiment", headers=head, json=GOOD)).status_code == 200


async def test_head_of_every_task_requires_a_key(serve: Any) -> None:
    async with serve(**GUARDED) as service:
        answers = [await service.client.post(path, json={}) for path in service.app.service.routes]
    assert len(answers) > len(TASKS)
    assert {(answer.status_code, answer.headers["www-authenticate"]) for answer in answers} == {(401, "Bearer")}


async def test_head_of_other_paths_needs_no_key(serve: Any) -> None:
    paths = (
        *("/health/live", "/health/ready", "/info", "/metrics", "/v2", "/v2/health/live", "/v2/health/ready"),
        *("/v2/models/sentiment", "/v2/models/sentiment/ready"),
    )
    async with serve(**GUARDED) as service:
        answers = {path: (await service.client.get(path)).status_code for path in paths}
    assert answers == dict.fromkeys(paths, 200)


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("GET", "/nowhere", 404, None),
        ("GET", "/fill-mask/", 404, None),
        ("GET", "/fill-mask", 405, "POST"),
        ("POST", "/info", 405, "GET, HEAD"),
    ],
)
async def test_head_of_an_unknown_path_or_method_is_refused(
    serve: Any, method: str, path: str, status: int, allow: str | None
) -> None:
    async with serve() as service:
        answer = await service.client.request(method, path)
    assert answer.status_code == answer.json()["status"] == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers.get("allow") == allow
    assert not allow or answer.json()["detail"] == f"use {allow}"


async def test_refusal_can_be_read_by_an_allowed_origin(serve: Any) -> None:
    async with serve(**GUARDED, cors_origins=BROWSER["Origin"]) as service:
        answer = await service.client.post("/sentiment", headers=BROWSER)
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
    assert refused.count(b'"code":"queue_full"') == 2
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
