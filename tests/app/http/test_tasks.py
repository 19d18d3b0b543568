"""`POST /fill-mask`, `/next-sentence` and `/sentiment`."""

from __future__ import annotations

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
