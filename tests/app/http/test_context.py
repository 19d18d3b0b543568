"""Request ids, logging, CORS, allowed hosts, draining."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any
from unittest.mock import AsyncMock

import httpx
import pytest

from app.http import handle
from app.http.context import _address
from app.http.handle import TaskRoute
from app.tasks import TASKS


@pytest.mark.parametrize("path", ["/health/live", "/nowhere", "/fill-mask", "/docs"])
async def test_every_response_has_a_request_id(serve: Any, path: str) -> None:
    async with serve() as service:
        first, second = await service.client.get(path), await service.client.get(path)
    assert first.headers["x-request-id"]
    assert first.headers["x-request-id"] != second.headers["x-request-id"]


@pytest.mark.parametrize("given", ["abc-1.2_3", "abc-1.2_3 ", "abc-1.2_3\t "])
async def test_request_id_of_the_caller_is_returned(serve: Any, given: str) -> None:
    async with serve() as service:
        answer = await service.client.post("/fill-mask", json={}, headers={"X-Request-ID": given})
    assert answer.headers["x-request-id"] == answer.json()["request_id"] == "abc-1.2_3"


@pytest.mark.parametrize("given", [b"", b"a b", b"x" * 129, b'"><script>', b"\xff\xfe", b"a\tb"])
async def test_request_id_with_invalid_characters_is_replaced(serve: Any, given: bytes) -> None:
    async with serve() as service:
        answer = await service.client.get("/health/live", headers={b"X-Request-ID": given})
    assert answer.headers["x-request-id"].encode("latin-1") != given
    assert answer.headers["x-request-id"].isalnum()


async def test_server_timing_has_the_three_stages(serve: Any, backend: Any) -> None:
    async with serve() as service:
        began = time.perf_counter()
        first = await service.held()
        second = asyncio.create_task(service.client.post("/sentiment", json={"inputs": "bad"}))
        await service.queued(2)
        await asyncio.sleep(0.05)
        backend.gate.set()
        stages = []
        for answer in (await first, await second):
            parts = dict(part.split(";dur=") for part in answer.headers["server-timing"].split(", "))
            stages.append({name: float(milliseconds) for name, milliseconds in parts.items()})
        milliseconds = (time.perf_counter() - began) * 1000
    assert [list(one) for one in stages] == [["tokenize", "queue", "inference"]] * 2
    assert stages[0]["inference"] > 45
    assert stages[1]["queue"] > 45
    assert max(sum(one.values()) for one in stages) < milliseconds + 1


async def test_duration_of_a_request_is_observed_by_task_and_status(serve: Any, backend: Any) -> None:
    async with serve() as service:
        slow = await service.held()
        await asyncio.sleep(0.05)
        backend.gate.set()
        await slow
        await service.client.post("/sentiment", json={"inputs": ""})
        labels = '{status="200",task="sentiment"}'
        assert await service.metric(f"bert_request_duration_seconds_count{labels}") == 1
        assert await service.metric(f"bert_request_duration_seconds_sum{labels}") >= 0.05
        assert await service.metric('bert_request_duration_seconds_count{status="422",task="sentiment"}') == 1


async def test_unhandled_error_is_logged_and_sent_only_as_a_problem(
    serve: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An allowed origin can read it."""
    monkeypatch.setattr(handle, "task_result", AsyncMock(side_effect=ZeroDivisionError("internal")))
    asks = {"Origin": "https://example.org", "X-Request-ID": "mine"}
    async with serve(cors_origins="https://example.org") as service:
        with caplog.at_level(logging.ERROR):
            answer = await service.client.post("/sentiment", json={"inputs": "my secret text"}, headers=asks)
        assert await service.metric('bert_requests_total{status="500",task="sentiment"}') == 1
    assert (answer.status_code, answer.json()["code"]) == (500, "internal_error")
    assert answer.headers["access-control-allow-origin"] == "https://example.org"
    assert answer.headers["x-request-id"] == answer.json()["request_id"] == "mine"
    assert 'internal"' not in answer.text
    assert "ZeroDivisionError" in caplog.text
    assert "my secret text" not in caplog.text


async def test_request_is_logged_with_its_id_at_debug(serve: Any, caplog: pytest.LogCaptureFixture) -> None:
    keyed = {"Authorization": "Bearer k", "X-Request-ID": "mine-200"}
    async with serve(api_keys="k") as service:
        await service.client.post("/sentiment", json={"inputs": "good"}, headers=keyed)
        assert "mine-200" not in [getattr(record, "request_id", None) for record in caplog.records]
    with caplog.at_level(logging.DEBUG, "app.http.context"):
        async with serve(api_keys="k") as service:
            await service.client.post("/sentiment", json={"inputs": ["good", "bad film"]}, headers=keyed)
            refused = {"X-Request-ID": "mine-401"}  # its head alone decides, without the app at other levels
            await service.client.post("/sentiment", json={"inputs": "good"}, headers=refused)
            await service.client.head("/a%0Ab", headers={"X-Request-ID": "mine-404"})
    lines = {
        getattr(record, "request_id", ""): record.getMessage().split()[1:]
        for record in caplog.records
        if record.name == "app.http.context"
    }
    milliseconds = [line.pop(3).removeprefix("milliseconds=") for line in lines.values()]
    assert all(float(number) >= 0 for number in milliseconds)
    assert {request_id: " ".join(line) for request_id, line in lines.items()} == {
        "mine-200": "method=POST path=/sentiment status=200 task=sentiment inputs=2 tokens=7",
        "mine-401": "method=POST path=/sentiment status=401 task=sentiment problem=unauthorized",
        "mine-404": "method=HEAD path=/a%0Ab status=404 problem=not_found",
    }


