"""`POST /hf/*`: the shapes. tests/app/server calls them with the real client."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pydantic import TypeAdapter

from app.http.protocols.hugging_face import (
    HuggingFaceClassificationRequest,
    HuggingFaceFillMaskRequest,
    HuggingFaceTokens,
)


async def post(serve: Any, path: str, body: Any) -> Any:
    async with serve() as service:
        answer = await service.client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_hf_fill_mask_of_one_mask_is_a_bare_list(serve: Any) -> None:
    body = await post(serve, "/hf/fill-mask", {"inputs": "a [MASK]", "parameters": {"top_k": 2}})
    assert [set(entry) for entry in body] == [{"score", "token", "token_str", "sequence"}] * 2


async def test_hf_fill_mask_nests_several_masks(serve: Any) -> None:
    body = await post(serve, "/hf/fill-mask", {"inputs": "[MASK] [MASK]"})
    assert [len(row) for row in body] == [5, 5]


async def test_hf_fill_mask_nests_several_texts(serve: Any) -> None:
    body = await post(serve, "/hf/fill-mask", {"inputs": ["a [MASK]"], "parameters": {"targets": ["good"]}})
    assert [[entry["token_str"] for entry in row] for row in body] == [["good"]]


async def test_hf_fill_mask_of_different_numbers_of_masks_fits_the_document(serve: Any) -> None:
    asked = {"inputs": ["a [MASK]", "b [MASK] [MASK]"], "parameters": {"targets": ["good"]}}
    body = await post(serve, "/hf/fill-mask", asked)
    one, (first, second) = body
    assert [entry["token_str"] for entry in (*one, *first, *second)] == ["good"] * 3
    assert TypeAdapter(HuggingFaceTokens).validate_python(body)


async def test_hf_classification_nests_a_single_text(serve: Any) -> None:
    body = await post(serve, "/hf/text-classification", {"inputs": "good"})
    assert body == [[{"label": "POSITIVE", "score": 0.75}, {"label": "NEGATIVE", "score": 0.25}]]


@pytest.mark.parametrize(
    "extra",
    [
        {"parameters": None},
        {"parameters": {}},
        {"parameters": {"top_k": None, "function_to_apply": None}},
        {"parameters": {"function_to_apply": "softmax"}},
        {"parameters": {"truncation": True}},
        {"options": {"wait_for_model": True}},
    ],
)
async def test_hf_classification_accepts_what_clients_add(serve: Any, extra: dict[str, Any]) -> None:
    assert len((await post(serve, "/hf/text-classification", {"inputs": "good"} | extra))[0]) == 2


@pytest.mark.parametrize("name", ["truncate", "truncation"])
@pytest.mark.parametrize("path", ["/hf/fill-mask", "/hf/text-classification"])
async def test_hf_truncates_unless_told_otherwise(serve: Any, backend: Any, path: str, name: str) -> None:
    """The fake models take 64 tokens."""
    text = "a [MASK]" + " film" * 99
    async with serve() as service:
        answers = [
            await service.client.post(path, json={"inputs": text} | parameters)
            for parameters in ({}, {"parameters": {"top_k": 1}}, {"parameters": {name: None}})
        ]
        refused = await service.client.post(path, json={"inputs": text, "parameters": {name: False}})
    assert [answer.status_code for answer in answers] == [200, 200, 200]
    assert [len(query.encoding) for (query,) in backend.batches] == [64, 64, 64]
    assert (refused.status_code, refused.json()["code"]) == (422, "text_too_long")


def test_hf_options_are_dropped() -> None:
    body = b'{"inputs": "good", "options": {"a": [{}, {}]}}'
    for schema in (HuggingFaceFillMaskRequest, HuggingFaceClassificationRequest):
        assert schema.model_validate_json(body).options is None


@pytest.mark.parametrize(
    ("problem_type", "computed"),
    [
        (None, "softmax"),
        ("single_label_classification", "softmax"),
        ("multi_label_classification", "sigmoid"),
        ("regression", "none"),
    ],
)
@pytest.mark.parametrize("asked", ["softmax", "sigmoid", "none"])
async def test_function_to_apply_is_refused_unless_the_checkpoint_computes_it(
    serve: Any, backend: Any, problem_type: str | None, computed: str, asked: str
) -> None:
    served = backend.models["sentiment"]
    backend.models["sentiment"] = replace(served, config=served.config.replace(problem_type=problem_type))
    async with serve() as service:
        answer = await service.client.post(
            "/hf/text-classification", json={"inputs": "good", "parameters": {"function_to_apply": asked}}
        )
    if asked in (computed, "none"):
        assert answer.status_code == 200
        return
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")
    assert answer.json()["errors"] == [
        {
            "message": f"the loaded checkpoint's scores are computed with '{computed}', not '{asked}'; leave this out",
            "loc": ["parameters", "function_to_apply"],
        }
    ]


async def test_hf_logits_are_asked_of_the_backend(serve: Any, backend: Any) -> None:
    await post(serve, "/hf/text-classification", {"inputs": "good", "parameters": {"function_to_apply": "none"}})
    assert [asked.query.logits for (asked,) in backend.batches] == [True]
