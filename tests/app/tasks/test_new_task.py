"""A new task with an existing head is one file and one line of the table."""

from __future__ import annotations

from typing import Any

import pytest

from app.http.application import create_app
from app.settings import Settings
from app.tasks import FILL_MASK, SENTIMENT, TASKS
from tests.app.tasks.topics import TOPICS


async def test_new_task_is_answered_in_every_protocol(serve: Any) -> None:
    asked = {"inputs": "good"}
    tensor = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["good"]}
    async with serve(tasks=(FILL_MASK, SENTIMENT, TOPICS)) as service:
        own = await service.client.post("/topics", json=asked | {"parameters": {"top_k": 1}})
        hugging_face = await service.client.post("/hf/topics", json=asked)
        model = await service.client.get("/v2/models/topics")
        inferred = await service.client.post("/v2/models/topics/infer", json={"inputs": [tensor]})
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
    assert {"/topics", "/hf/topics", "/v2/models/topics/infer"} <= paths.keys()


def test_new_task_with_the_path_of_another_is_an_error(backend: Any) -> None:
    with pytest.raises(ValueError, match="two tasks have the path /sentiment"):
        create_app(Settings(), backend, tasks=(*TASKS, SENTIMENT))
