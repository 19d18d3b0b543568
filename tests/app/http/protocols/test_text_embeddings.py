"""`POST /predict`, `/rerank` and `/tokenize` in the shapes of text-embeddings-inference."""

from __future__ import annotations

import asyncio
import math
import threading
from dataclasses import replace
from typing import Any

import pytest

from app.http import handle
from app.http.protocols import text_embeddings
from app.inference.contract import BackendConfig
from tests.app.backends import ThreadBackend

BOTH = [{"label": "POSITIVE", "score": 0.75}, {"label": "NEGATIVE", "score": 0.25}]


@pytest.mark.parametrize(
    ("inputs", "predictions", "read"),
    [
        ("good", BOTH, ["good"]),
        (["good"], BOTH, ["good"]),
        (["good", "bad"], BOTH, ["good|bad"]),
        ([["good"]], [BOTH], ["good"]),
        ([["good"], ["good", "bad"]], [BOTH, BOTH], ["good", "good|bad"]),
    ],
)
async def test_predict_reads_a_text_a_pair_or_a_batch(
    serve: Any, backend: Any, inputs: Any, predictions: Any, read: list[str]
) -> None:
    async with serve(max_client_batch=2) as service:
        answer = await service.client.post("/predict", json={"inputs": inputs})
    assert answer.status_code == 200, answer.text
    assert answer.json() == predictions
    tokenizer = backend.models["sentiment"].tokenizer
    own = ["".join(map(tokenizer.token, q.encoding.ids)) for batch in backend.batches for q in batch]
    assert [text.removeprefix("[CLS]").removesuffix("[SEP]").replace("[SEP]", "|") for text in own] == read


@pytest.mark.parametrize(
    ("inputs", "status", "loc", "detail"),
    [
        (["a", "b", "c"], 422, ["inputs"], "[text, text] for one pair"),
        ([], 422, ["inputs"], "[text, text] for one pair"),
        (5, 422, ["inputs"], "[text, text] for one pair"),
        ([["a"], "b"], 422, ["inputs", 1], "array"),
        ([["a", "b", "c"]], 422, ["inputs", 0], "at most 2"),
        ("", 422, ["inputs"], "empty"),
        (["a", ""], 422, ["inputs", 1], "empty"),
        ([["a"], ["a", ""]], 422, ["inputs", 1, 1], "empty"),
        ([["a"], [""]], 422, ["inputs", 1], "empty"),
    ],
)
async def test_predict_refuses_other_inputs(serve: Any, inputs: Any, status: int, loc: list[Any], detail: str) -> None:
    async with serve() as service:
        answer = await service.client.post("/predict", json={"inputs": inputs})
    assert (answer.status_code, answer.json()["errors"][0]["loc"]) == (status, loc), answer.text
    assert detail in answer.json()["error"]


async def test_predict_counts_a_pair_as_one_input(serve: Any) -> None:
    async with serve(max_client_batch=1) as service:
        pair = await service.client.post("/predict", json={"inputs": ["a", "b"]})
        batch = await service.client.post("/predict", json={"inputs": [["a"], ["b"]]})
    assert (pair.status_code, batch.status_code) == (200, 413)


@pytest.mark.parametrize("truncate", ["truncate", "truncation"])
@pytest.mark.parametrize(("direction", "kept"), [("right", "good"), ("Left", "bad"), (None, "good")])
async def test_predict_cuts_the_end_that_is_asked_for(
    serve: Any, backend: Any, truncate: str, direction: str | None, kept: str
) -> None:
    asked = {"inputs": "good " * 100 + "bad " * 100, truncate: True, "truncation_direction": direction}
    async with serve() as service:
        answer = await service.client.post("/predict", json=asked)
        refused = await service.client.post("/predict", json=asked | {truncate: False})
    assert (answer.status_code, refused.status_code) == (200, 422)
    assert "set truncate to true" in refused.json()["detail"]
    tokenizer = backend.models["sentiment"].tokenizer
    assert {*map(tokenizer.token, backend.batches[0][0].encoding.ids)} == {"[CLS]", kept, "[SEP]"}


async def test_predict_raw_scores_are_logits(serve: Any, pretrained: Any, sentiment: Any) -> None:
    backend = ThreadBackend(BackendConfig(pretrained, sentiment, device="cpu", dtype="float32", threads=1))
    async with serve(backend) as service:
        raw, scores = [
            (await service.client.post("/predict", json={"inputs": "good", "raw_scores": wanted})).json()
            for wanted in (True, False)
        ]
    assert [row["label"] for row in raw] == [row["label"] for row in scores]
    odds = 2.718281828459045 ** (raw[0]["score"] - raw[1]["score"])
    assert odds / (1 + odds) == pytest.approx(scores[0]["score"], abs=1e-6)


async def test_predict_names_all_invalid_inputs(serve: Any) -> None:
    async with serve() as service:
        answer = await service.client.post("/predict", json={"inputs": [[""], ["good"], ["good", ""], ["a " * 100]]})
    faults = answer.json()["errors"]
    assert [fault["loc"] for fault in faults] == [["inputs", 0], ["inputs", 2, 1], ["inputs", 3]]
    assert faults[2]["message"].endswith("set truncate to true")


