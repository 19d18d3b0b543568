"""`POST /fill-mask`, `/next-sentence` and `/sentiment`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from app.inference.contract import Head
from app.tasks import FILL_MASK, NEXT_SENTENCE, SENTIMENT


async def test_fill_mask_of_one_bare_input_is_a_list_of_one_result(serve: Any) -> None:
    async with serve() as service:
        answer = await service.client.post("/fill-mask", json={"inputs": "The film was [MASK]!"})
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert body["model"] == "fake-pretrained"
    (result,) = body["results"]
    assert set(result) == {"masks", "tokens", "truncated"}
    assert (result["tokens"], result["truncated"]) == (7, False)
    (mask,) = result["masks"]
    assert mask["position"] == 4
    assert len(mask["predictions"]) == 5
    assert set(mask["predictions"][0]) == {"score", "token", "token_str", "sequence"}
    assert mask["predictions"][0]["sequence"] == f"The film was {mask['predictions'][0]['token_str']}!"


async def test_fill_mask_answers_every_mask_of_every_input_in_order(serve: Any) -> None:
    inputs = ["[MASK] and [MASK]", "a [MASK]"]
    async with serve() as service:
        body = (await service.client.post("/fill-mask", json={"inputs": inputs, "parameters": {"top_k": 1}})).json()
    assert [[mask["position"] for mask in result["masks"]] for result in body["results"]] == [[1, 3], [2]]


async def test_fill_mask_scores_only_the_targets(serve: Any) -> None:
    asked = {"inputs": "a [MASK] film", "parameters": {"targets": ["Good", "bad"]}}
    async with serve() as service:
        body = (await service.client.post("/fill-mask", json=asked)).json()
    predictions = body["results"][0]["masks"][0]["predictions"]
    assert {prediction["token_str"] for prediction in predictions} == {"good", "bad"}


async def test_fill_mask_names_an_unknown_target(serve: Any) -> None:
    asked = {"inputs": "a [MASK] film", "parameters": {"targets": ["good", "xyzzy"]}}
    async with serve() as service:
        answer = await service.client.post("/fill-mask", json=asked)
    assert (answer.status_code, answer.json()["code"]) == (422, "unknown_target")
    assert "xyzzy" in answer.json()["detail"]


async def test_fill_mask_refuses_a_text_without_mask(serve: Any) -> None:
    async with serve() as service:
        answer = await service.client.post("/fill-mask", json={"inputs": ["[MASK]", "no mask"]})
    assert (answer.status_code, answer.json()["code"]) == (422, "no_mask")
    assert answer.json()["errors"][0]["loc"] == ["inputs", 1]


async def test_fill_mask_refuses_a_long_text_with_both_lengths_unless_truncated(serve: Any) -> None:
    asked = {"inputs": "[MASK] " + "a " * 100}
    async with serve() as service:
        refused = await service.client.post("/fill-mask", json=asked)
        cut = await service.client.post("/fill-mask", json=asked | {"parameters": {"truncate": True}})
    assert (refused.status_code, refused.json()["code"]) == (422, "text_too_long")
    assert "103" in refused.json()["detail"]
    assert "64" in refused.json()["detail"]
    assert cut.json()["results"][0]["truncated"] is True
    assert cut.json()["results"][0]["tokens"] == 64


@pytest.mark.parametrize(("truncation", "kept"), [("head", {"good"}), ("head_tail", {"good", "bad"})])
async def test_sentiment_cuts_a_text_where_the_checkpoint_says(
    serve: Any, backend: Any, truncation: str, kept: set[str]
) -> None:
    model = backend.models["sentiment"]
    backend.models["sentiment"] = replace(model, config=replace(model.config, truncation=truncation))
    async with serve() as service:
        asked = {"inputs": "good " * 100 + "bad " * 100, "parameters": {"truncate": True}}
        answer = await service.client.post("/sentiment", json=asked)
    assert answer.json()["results"][0]["truncated"]
    assert {*map(model.tokenizer.token, backend.batches[0][0].encoding.ids)} == {"[CLS]", "[SEP]", *kept}


async def test_fill_mask_refuses_a_mask_lost_by_truncation(serve: Any) -> None:
    asked = {"inputs": "[MASK] " + "a " * 100 + "[MASK]", "parameters": {"truncate": True}}
    async with serve() as service:
        answer = await service.client.post("/fill-mask", json=asked)
    assert (answer.status_code, answer.json()["code"]) == (422, "no_mask")


async def test_fill_mask_keeps_any_script_in_the_sequence(serve: Any) -> None:
    text = "Ünïcode 😀 \u0000 \u202e עברית [MASK] \U0010ffff"
    async with serve() as service:
        body = (await service.client.post("/fill-mask", json={"inputs": text})).json()
    prediction = body["results"][0]["masks"][0]["predictions"][0]
    assert prediction["sequence"] == text.replace("[MASK]", prediction["token_str"])


PAIR = {"text": "a film", "text_pair": "it was good"}


async def test_classify_is_sentiment_under_another_name(serve: Any) -> None:
    body = {"inputs": ["good", {"text": "a film", "text_pair": "bad"}], "parameters": {"top_k": 1}}
    async with serve() as service:
        classified = await service.client.post("/classify", json=body)
        judged = await service.client.post("/sentiment", json=body)
        refused = await service.client.post("/classify", json={"inputs": [""]})
        assert await service.metric('bert_requests_total{status="200",task="sentiment"}') == 2
    assert classified.status_code == 200
    assert classified.json() == judged.json()
    assert (refused.status_code, refused.json()["code"]) == (422, "empty_text")


async def test_next_sentence_sorts_labels_by_score(serve: Any) -> None:
    async with serve() as service:
        body = (await service.client.post("/next-sentence", json={"inputs": PAIR})).json()
    assert body["model"] == "fake-pretrained"
    assert body["results"] == [
        {
            "predictions": [{"label": "NOT_NEXT", "score": 0.75}, {"label": "IS_NEXT", "score": 0.25}],
            "tokens": 8,
            "truncated": False,
        }
    ]


async def test_next_sentence_has_one_result_per_pair(serve: Any) -> None:
    async with serve() as service:
        body = (await service.client.post("/next-sentence", json={"inputs": [PAIR, PAIR]})).json()
    assert len(body["results"]) == 2


async def test_next_sentence_refuses_an_empty_text(serve: Any) -> None:
    async with serve() as service:
        answer = await service.client.post("/next-sentence", json={"inputs": PAIR | {"text_pair": " "}})
    assert (answer.status_code, answer.json()["code"]) == (422, "empty_text")
    assert "text_pair" in answer.json()["detail"]


@pytest.mark.parametrize("half", ["text", "text_pair"])
async def test_next_sentence_locates_an_error_in_the_callers_body(serve: Any, half: str) -> None:
    broken = PAIR | {half: ""}
    async with serve() as service:
        answers = [
            await service.client.post(path, json={"inputs": inputs})
            for path, inputs in (
                ("/next-sentence", broken),
                ("/next-sentence", [PAIR, broken]),
                ("/hf/text-classification", broken),
                ("/sentiment", ["good", broken]),
                ("/sentiment", ""),
                ("/fill-mask", ["no mask"]),
                ("/fill-mask", "no mask"),
            )
        ]
    assert [answer.json()["errors"][0]["loc"] for answer in answers] == [
        ["inputs", half],
        ["inputs", 1, half],
        ["inputs", half],
        ["inputs", 1, half],
        ["inputs"],
        ["inputs", 0],
        ["inputs"],
    ]


async def test_next_sentence_without_a_head_is_404(serve: Any, backend: Any) -> None:
    backend.models["pretrained"] = replace(backend.models["pretrained"], heads=(Head.WORDS,))
    async with serve(tasks=(FILL_MASK, NEXT_SENTENCE, SENTIMENT)) as service:
        answer = await service.client.post("/next-sentence", json={"inputs": PAIR})
        info = (await service.client.get("/info")).json()
    assert (answer.status_code, answer.json()["code"]) == (404, "task_not_served")
    assert [model["tasks"] for model in info["models"]] == [["fill-mask"], ["sentiment"]]


async def test_sentiment_classifies_texts_and_pairs(serve: Any) -> None:
    inputs = ["good", {"text": "good", "text_pair": "i loved it"}]
    async with serve() as service:
        body = (await service.client.post("/sentiment", json={"inputs": inputs})).json()
    assert body["model"] == "fake-sentiment"
    assert [result["tokens"] for result in body["results"]] == [3, 7]
    assert body["results"][0]["predictions"] == [
        {"label": "POSITIVE", "score": 0.75},
        {"label": "NEGATIVE", "score": 0.25},
    ]


async def test_sentiment_top_k_keeps_the_highest_scores(serve: Any) -> None:
    asked = {"inputs": "good", "parameters": {"top_k": 1}}
    async with serve() as service:
        body = (await service.client.post("/sentiment", json=asked)).json()
    assert [prediction["label"] for prediction in body["results"][0]["predictions"]] == ["POSITIVE"]


async def test_sentiment_refuses_an_empty_text(serve: Any) -> None:
    async with serve() as service:
        answer = await service.client.post("/sentiment", json={"inputs": ["good", ""]})
    assert (answer.status_code, answer.json()["code"]) == (422, "empty_text")


async def test_sentiment_refuses_too_many_inputs(serve: Any) -> None:
    async with serve(max_client_batch=2) as service:
        answer = await service.client.post("/sentiment", json={"inputs": ["a"] * 3})
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")


async def test_sentiment_refuses_a_request_larger_than_the_queue(serve: Any) -> None:
    async with serve(max_queue_tokens=10) as service:
        answer = await service.client.post("/sentiment", json={"inputs": ["a a a"] * 3})
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")


async def test_sentiment_with_a_full_queue_is_429_and_not_started(serve: Any, backend: Any) -> None:
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


async def test_sentiment_with_a_full_queue_is_429_before_the_body_is_read(serve: Any, backend: Any) -> None:
    async def body() -> AsyncIterator[bytes]:
        raise AssertionError("the body was read")
        yield b""

    async with serve(max_queue_tokens=20) as service:
        backend.gate.clear()
        first = asyncio.create_task(service.client.post("/sentiment", json={"inputs": "a"}))
        await backend.has_entered()
        second = asyncio.create_task(service.client.post("/sentiment", json={"inputs": "a " * 13}))
        await service.queued(2)
        headers = {"Content-Type": "application/json", "Content-Length": "60"}  # no fewer than ten tokens
        refused = await service.client.post("/sentiment", content=body(), headers=headers)
        backend.gate.set()
        assert [(await task).status_code for task in (first, second)] == [200, 200]
    assert (refused.status_code, refused.json()["code"]) == (429, "queue_full")
