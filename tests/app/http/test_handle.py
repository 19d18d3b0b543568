"""Task routes through the whole app: bodies, deadlines, disconnects, keys."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from app.errors import CallerGoneError
from app.http import handle
from app.http.handle import cancel_on_disconnect
from app.tasks import TASKS
from model import Tokenizer

GOOD = {"inputs": "good"}
JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    "media_type",
    ["application/json", "application/json; charset=utf-8", "Application/JSON", "application/a+json"],
)
async def test_media_type_of_json_is_accepted(serve: Any, media_type: str) -> None:
    async with serve() as service:
        answer = await service.client.post(
            "/sentiment", content=b'{"inputs":"good"}', headers={"Content-Type": media_type}
        )
    assert answer.status_code == 200


@pytest.mark.parametrize("media_type", ["text/plain", "application/x-www-form-urlencoded", "text/json", ""])
async def test_media_type_other_than_json_is_refused(serve: Any, media_type: str) -> None:
    async with serve() as service:
        answer = await service.client.post(
            "/sentiment", content=b'{"inputs":"good"}', headers={"Content-Type": media_type}
        )
    assert answer.status_code == 415


async def test_compressed_body_is_refused(serve: Any) -> None:
    async with serve() as service:
        packed = gzip.compress(b'{"inputs":"good"}')
        answer = await service.client.post("/sentiment", content=packed, headers=JSON | {"Content-Encoding": "gzip"})
        coded = JSON | {"Transfer-Encoding": "gzip, chunked"}
        assert (await service.client.post("/sentiment", content=packed, headers=coded)).status_code == 415
        plain = await service.client.post("/sentiment", json=GOOD, headers={"Content-Encoding": "identity"})
    assert (answer.status_code, answer.json()["code"]) == (415, "unsupported_media_type")
    assert "Content-Encoding" in answer.json()["detail"]
    assert plain.status_code == 200


async def test_body_in_utf_8_may_have_a_byte_order_mark_and_other_encodings_are_refused(serve: Any) -> None:
    text = '{"inputs": "é good"}'
    async with serve() as service:
        marked, *others = [
            await service.client.post("/sentiment", content=text.encode(encoding), headers=JSON)
            for encoding in ("utf-8-sig", "utf-16", "latin-1")
        ]
    assert marked.status_code == 200
    assert {(other.status_code, other.json()["code"]) for other in others} == {(400, "not_json")}
    assert all("the body is not UTF-8" in other.json()["detail"] for other in others)


@pytest.mark.parametrize("literal", ["NaN", "Infinity", "-Infinity"])
async def test_body_with_nan_or_infinity_is_not_json(serve: Any, literal: str) -> None:
    async with serve() as service:
        answers = [
            await service.client.post(
                path, content=f'{{"inputs": "[MASK]", "parameters": {{"a": {literal}}}}}', headers=JSON
            )
            for path in ("/fill-mask", "/hf/fill-mask")
        ]
        word = await service.client.post("/sentiment", json={"inputs": f"not {literal}"})
    assert [(answer.status_code, answer.json()["code"]) for answer in answers] == [(400, "not_json")] * 2
    assert word.status_code == 200


async def test_body_with_a_declared_size_above_the_limit_is_not_read(serve: Any) -> None:
    async def body() -> AsyncIterator[bytes]:
        raise AssertionError("the body was read")
        yield b""

    async with serve(max_body_bytes=100) as service:
        answer = await service.client.post("/sentiment", content=body(), headers=JSON | {"Content-Length": "101"})
    assert answer.status_code == 413


async def test_body_of_undeclared_size_is_read_up_to_the_limit(serve: Any) -> None:
    sent = 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal sent
        while sent < 1000:
            sent += 10
            yield b"x" * 10

    async with serve(max_body_bytes=100) as service:
        answer = await service.client.post("/sentiment", content=body(), headers=JSON)
    assert answer.status_code == 413
    assert sent < 200


async def test_body_that_does_not_end_meets_the_deadline(serve: Any) -> None:
    never = asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        yield b"{"
        await never.wait()

    async with serve(request_timeout_ms=20) as service:
        answer = await service.client.post("/sentiment", content=body(), headers=JSON)
        expired = await service.metric("bert_requests_expired_total")
    assert (answer.status_code, answer.json()["code"]) == (504, "deadline_exceeded")
    assert (
        answer.json()["detail"] == "the body did not arrive before the deadline; send a smaller one, or allow more time"
    )
    assert expired == 1


@pytest.mark.parametrize(
    ("inputs", "loc"),
    [
        (b'"\\ud83d"', ["inputs"]),
        (b'["good", "bad \\uDe00"]', ["inputs", 1]),
        (b'["good", {"text": "a", "text_pair": "\\ud83d."}]', ["inputs", 1]),
        (b'"good", "\\ud83d": 1', []),
        (b'["good", "\xed\xa0\xbd"]', ["inputs", 1]),  # as Python encodes it if it is told to let it pass
    ],
)
async def test_half_of_a_surrogate_pair_is_no_text(serve: Any, inputs: bytes, loc: list[str | int]) -> None:
    async with serve() as service:
        answer = await service.client.post("/sentiment", content=b'{"inputs": %s}' % inputs, headers=JSON)
    problem = answer.json()
    assert (answer.status_code, problem["code"], problem["errors"][0]["loc"]) == (422, "invalid_text", loc)
    assert "half of a surrogate pair" in problem["detail"]


async def test_unknown_field_is_named_in_short(serve: Any) -> None:
    async with serve() as service:
        answer = await service.client.post("/sentiment", json=GOOD | {"x" * 100_000: 1})
    assert answer.status_code == 422
    assert len(answer.content) < 2000
    assert answer.json()["errors"][0]["loc"] == ["x" * 99 + "…"]
    assert answer.json()["detail"].endswith("unknown field; known are inputs, parameters")


@pytest.mark.parametrize(
    ("path", "parameters", "meant"),
    [
        ("/sentiment", {"topk": 1}, "unknown field; did you mean top_k?"),
        ("/hf/fill-mask", {"top_K": 1}, "did you mean top_k?"),
        ("/hf/text-classification", {"return_all_scores": True}, "known are truncate, top_k, function_to_apply"),
    ],
)
async def test_unknown_parameter_is_refused_with_the_known_ones(
    serve: Any, path: str, parameters: Any, meant: str
) -> None:
    async with serve() as service:
        answer = await service.client.post(path, json={"inputs": "a [MASK]", "parameters": parameters})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["message"].endswith(meant)


@pytest.mark.parametrize("path", ["/fill-mask", "/hf/fill-mask"])
async def test_large_answer_is_refused(serve: Any, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {"inputs": ["x" * 900 + " [MASK] [MASK]", "b [MASK]"], "parameters": {"top_k": 70}}
    async with serve() as service:
        sent = await service.client.post(path, json=asked)
        monkeypatch.setattr(handle, "MAX_RESPONSE_BYTES", 100_000)
        refused = await service.client.post(path, json=asked)
    assert sent.status_code == 200
    assert len(sent.content) > 100_000
    assert (refused.status_code, refused.json()["code"]) == (413, "too_large")
    assert "lower top_k" in refused.json()["detail"]


async def test_nesting_of_any_depth_is_400(serve: Any) -> None:
    async with serve() as service:
        for depth in range(900, 1000):
            body = b'{"inputs": %s}' % (b"[" * depth + b"]" * depth)
            answer = await service.client.post("/sentiment", content=body, headers={"Content-Type": "application/json"})
            assert (answer.status_code, answer.json()["code"]) == (400, "not_json"), depth


@pytest.mark.parametrize("value", ["0", "-5", "1.5", "soon", "", "1e3"])
async def test_timeout_that_is_not_a_positive_number_is_refused(serve: Any, value: str) -> None:
    async with serve() as service:
        answer = await service.client.post("/sentiment", json=GOOD, headers={"X-Request-Timeout-Ms": value})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["loc"] == ["header", "X-Request-Timeout-Ms"]


@pytest.mark.parametrize("value", ["5000 ", "5000\t", " 05000", "9" * 20, "9" * 5000])
async def test_timeout_may_have_spaces_around_it_and_be_longer_than_the_limit(serve: Any, value: str) -> None:
    async with serve() as service:
        answer = await service.client.post("/sentiment", json=GOOD, headers={"X-Request-Timeout-Ms": value})
    assert answer.status_code == 200


@pytest.mark.parametrize("own", [True, False])
async def test_request_that_expires_in_the_queue_is_not_computed(serve: Any, backend: Any, own: bool) -> None:
    settings, headers = ({}, {"X-Request-Timeout-Ms": "30"}) if own else ({"request_timeout_ms": 1000}, {})
    async with serve(**settings) as service:
        backend.gate.clear()
        first = asyncio.create_task(service.client.post("/sentiment", json=GOOD))
        await backend.has_entered()
        late = await service.client.post("/sentiment", json={"inputs": "too late"}, headers=headers)
        assert (late.status_code, late.json()["code"]) == (504, "deadline_exceeded")
        assert service.lifecycle.engine.queued_tokens == 0
        backend.gate.set()
        await first
        assert await service.metric("bert_requests_expired_total") >= 1
    assert len(backend.batches) == 1


async def test_deadline_that_cannot_be_met_is_refused_at_once(serve: Any, backend: Any) -> None:
    hurried = {"X-Request-Timeout-Ms": "20000"}
    async with serve() as service:
        backend.gate.clear()
        first = asyncio.create_task(service.client.post("/sentiment", json={"inputs": ["good"] * 50}))
        await backend.has_entered()
        service.lifecycle.engine.throughput.tokens_per_second = 0.001
        hurried_one = await service.client.post("/sentiment", json=GOOD, headers=hurried)
        patient_one = await service.client.post("/sentiment", json=GOOD)
        backend.gate.set()
        await first
        assert await service.metric("bert_requests_expired_total") == 1
        assert await service.metric("bert_requests_refused_total") == 1
    assert (hurried_one.status_code, hurried_one.json()["code"]) == (504, "deadline_unreachable")
    assert (patient_one.status_code, patient_one.json()["code"]) == (429, "queue_full")
    assert "nothing was computed" in hurried_one.json()["detail"]
    assert int(hurried_one.headers["retry-after"]) >= 1


async def test_disconnected_caller_is_dropped_before_compute(serve: Any, backend: Any) -> None:
    async with serve() as service:
        backend.gate.clear()
        first = asyncio.create_task(service.client.post("/sentiment", json=GOOD))
        await backend.has_entered()
        leaves = asyncio.Event()
        gone = asyncio.create_task(call(service.app, b'{"inputs":"gone"}', leaves))
        await service.queued(2)
        leaves.set()
        assert await gone == 499  # the caller has left
        assert service.lifecycle.engine.queued_tokens == 0
        backend.gate.set()
        assert (await first).status_code == 200
        assert await service.metric("bert_requests_cancelled_total") == 1
    assert [len(batch) for batch in backend.batches] == [1]


async def call(app: Any, body: bytes, leaves: asyncio.Event) -> int:
    """A POST to /sentiment by a caller who hangs up when `leaves` is set; the status that was sent."""
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/sentiment",
        "raw_path": b"/sentiment",
        "query_string": b"",
        "headers": [(b"host", b"t"), (b"content-type", b"application/json")],
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "scheme": "http",
        "client": None,
        "server": None,
        "root_path": "",
    }
    messages = [{"type": "http.request", "body": body, "more_body": False}]
    status = 0

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop()
        await leaves.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        nonlocal status
        status = message.get("status", status)

    await app(scope, receive, send)
    return status


async def test_cancel_on_disconnect_returns_the_answer() -> None:
    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    async def answer() -> int:
        return 7

    assert await cancel_on_disconnect(receive, answer()) == 7


async def test_cancel_on_disconnect_passes_other_cancellations_on() -> None:
    started = asyncio.Event()

    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    async def answer() -> None:
        started.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(cancel_on_disconnect(receive, answer()))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_cancel_on_disconnect_cancels_the_answer() -> None:
    cancelled = asyncio.Event()

    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def answer() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    with pytest.raises(CallerGoneError):
        await cancel_on_disconnect(receive, answer())
    assert cancelled.is_set()


KEYS = {"api_keys": "first,second,clé"}


async def test_tasks_require_a_key(serve: Any) -> None:
    async with serve(**KEYS) as service:
        answers = [await service.client.post(path, json={}) for path in service.app.service.routes]
    assert {answer.status_code for answer in answers} == {401}
    assert len(answers) > len(TASKS)
    answer = answers[0]
    assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(
    ("header", "status"),
    [
        ("Bearer first", 200),
        ("bearer second", 200),
        ("Bearer clé", 200),
        ("Bearer third", 401),
        ("Bearer ", 401),
        ("Basic first", 401),
        ("first", 401),
        ("Bearer sécond", 401),
    ],
)
async def test_key_must_be_one_of_the_configured(serve: Any, header: str, status: int) -> None:
    async with serve(**KEYS) as service:
        answer = await service.client.post("/sentiment", json=GOOD, headers={"Authorization": header.encode()})
    assert answer.status_code == status
    if status == 401:
        wrong = header.lower().startswith("bearer ") and header.split()[1:]
        assert ("invalid API key" if wrong else "Authorization: Bearer <key>") in answer.json()["detail"]


async def test_keys_are_read_from_a_file(serve: Any, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("first\nsecond\n", encoding="utf-8")
    async with serve(api_keys_file=file) as service:
        answers = [
            await service.client.post("/sentiment", json=GOOD, headers={"Authorization": f"Bearer {key}"})
            for key in ("second", "third")
        ]
    assert [answer.status_code for answer in answers] == [200, 401]


async def test_health_needs_no_key(serve: Any) -> None:
    paths = (
        *("/health/live", "/health/ready", "/info", "/metrics", "/v2", "/v2/health/live", "/v2/health/ready"),
        *("/v2/models/sentiment", "/v2/models/sentiment/ready"),
    )
    async with serve(**KEYS) as service:
        answers = {path: (await service.client.get(path)).status_code for path in paths}
    assert answers == dict.fromkeys(paths, 200)


@pytest.mark.parametrize(
    ("path", "body", "loc"),
    [
        ("/sentiment", {"inputs": ["good", "bad", "good"]}, ["inputs", 1]),
        ("/sentiment", {"inputs": "bad"}, ["inputs"]),
        ("/predict", {"inputs": [["good"], ["bad"]]}, ["inputs", 1]),
        ("/predict", {"inputs": ["bad", "good"]}, ["inputs"]),
        (
            "/v2/models/sentiment/infer",
            {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [2], "data": ["good", "bad"]}]},
            ["inputs", 0, "data", 1],
        ),
    ],
)
async def test_input_that_cannot_be_computed_is_named(
    serve: Any, backend: Any, tokenizer: Tokenizer, path: str, body: Any, loc: list[Any]
) -> None:
    bad = tokenizer.encode("bad").input_ids[1]
    backend.fault = lambda asked: ValueError() if bad in asked.encoding.ids else None
    async with serve() as service:
        answer = await service.client.post(path, json=body)
    assert (answer.status_code, answer.json()["code"]) == (500, "inference_failed")
    assert [problem["loc"] for problem in answer.json()["errors"]] == [loc]