@pytest.mark.parametrize(
    ("client", "line"),
    [
        (("10.0.0.1", 5), "10.0.0.1:5"),
        (("::1", 0), "::1:0"),
        (("::ffff:10.0.0.1", 5), "10.0.0.1:5"),
        (("fe80::1%x y", 1), "fe80::1:1"),
        (('x" 200 [forged', 0), "-"),
        (None, "-"),
    ],
)
def test_log_address_is_an_ip_address_or_a_dash(client: tuple[str, int] | None, line: str) -> None:
    assert _address({"client": client}) == line


async def test_task_requests_are_counted_under_a_root_path(serve: Any) -> None:
    async with serve() as service:
        transport = httpx.ASGITransport(service.app, root_path="/bert")
        async with httpx.AsyncClient(transport=transport, base_url="http://t") as mounted:
            assert (await mounted.post("/bert/sentiment", json={"inputs": "good"})).status_code == 200
        assert await service.metric('bert_requests_total{status="200",task="sentiment"}') == 1


async def test_preflight_allows_the_methods_that_are_served_and_is_not_counted(serve: Any) -> None:
    asks = {
        "Origin": "https://example.org",
        "Access-Control-Request-Method": "HEAD",
        "Access-Control-Request-Headers": "authorization,content-type,traceparent,user-agent",
    }
    async with serve(cors_origins="https://example.org") as service:
        preflight = await service.client.options("/sentiment", headers=asks)
        assert "bert_requests_total{" not in (await service.client.get("/metrics")).text
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-methods"] == "GET, HEAD, POST"


@pytest.mark.parametrize(
    ("listed", "origin", "status"),
    [
        ("https://example.org", "https://example.org", 200),
        ("https://example.org", "https://evil.example", 400),
        ("*", "https://example.org", 400),
    ],
)
async def test_preflight_for_a_private_network_is_granted_to_listed_origins(
    serve: Any, listed: str, origin: str, status: int
) -> None:
    asks = {
        "Origin": origin,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Private-Network": "true",
    }
    async with serve(cors_origins=listed) as service:
        preflight = await service.client.options("/sentiment", headers=asks)
    assert preflight.status_code == status
    if status == 200:
        assert preflight.headers["access-control-allow-private-network"] == "true"
        assert preflight.headers["access-control-allow-origin"] == origin


async def test_inference_error_is_logged_with_its_request_id(
    serve: Any, backend: Any, caplog: pytest.LogCaptureFixture
) -> None:
    backend.fault = lambda _: ValueError("broken")
    async with serve() as service:
        answer = await service.client.post("/sentiment", json={"inputs": "my secret text"})
    assert (answer.status_code, answer.json()["code"]) == (500, "inference_failed")
    logged = [getattr(record, "request_id", None) for record in caplog.records]
    assert answer.headers["x-request-id"] in logged
    assert "my secret text" not in caplog.text


async def test_cors_is_closed_unless_opened(serve: Any) -> None:
    headers = {"Origin": "https://example.org"}
    async with serve() as service:
        closed = await service.client.get("/health/live", headers=headers)
    async with serve(cors_origins="https://example.org") as service:
        opened = await service.client.get("/health/live", headers=headers)
        other = await service.client.get("/health/live", headers={"Origin": "https://evil.example"})
    assert "access-control-allow-origin" not in closed.headers
    assert opened.headers["access-control-allow-origin"] == "https://example.org"
    assert "access-control-allow-origin" not in other.headers


async def test_escaped_task_path_requires_the_key(serve: Any) -> None:
    async with serve(api_keys="0123456789abcdef") as service:
        given = {"Authorization": "Bearer 0123456789abcdef"}
        asked = [("/sentiment%0A", {}), ("/sentiment%0A", given), ("/sent%69ment", {}), ("/sent%69ment", given)]
        answers = [await service.client.post(path, json={"inputs": "good"}, headers=headers) for path, headers in asked]
    assert [answer.status_code for answer in answers] == [401, 200, 401, 200]


async def test_task_paths_are_the_same_for_routes_and_admission(serve: Any) -> None:
    async with serve() as service:
        paths = {route.path: route for route in service.app.routes if isinstance(route, TaskRoute)}
        assert service.app.service.routes == paths
    assert paths.keys() >= {operation.path for task in TASKS for operation in task.operations}


@pytest.mark.parametrize("path", ["/health/ready", "/info", "/metrics", "/", "/docs"])
async def test_head_is_get_without_a_body(serve: Any, path: str) -> None:
    async with serve() as service:
        head, get = await service.client.head(path), await service.client.get(path)
    assert (head.status_code, head.headers["content-type"]) == (200, get.headers["content-type"])


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("bert.example.org", 200),
        ("BERT.example.org:8000", 200),
        ("a.b.example.com", 200),
        ("127.0.0.1:8000", 200),
        ("[::1]:8000", 200),
        ("example.com", 400),
        ("evil-example.com", 400),
        ("rebound.example.net:8000", 400),
        ("[nothing", 400),
        ("", 400),
    ],
)
async def test_allowed_hosts_are_the_listed_ones_and_addresses(serve: Any, host: str, status: int) -> None:
    async with serve(allowed_hosts="bert.example.org, *.example.com") as service:
        answers = [
            await service.client.get("/info", headers={"Host": host}),
            await service.client.post("/sentiment", json={"inputs": "good"}, headers={"Host": host}),
        ]
    assert [answer.status_code for answer in answers] == [status] * 2
    if status != 200:
        assert answers[1].headers["content-type"] == "application/problem+json"
        assert answers[1].json()["code"] == "host_not_allowed"
        assert answers[1].json()["request_id"] == answers[1].headers["x-request-id"]
