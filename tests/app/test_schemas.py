"""Strict bodies, and examples that are true."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import BaseModel

from app import schemas
from app.errors import InvalidRequestError, NotJSONError, TooLargeError
from app.json_route import parse

REQUESTS = [
    schemas.FillMaskRequest,
    schemas.NextSentenceRequest,
    schemas.SentimentRequest,
    schemas.HuggingFaceFillMaskRequest,
    schemas.HuggingFaceClassificationRequest,
]


@pytest.mark.parametrize("schema", REQUESTS)
def test_examples_fit_their_schema(schema: type[BaseModel]) -> None:
    examples = schema.model_json_schema()["examples"]
    assert examples
    for example in examples:
        parse(schema, json.dumps(example).encode())


@pytest.mark.parametrize(
    ("body", "loc"),
    [
        ({}, ("inputs",)),
        ({"inputs": []}, ("inputs",)),
        ({"inputs": None}, ("inputs",)),
        ({"inputs": 5}, ("inputs",)),
        ({"inputs": {"text": "a"}}, ("inputs",)),
        ({"inputs": ["a", 5]}, ("inputs", 1)),
        ({"inputs": "a", "extra": 1}, ("extra",)),
        ({"inputs": "a", "one": 1}, ("one",)),
        ({"inputs": "a", "parameters": None}, ("parameters",)),
        ({"inputs": "a", "parameters": {"topk": 5}}, ("parameters", "topk")),
        ({"inputs": "a", "parameters": {"top_k": True}}, ("parameters", "top_k")),
        ({"inputs": "a", "parameters": {"top_k": "5"}}, ("parameters", "top_k")),
        ({"inputs": "a", "parameters": {"top_k": 5.0}}, ("parameters", "top_k")),
        ({"inputs": "a", "parameters": {"top_k": 0}}, ("parameters", "top_k")),
        ({"inputs": "a", "parameters": {"top_k": 101}}, ("parameters", "top_k")),
        ({"inputs": "a", "parameters": {"top_k": 10**300}}, ("parameters", "top_k")),
        ({"inputs": "a", "parameters": {"truncate": 1}}, ("parameters", "truncate")),
        ({"inputs": "a", "parameters": {"truncate": "true"}}, ("parameters", "truncate")),
        ({"inputs": "a", "parameters": {"targets": "good"}}, ("parameters", "targets")),
        ({"inputs": "a", "parameters": {"targets": []}}, ("parameters", "targets")),
        ({"inputs": "a", "parameters": {"targets": [""]}}, ("parameters", "targets", 0)),
    ],
)
def test_what_does_not_fit_is_located(body: dict[str, Any], loc: tuple[str | int, ...]) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        parse(schemas.FillMaskRequest, json.dumps(body).encode())
    assert raised.value.errors[0].loc == loc


@pytest.mark.parametrize(
    ("body", "loc"),
    [
        ({"inputs": "a"}, ("inputs",)),
        ({"inputs": {"text": "a"}}, ("inputs", "text_pair")),
        ({"inputs": {"text": "a", "text_pair": 1}}, ("inputs", "text_pair")),
        ({"inputs": [{"text": "a", "text_pair": "b", "c": "d"}]}, ("inputs", 0, "c")),
    ],
)
def test_pairs_are_strict_too(body: dict[str, Any], loc: tuple[str | int, ...]) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        parse(schemas.NextSentenceRequest, json.dumps(body).encode())
    assert raised.value.errors[0].loc == loc


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"inputs=a",
        b"\xff\xfe",
        b'{"inputs":"\xff"}',
        b'{"inputs":"\\ud800"}',
        b"[" * 100_000,
        b'{"inputs":' + b'{"a":' * 5000 + b"1" + b"}" * 5001,
        b'{"inputs":"a","parameters":{"top_k":' + b"9" * 5000 + b"}}",
    ],
)
def test_what_is_no_json_is_called_so(body: bytes) -> None:
    with pytest.raises(NotJSONError):
        parse(schemas.FillMaskRequest, body)


@pytest.mark.parametrize("literal", [b"NaN", b"Infinity", b"-Infinity", b"1e999"])
def test_numbers_that_are_none_do_not_pass(literal: bytes) -> None:
    with pytest.raises((NotJSONError, InvalidRequestError)):
        parse(schemas.FillMaskRequest, b'{"inputs":"a","parameters":{"top_k":' + literal + b"}}")


def test_faults_do_not_repeat_the_callers_text() -> None:
    with pytest.raises(InvalidRequestError) as raised:
        parse(schemas.NextSentenceRequest, b'{"inputs":"my secret"}')
    assert "secret" not in repr(raised.value.errors) + str(raised.value)


def test_of_many_faults_the_first_are_told() -> None:
    with pytest.raises(InvalidRequestError) as raised:
        parse(schemas.FillMaskRequest, json.dumps({"inputs": [1] * 500}).encode())
    assert len(raised.value.errors) == 20


def test_very_many_faults_are_counted_and_not_told_apart() -> None:
    with pytest.raises(InvalidRequestError) as raised:
        parse(schemas.FillMaskRequest, json.dumps({"inputs": [1] * 50_000}).encode())
    (error,) = raised.value.errors
    assert error.message.startswith("50000 faults; send one input alone")


def test_more_inputs_than_any_service_takes_are_not_gone_through() -> None:
    with pytest.raises(TooLargeError, match="more than 65536 inputs"):
        parse(schemas.FillMaskRequest, json.dumps({"inputs": [1] * 65_537}).encode())


def test_texts_and_pairs_may_mix() -> None:
    body = parse(schemas.SentimentRequest, b'{"inputs":["a",{"text":"b","text_pair":"c"}]}')
    assert isinstance(body, schemas.SentimentRequest)
    assert schemas.as_list(body.inputs) == ["a", schemas.TextPair(text="b", text_pair="c")]
