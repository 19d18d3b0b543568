"""`POST /sentiment` as the contract says."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any


async def test_texts_and_pairs_are_classified(serve: Any) -> None:
    inputs = ["good", {"text": "good", "text_pair": "i loved it"}]
    async with serve() as service:
        body = (await service.client.post("/sentiment", json={"inputs": inputs})).json()
    assert body["model"] == "fake-sentiment"
    assert [result["tokens"] for result in body["results"]] == [3, 7]
    assert body["results"][0]["predictions"] == [
        {"label": "POSITIVE", "score": 0.75},
        {"label": "NEGATIVE", "score": 0.25},
    ]


async def test_top_k_keeps_the_likeliest(serve: Any) -> None:
    asked = {"inputs": "good", "parameters": {"top_k": 1}}
    async with serve() as service:
        body = (await service.client.post("/sentiment", json=asked)).json()
    assert [prediction["label"] for prediction in body["results"][0]["predictions"]] == ["POSITIVE"]


async def test_empty_text_is_refused(serve: Any) -> None:
    async with serve() as service:
        answer = await service.client.post("/sentiment", json={"inputs": ["good", ""]})
    assert (answer.status_code, answer.json()["code"]) == (422, "empty_text")


async def test_too_many_inputs_are_413(serve: Any) -> None:
    async with serve(max_client_batch=2) as service:
        answer = await service.client.post("/sentiment", json={"inputs": ["a"] * 3})
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")


async def test_request_beyond_the_whole_queue_is_413(serve: Any) -> None:
    async with serve(max_queue_tokens=10) as service:
        answer = await service.client.post("/sentiment", json={"inputs": ["a a a"] * 3})
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")


async def test_full_queue_is_429_and_the_request_is_not_started(serve: Any, backend: Any) -> None:
    import asyncio

    async with serve(max_queue_tokens=10) as service:
        backend.gate.clear()
        first = asyncio.create_task(service.client.post("/sentiment", json={"inputs": "a"}))
        await backend.has_entered()
        second = asyncio.create_task(service.client.post("/sentiment", json={"inputs": ["a a a", "a"]}))
        await service.queued(2)
        refused = await service.client.post("/sentiment", json={"inputs": "good"})
        assert (refused.status_code, refused.json()["code"]) == (429, "queue_full")
        assert int(refused.headers["retry-after"]) >= 1
        backend.gate.set()
        assert [(await task).status_code for task in (first, second)] == [200, 200]
    assert sum(len(batch) for batch in backend.batches) == 3


async def test_full_queue_refuses_before_the_body_is_read(serve: Any, backend: Any) -> None:
    import asyncio

    async def body() -> AsyncIterator[bytes]:
        raise AssertionError("the body was read")
        yield b""

    async with serve(max_queue_tokens=20) as service:
        backend.gate.clear()
        first = asyncio.create_task(service.client.post("/sentiment", json={"inputs": "a"}))
        await backend.has_entered()
        second = asyncio.create_task(service.client.post("/sentiment", json={"inputs": ["a a a"] * 3}))
        await service.queued(2)
        headers = {"Content-Type": "application/json", "Content-Length": "60"}  # no fewer than ten tokens
        refused = await service.client.post("/sentiment", content=body(), headers=headers)
        backend.gate.set()
        assert [(await task).status_code for task in (first, second)] == [200, 200]
    assert (refused.status_code, refused.json()["code"]) == (429, "queue_full")
