"""The whole app, and its OpenAPI document compared with its answers."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest

from app.http.application import create_app
from app.inference.contract import BackendConfig
from app.settings import Settings
from model.errors import CheckpointError
from tests.app.backends import ThreadBackend

TASKS = ["/fill-mask", "/next-sentence", "/sentiment", "/hf/fill-mask", "/hf/text-classification"]
TASKS += ["/predict", "/rerank", "/tokenize", "/v2/models/fill-mask/infer", "/v2/models/next-sentence/infer"]


@pytest.fixture
async def document(serve: Any) -> Any:
    async with serve() as service:
        return (await service.client.get("/openapi.json")).json()


@pytest.mark.parametrize("path", TASKS)
async def test_document_has_every_status_of_the_tasks(document: Any, path: str) -> None:
    responses = document["paths"][path]["post"]["responses"]
    assert set(responses) == {"200", "400", "401", "404", "413", "415", "422", "429", "500", "503", "504"}
    for status in set(responses) - {"200"}:
        assert list(responses[status]["content"]) == ["application/problem+json"]


async def test_document_examples_are_answered_at_their_own_path_as_documented(
    serve: Any, backend: Any, document: Any
) -> None:
    def shape(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: shape(inner) for key, inner in value.items()}
        return [shape(value[0])] if isinstance(value, list) else type(value)

    two_labels, sent = backend.models["sentiment"], set()
    one_label = replace(two_labels, config=two_labels.config.replace(id2label={0: "MATCH"}))
    async with serve() as service:
        for path, methods in document["paths"].items():
            if "post" not in methods:
                continue
            backend.models["sentiment"] = one_label if path == "/rerank" else two_labels
            content = methods["post"]["requestBody"]["content"]["application/json"]
            schema = document["components"]["schemas"][content["schema"]["$ref"].rsplit("/", 1)[1]]
            examples = [content["example"]] if "example" in content else schema["examples"]
            answers = [await service.client.post(path, json=example) for example in examples]
            assert [answer.status_code for answer in answers] == [200] * len(answers), answers[0].text
            documented = methods["post"]["responses"]["200"]["content"]["application/json"]["example"]
            assert shape(answers[0].json()) == shape(documented), path
            sent.add(path)
    assert set(TASKS) < sent


MUTATIONS: list[bytes] = [
    b"",
    b"null",
    b"[]",
    b"5",
    b'"a"',
    b"{}",
    b"\xff",
    b"{'inputs':'a'}",
    b'{"inputs":NaN}',
    b'{"inputs":"\\ud800"}',
    b'{"inputs":"\\udc00 [MASK]"}',
    b'{"inputs":' + b"[" * 10_000,
    b'{"inputs":[[[]]]}',
    b'{"inputs":"[MASK]","parameters":{"top_k":1e999}}',
    b'{"inputs":"[MASK]","parameters":{"top_k":' + b"9" * 400 + b"}}",
    b'{"inputs":"\\u0000"}',
    b'{"inputs":" "}',
    b'{"inputs":"' + b"x" * 1_000_000 + b'"}',
    b'{"inputs":"' + b"[MASK] " * 10_000 + b'"}',
    b'{"inputs":"' + "\u202e😀\u0301".encode() * 50 + b'"}',
    b'{"inputs":"[CLS] [SEP] [PAD] [UNK]"}',
    b'{"inputs":"[MASK]","parameters":{"targets":["\\u0000"]}}',
    b'{"inputs":{"text":"","text_pair":""}}',
    b'{"inputs":"[MASK]","parameters":{"targets":["[MASK]","[PAD]"]}}',
    b'{"inputs":"' + b"[MASK] " * 10_000 + b'","parameters":{"truncate":true}}',
    b'{"inputs":"[mask]"}',
    b'{"inputs":"[MASK]\xc2\xa0[MASK]\xe2\x80\x8b[MASK]","parameters":{"top_k":100}}',
    b"\xef\xbb\xbf{}",
    b'{"inputs":"good',
    b'{"inputs":"##ing [MASK] \x7f \xef\xbb\xbf \xe2\x80\xa8 \xef\xac\x81 \xe1\xba\x9e"}',
    b'{"inputs":"[MASK]","parameters":{"top_k":-0.0}}',
    b'{"inputs":["[MASK]",{"text":"a","text_pair":"b"},null,[true]],"":{"options":1e308}}',
]


@pytest.mark.parametrize("path", TASKS)
async def test_app_answers_unusual_bodies_without_a_500(serve: Any, pretrained: Any, sentiment: Any, path: str) -> None:
    backend = ThreadBackend(BackendConfig(pretrained, sentiment, device="cpu", dtype="float32", threads=1))
    async with serve(backend) as service:
        for body in MUTATIONS:
            answer = await service.client.post(path, content=body, headers={"Content-Type": "application/json"})
            assert answer.status_code in (200, 400, 413, 422), (body[:60], answer.text)
            answer.json()


# Under any ASGI server ------------------------------------------------------------------------------------------


async def test_lifespan_waits_until_the_models_answer(backend: Any) -> None:
    backend.may_load.clear()
    app = create_app(Settings(), backend)
    async with AsyncExitStack() as stack:
        starting = asyncio.create_task(stack.enter_async_context(app.router.lifespan_context(app)))
        await asyncio.sleep(0.05)
        assert not starting.done()
        backend.may_load.set()
        await starting
        assert app.service.lifecycle.status == "ready"
    assert backend.closed


async def test_lifespan_raises_if_the_models_cannot_be_loaded(backend: Any) -> None:
    backend.load_error = CheckpointError("a folder", "no weights")
    app = create_app(Settings(), backend)
    with pytest.raises(CheckpointError, match="no weights"):
        async with app.router.lifespan_context(app):
            pass
    assert backend.closed


async def test_app_without_its_server_notices_a_batch_that_hangs(serve: Any, backend: Any) -> None:
    async with serve() as service:
        service.lifecycle._stall_seconds = 0.1
        backend.gate.clear()
        asked = await service.client.post("/sentiment", json={"inputs": "good"})
        assert (asked.status_code, asked.json()["code"]) == (500, "inference_failed")  # its process was killed
        assert asked.json()["errors"] == []