async def test_rerank_sorts_texts_by_the_sigmoid_of_the_only_logit(
    serve: Any, pretrained: Any, save_sentiment: Any
) -> None:
    directory = save_sentiment("ranker", id2label={0: "MATCH"}, problem_type="regression")
    backend = ThreadBackend(BackendConfig(pretrained, directory, device="cpu", dtype="float32", threads=1))
    asked = {"query": "good", "texts": ["a film", "bad", "good"]}
    async with serve(backend) as service:
        pairs = {"inputs": [[asked["query"], text] for text in asked["texts"]]}
        logits = [row[0]["score"] for row in (await service.client.post("/predict", json=pairs)).json()]
        order = sorted(range(3), key=lambda i: -logits[i])
        for more in ({}, {"raw_scores": True, "return_text": True, "truncate": True}):
            ranks = (await service.client.post("/rerank", json=asked | more)).json()
            assert [rank["index"] for rank in ranks] == order
            scores = [logits[i] if more else 1 / (1 + math.exp(-logits[i])) for i in order]
            assert [rank["score"] for rank in ranks] == pytest.approx(scores, abs=1e-6)
            assert [rank.get("text") for rank in ranks] == [asked["texts"][i] if more else None for i in order]
        assert await service.metric('bert_requests_total{status="200",task="rerank"}') == 2


async def test_rerank_refuses_several_labels_and_names_invalid_texts(serve: Any, backend: Any) -> None:
    async with serve(max_client_batch=2) as service:

        async def refusal(query: str, *texts: str) -> tuple[int, list[Any], str]:
            answer = await service.client.post("/rerank", json={"query": query, "texts": texts})
            return answer.status_code, [fault["loc"] for fault in answer.json()["errors"]], answer.json()["detail"]

        assert await refusal("a", "b") == (422, [[]], "body: the checkpoint must have one label for this, but has 2")
        served = backend.models["sentiment"]
        backend.models["sentiment"] = replace(served, config=served.config.replace(id2label={0: "MATCH"}))
        assert (await refusal("", "b"))[:2] == (422, [["query"]])
        assert (await refusal("a", "b", ""))[:2] == (422, [["texts", 1]])
        assert (await refusal("a", "b", "a " * 100))[:2] == (422, [["texts", 1]])
        assert (await refusal("a"))[:2] == (422, [["texts"]])
        assert (await refusal("a", "b", "c", "d"))[0] == 413


async def test_tokenize_has_the_places_of_tokens_in_characters(serve: Any) -> None:
    text = "Gööd [MASK] walls"
    async with serve() as service:
        (tokens,) = (await service.client.post("/tokenize", json={"inputs": text, "prompt_name": None})).json()
        bare = await service.client.post("/tokenize", json={"inputs": [text, "bad"], "add_special_tokens": False})
    first, *own, last = tokens
    assert [first["text"], last["text"]] == ["[CLS]", "[SEP]"]
    assert {(end["special"], end["start"], end["stop"]) for end in (first, last)} == {(True, None, None)}
    assert [token["text"] for token in own if not token["special"]] == [text[t["start"] : t["stop"]] for t in own]
    assert "".join(token["text"] for token in own) == text.replace(" ", "")
    assert bare.json()[0] == own
    assert [token["text"] for token in bare.json()[1]] == ["bad"]


async def test_tokenize_reads_whole_texts_and_computes_nothing(serve: Any, backend: Any) -> None:
    async with serve() as service:
        answer = await service.client.post("/tokenize", json={"inputs": "good " * 5000})
        assert await service.metric('bert_requests_total{status="200",task="tokenize"}') == 1
        assert service.lifecycle.engine.admission.reserved_tokens == 0
    assert len(answer.json()[0]) == 5002
    assert "tokenize;dur" in answer.headers["server-timing"]
    assert not backend.batches


async def test_tokenize_answer_is_bounded(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (handle, text_embeddings):
        monkeypatch.setattr(module, "MAX_RESPONSE_BYTES", 10_000)
    async with serve() as service:
        fitting, many, long = [
            await service.client.post("/tokenize", json={"inputs": texts})
            for texts in (["!" * 48, "!" * 48], ["!" * 48, "!" * 49], ["good " * 60, "good " * 61])
        ]
    assert [len(tokens) for tokens in fitting.json()] == [50, 50]
    assert [(many.status_code, many.json()["code"]), (long.status_code, long.json()["code"])] == [
        (413, "too_large")
    ] * 2
    assert many.json()["detail"] == "the answer would have 10100 bytes, more than 10000; send fewer or shorter texts"
    assert long.json()["detail"] == "the texts have 605 characters, a request may have 600; send fewer or shorter texts"


async def test_tokenize_reserves_nothing_in_the_queue(serve: Any) -> None:
    async with serve(max_queue_tokens=64) as service:
        held = threading.Event()
        busy = [service.app.service.threads.submit(held.wait, 30) for _ in range(2)]
        while not all(work.running() for work in busy):  # noqa: ASYNC110 (an event only for tests)
            await asyncio.sleep(0.002)
        asked = asyncio.create_task(service.client.post("/tokenize", json={"inputs": "good " * 2000}))
        while service.app.service.threads._work_queue.empty():  # noqa: ASYNC110 (an event only for tests)
            await asyncio.sleep(0.002)
        other = await service.client.post("/sentiment", json={"inputs": "good " * 50})
        held.set()
        assert all(work.result() for work in busy)
        assert (other.status_code, (await asked).status_code) == (200, 200)


async def test_tokenize_is_refused_while_the_queue_is_full(serve: Any, backend: Any) -> None:
    async with serve(max_queue_tokens=64) as service:
        asked = [await service.held("good " * 50)]
        asked.append(asyncio.create_task(service.client.post("/sentiment", json={"inputs": "good " * 50})))
        await service.queued(2)
        refused = await service.client.post("/tokenize", json={"inputs": "good " * 50})
        backend.gate.set()
        await asyncio.gather(*asked)
    assert (refused.status_code, refused.json()["code"]) == (429, "queue_full")
