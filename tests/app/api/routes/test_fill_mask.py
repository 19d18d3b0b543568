"""`POST /fill-mask` as the contract says."""

from __future__ import annotations

from typing import Any


async def test_one_bare_input_gets_a_list_of_one_result(serve: Any) -> None:
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


async def test_every_mask_of_every_input_is_answered_in_order(serve: Any) -> None:
    inputs = ["[MASK] and [MASK]", "a [MASK]"]
    async with serve() as service:
        body = (await service.client.post("/fill-mask", json={"inputs": inputs, "parameters": {"top_k": 1}})).json()
    assert [[mask["position"] for mask in result["masks"]] for result in body["results"]] == [[1, 3], [2]]


async def test_targets_are_scored_alone(serve: Any) -> None:
    asked = {"inputs": "a [MASK] film", "parameters": {"targets": ["Good", "bad"]}}
    async with serve() as service:
        body = (await service.client.post("/fill-mask", json=asked)).json()
    predictions = body["results"][0]["masks"][0]["predictions"]
    assert {prediction["token_str"] for prediction in predictions} == {"good", "bad"}


async def test_unknown_target_is_named(serve: Any) -> None:
    asked = {"inputs": "a [MASK] film", "parameters": {"targets": ["good", "xyzzy"]}}
    async with serve() as service:
        answer = await service.client.post("/fill-mask", json=asked)
    assert (answer.status_code, answer.json()["code"]) == (422, "unknown_target")
    assert "xyzzy" in answer.json()["detail"]


async def test_text_without_mask_is_refused(serve: Any) -> None:
    async with serve() as service:
        answer = await service.client.post("/fill-mask", json={"inputs": ["[MASK]", "no mask"]})
    assert (answer.status_code, answer.json()["code"]) == (422, "no_mask")
    assert answer.json()["errors"][0]["loc"] == ["inputs", 1]


async def test_too_long_a_text_is_refused_with_both_lengths_unless_truncated(serve: Any) -> None:
    asked = {"inputs": "[MASK] " + "a " * 100}
    async with serve() as service:
        refused = await service.client.post("/fill-mask", json=asked)
        cut = await service.client.post("/fill-mask", json=asked | {"parameters": {"truncate": True}})
    assert (refused.status_code, refused.json()["code"]) == (422, "text_too_long")
    assert "103" in refused.json()["detail"]
    assert "64" in refused.json()["detail"]
    assert cut.json()["results"][0]["truncated"] is True
    assert cut.json()["results"][0]["tokens"] == 64


async def test_mask_lost_by_truncation_is_an_error(serve: Any) -> None:
    asked = {"inputs": "[MASK] " + "a " * 100 + "[MASK]", "parameters": {"truncate": True}}
    async with serve() as service:
        answer = await service.client.post("/fill-mask", json=asked)
    assert (answer.status_code, answer.json()["code"]) == (422, "no_mask")


async def test_any_script_survives_in_the_sequence(serve: Any) -> None:
    text = "Ünïcode 😀 \u0000 \u202e עברית [MASK] \U0010ffff"
    async with serve() as service:
        body = (await service.client.post("/fill-mask", json={"inputs": text})).json()
    prediction = body["results"][0]["masks"][0]["predictions"][0]
    assert prediction["sequence"] == text.replace("[MASK]", prediction["token_str"])
