"""`POST /next-sentence` as the contract says."""

from __future__ import annotations

from typing import Any

import pytest

PAIR = {"text": "a film", "text_pair": "it was good"}


async def test_labels_come_likeliest_first(serve: Any) -> None:
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


async def test_one_result_per_pair(serve: Any) -> None:
    async with serve() as service:
        body = (await service.client.post("/next-sentence", json={"inputs": [PAIR, PAIR]})).json()
    assert len(body["results"]) == 2


async def test_empty_half_is_refused(serve: Any) -> None:
    async with serve() as service:
        answer = await service.client.post("/next-sentence", json={"inputs": PAIR | {"text_pair": " "}})
    assert (answer.status_code, answer.json()["code"]) == (422, "empty_text")
    assert "text_pair" in answer.json()["detail"]


@pytest.mark.parametrize("half", ["text", "text_pair"])
async def test_fault_lies_where_the_callers_body_has_it(serve: Any, half: str) -> None:
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


async def test_checkpoint_without_the_head_says_so(serve: Any, backend: Any) -> None:
    from dataclasses import replace

    from app.inference.types import Task

    backend.models["pretrained"] = replace(backend.models["pretrained"], tasks=(Task.FILL_MASK,))
    async with serve() as service:
        answer = await service.client.post("/next-sentence", json={"inputs": PAIR})
        info = (await service.client.get("/info")).json()
    assert (answer.status_code, answer.json()["code"]) == (404, "task_not_served")
    assert [model["tasks"] for model in info["models"]] == [["fill-mask"], ["sentiment"]]
