"""Task routes through the whole app: bodies, deadlines. tests/app/server has callers who hang up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from model import Tokenizer

GOOD = {"inputs": "good"}
JSON = {"Content-Type": "application/json"}


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


async def test_nesting_of_any_depth_is_400(serve: Any) -> None:
    async with serve() as service:
        for depth in range(900, 1000):
            body = b'{"inputs": %s}' % (b"[" * depth + b"]" * depth)
            answer = await service.client.post("/sentiment", content=body, headers=JSON)
            assert (answer.status_code, answer.json()["code"]) == (400, "not_json"), depth


@pytest.mark.parametrize("own", [True, False])
async def test_request_that_expires_in_the_queue_is_not_computed(serve: Any, backend: Any, own: bool) -> None:
    settings, headers = ({}, {"X-Request-Timeout-Ms": "30"}) if own else ({"request_timeout_ms": 1000}, {})
    async with serve(**settings) as service:
        first = await service.held()
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
        first = await service.held(["good"] * 50)
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
