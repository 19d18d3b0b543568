"""A new task with an existing head is one file and one line of the table."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from app.http.application import create_app
from app.inference.contract import Query
from app.settings import Settings
from app.tasks import FILL_MASK, NEXT_SENTENCE, SENTIMENT, TASKS
from app.tasks.labels import LabelQuestion
from tests.app.tasks.topics import TOPICS

PAIR = {"text": "good", "text_pair": "good"}
TENSOR = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["good"]}


async def test_new_task_is_answered_in_every_protocol(serve: Any) -> None:
    asked = {"inputs": "good"}
    async with serve(tasks=(FILL_MASK, SENTIMENT, TOPICS)) as service:
        own = await service.client.post("/topics", json=asked | {"parameters": {"top_k": 1}})
        hugging_face = await service.client.post("/hf/topics", json=asked)
        model = await service.client.get("/v2/models/topics")
        inferred = await service.client.post("/v2/models/topics/infer", json={"inputs": [TENSOR]})
        refused = await service.client.post("/topics", json={"inputs": ""})
        listed = (await service.client.get("/info")).json()["models"][1]["tasks"]
        paths = (await service.client.get("/openapi.json")).json()["paths"]
        assert await service.metric('bert_requests_total{status="200",task="topics"}') == 3
        assert await service.metric('bert_requests_total{status="422",task="topics"}') == 1
    assert own.json()["results"][0]["predictions"] == [{"label": "POSITIVE", "score": 0.75}]
    assert [prediction["label"] for prediction in hugging_face.json()[0]] == ["POSITIVE", "NEGATIVE"]
    assert [tensor["name"] for tensor in model.json()["inputs"]] == ["text", "text_pair"]
    assert inferred.json()["model_name"] == "topics"
    assert refused.status_code == 422
    assert listed == ["sentiment", "topics"]
    assert {"/topics", "/hf/topics"} <= paths.keys()
    documented = paths["/v2/models/topics/infer"]["post"]["responses"]["200"]["content"]["application/json"]["example"]
    assert [tensor["data"] for tensor in documented["outputs"]] == [["sports", "politics"], [0.91, 0.09]]


async def test_new_task_without_a_parameter_refuses_it_in_every_protocol(serve: Any) -> None:
    asked: dict[str, Any] = {"/v2/models/topics/infer": [TENSOR]} | dict.fromkeys(("/topics", "/hf/topics"), PAIR)
    async with serve(tasks=(FILL_MASK, SENTIMENT, replace(TOPICS, request=NEXT_SENTENCE.request))) as service:
        for path, inputs in asked.items():
            answer = await service.client.post(path, json={"inputs": inputs, "parameters": {"top_k": 1}})
            assert answer.status_code == 422
            assert answer.json()["detail"].startswith("parameters.top_k: unknown field; known are truncate")


class OneLabelQuestion(LabelQuestion):
    """A mistake: its head gives two scores for each input."""

    def query(self, encodings: Any) -> Query:
        return Query(encodings, labels=1)


async def test_new_task_that_expects_fewer_scores_than_its_head_gives_fails_alone(serve: Any, backend: Any) -> None:
    operation = replace(NEXT_SENTENCE.operations[0], path="/follows")
    follows = replace(NEXT_SENTENCE, name="follows", operations=[operation], question=OneLabelQuestion)
    async with serve(tasks=(*TASKS, follows)) as service:
        both = (service.client.post(path, json={"inputs": PAIR}) for path in ("/follows", "/next-sentence"))
        all_three = asyncio.gather(await service.held(), *both)
        await service.queued(3)
        backend.gate.set()
        _, failed, answered = await all_three
    assert [len(batch) for batch in backend.batches] == [1, 2, 1, 1]
    assert (failed.status_code, failed.json()["code"]) == (500, "inference_failed")
    assert answered.json()["results"][0]["predictions"][0] == {"label": "NOT_NEXT", "score": 0.75}


@pytest.mark.parametrize("wrong", [{"request": FILL_MASK.request}, {"question": partial(LabelQuestion, labels=["A"])}])
def test_new_task_whose_question_does_not_take_its_arguments_is_an_error(wrong: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="argument"):
        replace(TOPICS, **wrong)


def test_new_task_with_the_path_of_another_is_an_error(backend: Any) -> None:
    with pytest.raises(ValueError, match="two tasks have the path /sentiment"):
        create_app(Settings(), backend, tasks=(*TASKS, SENTIMENT))
