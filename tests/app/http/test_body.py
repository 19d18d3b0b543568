"""Schemas of request bodies and their examples."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from app.errors import InvalidInputError, InvalidRequestError, NotJSONError, TooLargeError
from app.http import body as bodies
from app.http.protocols import hugging_face, open_inference, text_embeddings
from app.tasks.fill_mask import FillMaskRequest
from app.tasks.next_sentence import NextSentenceRequest
from app.tasks.sentiment import SentimentRequest


def parse(schema: type[BaseModel], body: bytes) -> BaseModel:
    return bodies.parse(schema, body, max_inputs=512)


def nulls(schema: type[BaseModel]) -> dict[str, Any]:
    """Null for each optional field."""
    return {name: None for name, field in schema.model_fields.items() if not field.is_required()}


def parameters_of(schema: type[BaseModel]) -> type[BaseModel]:
    """The model of the field `parameters`."""
    return next(kind for kind in get_args(schema.model_fields["parameters"].annotation) if kind is not type(None))


TENSOR = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["a"]}


@pytest.mark.parametrize(
    ("path", "schema", "body"),
    [
        ("/fill-mask", FillMaskRequest, {"inputs": "a [MASK]"}),
        ("/next-sentence", NextSentenceRequest, {"inputs": {"text": "a", "text_pair": "b"}}),
        ("/sentiment", SentimentRequest, {"inputs": "a"}),
        ("/hf/fill-mask", hugging_face.HuggingFaceFillMaskRequest, {"inputs": "a [MASK]"}),
        ("/hf/text-classification", hugging_face.HuggingFaceClassificationRequest, {"inputs": "a"}),
        ("/v2/models/sentiment/infer", open_inference.InferRequest, {"inputs": [TENSOR]}),
        ("/predict", text_embeddings.PredictRequest, {"inputs": "a"}),
        ("/tokenize", text_embeddings.TokenizeRequest, {"inputs": "a"}),
    ],
)
async def test_optional_field_may_be_null(serve: Any, path: str, schema: type[BaseModel], body: dict[str, Any]) -> None:
    bodies = [body, body | nulls(schema)]
    if "parameters" in schema.model_fields:
        bodies.append(body | {"parameters": nulls(parameters_of(schema))})
    if schema is open_inference.InferRequest:
        outputs = [{"name": name} | nulls(open_inference.RequestedOutput) for name in ("label", "score")]
        bodies.append({"inputs": [nulls(open_inference.InputTensor) | TENSOR], "outputs": outputs})
        bodies.append({"inputs": [TENSOR | {"parameters": nulls(open_inference.InputParameters)}]})
        outputs = [output | {"parameters": nulls(open_inference.OutputParameters)} for output in outputs]
        bodies.append({"inputs": [TENSOR], "outputs": outputs})
    async with serve() as service:
        first, *others = [await service.client.post(path, json=body) for body in bodies]
    assert first.status_code == 200
    assert [(answer.status_code, answer.json()) for answer in others] == [(200, first.json())] * len(others)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"inputs=a",
        b"\xff\xfe",
        b'{"inputs":"\xff"}',
        b"[" * 60_000,
        b'{"inputs":' + b'{"a":' * 5000 + b"1" + b"}" * 5001,
        b'{"inputs":"a","parameters":{"top_k":' + b"9" * 5000 + b"}}",
        b'{"inputs":"a","parameters":{"top_k":NaN}}',
        b'{"inputs":"a","parameters":{"top_k":-Infinity}}',
    ],
)
def test_parse_refuses_invalid_json(body: bytes) -> None:
    with pytest.raises(NotJSONError):
        parse(FillMaskRequest, body)


def test_parse_says_that_a_body_is_empty() -> None:
    with pytest.raises(NotJSONError, match="the body is empty; send JSON"):
        parse(FillMaskRequest, b"\n")


def test_parse_errors_do_not_repeat_the_callers_text() -> None:
    with pytest.raises(InvalidRequestError) as raised:
        parse(NextSentenceRequest, b'{"inputs":"my secret"}')
    assert "secret" not in repr(raised.value.errors) + str(raised.value)


@pytest.mark.parametrize(
    ("schema", "body", "locs"),
    [
        (FillMaskRequest, {}, [("inputs",)]),
        (FillMaskRequest, {"inputs": []}, [("inputs",)]),
        (FillMaskRequest, {"inputs": None}, [("inputs",)]),
        (FillMaskRequest, {"inputs": 5}, [("inputs",)]),
        (FillMaskRequest, {"inputs": {"text": "a"}}, [("inputs",)]),
        (FillMaskRequest, {"inputs": ["a", 5]}, [("inputs", 1)]),
        (FillMaskRequest, {"inputs": "a", "extra": 1}, [("extra",)]),
        (FillMaskRequest, {"inputs": "a", "one": 1}, [("one",)]),
        (FillMaskRequest, {"inputs": "a", "parameters": []}, [("parameters",)]),
        (FillMaskRequest, {"inputs": "a", "parameters": {"topk": 5}}, [("parameters", "topk")]),
        (FillMaskRequest, {"inputs": "a", "parameters": {"top_k": True}}, [("parameters", "top_k")]),
        (FillMaskRequest, {"inputs": "a", "parameters": {"top_k": "5"}}, [("parameters", "top_k")]),
        (FillMaskRequest, {"inputs": "a", "parameters": {"top_k": 5.0}}, [("parameters", "top_k")]),
        (FillMaskRequest, {"inputs": "a", "parameters": {"top_k": 0}}, [("parameters", "top_k")]),
        (FillMaskRequest, {"inputs": "a", "parameters": {"top_k": 101}}, [("parameters", "top_k")]),
        (FillMaskRequest, {"inputs": "a", "parameters": {"top_k": 10**300}}, [("parameters", "top_k")]),
        (FillMaskRequest, {"inputs": "a", "parameters": {"truncate": 1}}, [("parameters", "truncate")]),
        (FillMaskRequest, {"inputs": "a", "parameters": {"truncate": "true"}}, [("parameters", "truncate")]),
        (FillMaskRequest, {"inputs": "a", "parameters": {"targets": "good"}}, [("parameters", "targets")]),
        (FillMaskRequest, {"inputs": "a", "parameters": {"targets": []}}, [("parameters", "targets")]),
        (FillMaskRequest, {"inputs": "a", "parameters": {"targets": [""]}}, [("parameters", "targets", 0)]),
        (NextSentenceRequest, {"inputs": "a"}, [("inputs",)]),
        (NextSentenceRequest, {"inputs": {"text": "a"}}, [("inputs", "text_pair")]),
        (NextSentenceRequest, {"inputs": {"text": "a", "text_pair": 1}}, [("inputs", "text_pair")]),
        (NextSentenceRequest, {"inputs": [{"text": "a", "text_pair": "b", "c": "d"}]}, [("inputs", 0, "c")]),
        (NextSentenceRequest, {"inputs": {"text": "a", "text_pair": "b", "pair": "d"}}, [("inputs", "pair")]),
        (FillMaskRequest, {"inputs": [1, "a", 2, "b", 3]}, [("inputs", 0), ("inputs", 2), ("inputs", 4)]),
        (FillMaskRequest, {"inputs": ["a", *[1] * 500]}, [("inputs", i) for i in range(1, 101)]),
        (SentimentRequest, {"inputs": [1] * 500}, [("inputs", i) for i in range(100)]),
        (
            SentimentRequest,
            {"inputs": ["a", {"text": 1, "text_pair": 2}, {"text": "a"}, 5]},
            [("inputs", 1, "text"), ("inputs", 1, "text_pair"), ("inputs", 2, "text_pair"), ("inputs", 3)],
        ),
        (
            NextSentenceRequest,
            {"inputs": ["a", {"text": "a", "text_pair": "b", "c": "d"}]},
            [("inputs", 0), ("inputs", 1, "c")],
        ),
        (
            text_embeddings.PredictRequest,
            {"inputs": [["a"], [1], [], ["a"], 5]},
            [("inputs", i, *r) for i, *r in ((1, 0), (2,), (4,))],
        ),
        (
            open_inference.InferRequest,
            {"inputs": [TENSOR | {"shape": [3], "data": [1, "a", 2]}]},
            [("inputs", 0, "data", 0), ("inputs", 0, "data", 2)],
        ),
        (
            FillMaskRequest,
            {"inputs": [1, 2], "parameters": {"top_k": 0}},
            [("inputs", 0), ("inputs", 1), ("parameters", "top_k")],
        ),
        (FillMaskRequest, {"input": "a"}, [("input",), ("inputs",)]),
        (
            FillMaskRequest,
            {"inputs": "a", "parameters": {"targets": [1] * 9000}},
            [("parameters", "targets", 0)],
        ),
        (
            FillMaskRequest,
            {"inputs": "a"} | dict.fromkeys(map(str, range(3000))),
            [(str(i),) for i in range(100)],
        ),
    ],
)
def test_parse_names_up_to_a_hundred_faults(
    schema: type[BaseModel], body: Any, locs: list[tuple[str | int, ...]]
) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        parse(schema, json.dumps(body).encode())
    assert [error.loc for error in raised.value.errors] == locs


@pytest.mark.parametrize(
    ("inputs", "locs"),
    [
        (b'"\\ud83d"', [("inputs",)]),
        (b'["a", "\\ud83d", "b", "c\\uDe00"]', [("inputs", 1), ("inputs", 3)]),
        (b'[{"text": "a", "text_pair": "\\ud83d."}, {"text": "a", "text_pair": "b"}]', [("inputs", 0)]),
        (b'"a", "\\ud83d": 1', [()]),
        (b'["a", "\xed\xa0\xbd"]', [("inputs", 1)]),  # as Python encodes it if it is told to let it pass
        (b'["a"%s]' % (b', "\\ud83d"' * 500), [("inputs", i) for i in range(1, 101)]),
    ],
)
def test_parse_names_inputs_with_half_of_a_surrogate_pair(inputs: bytes, locs: list[tuple[str | int, ...]]) -> None:
    with pytest.raises(InvalidInputError, match="half of a surrogate pair") as raised:
        parse(SentimentRequest, b'{"inputs": %s}' % inputs)
    assert [loc for _, loc in raised.value.faults] == locs


@pytest.mark.parametrize(
    "values",
    [
        b"[]," * 40_000 + b"1",
        b"{}," * 40_000 + b"1",
        b"1," * 40_000 + b"1",
        b'"",' * 40_000 + b"1",
        b'"a,b\\"",' * 40_000 + b'"c"',
        b"[" * 40_000 + b"]" * 40_000,
        b'{"a":' * 40_000 + b"1" + b"}" * 40_000,
        b'"\\ud83d",' * 40_000 + b"1",
    ],
)
def test_parse_refuses_very_many_values_unparsed(values: bytes) -> None:
    for body in (b'{"inputs":"a","parameters":{"targets":[%s]}}', b'{"inputs":"\\ud83d","parameters":[%s]}'):
        with pytest.raises(TooLargeError, match="the JSON has more than 3048 values; send at most 512 inputs"):
            parse(FillMaskRequest, body % values)


@pytest.mark.parametrize("path", ["/tokenize", "/v2/models/sentiment/infer"])
async def test_every_protocol_refuses_very_many_values(serve: Any, path: str) -> None:
    body = b'{"inputs":[%s1]}' % (b"[]," * 40_000)
    async with serve() as service:
        answer = await service.client.post(path, content=body, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
    assert answer.json()["detail"].startswith("the JSON has more than 3048 values;")


@pytest.mark.parametrize(
    "text", [",[{" * 40_000, '",' * 40_000, '\\",' * 40_000, "\\," * 40_000, '"' * 40_000 + "," * 40_000, "\\" * 5]
)
def test_parse_counts_no_values_within_texts(text: str) -> None:
    for inputs in (text, [text, "a"], [f'a\\"{text[-100:]}'] * 512):
        body = parse(FillMaskRequest, json.dumps({"inputs": inputs}).encode())
        assert isinstance(body, FillMaskRequest)
        assert body.inputs == inputs


def test_parse_takes_as_many_pairs_as_a_request_may_carry() -> None:
    pairs = [{"text": "a," * 100, "text_pair": "b"}] * 512
    assert parse(SentimentRequest, json.dumps({"inputs": pairs}).encode())


@pytest.mark.parametrize(
    ("schema", "body", "message"),
    [
        (FillMaskRequest, [], 'Input should be an object, {"inputs": …}; the body is an array'),
        (FillMaskRequest, "a", 'Input should be an object, {"inputs": …}; the body is a string'),
        (FillMaskRequest, 5, 'Input should be an object, {"inputs": …}; the body is another value'),
        (
            FillMaskRequest,
            '{"inputs": "a"}',
            'Input should be an object, {"inputs": …}; the body is JSON in a string',
        ),
        (FillMaskRequest, {"inputs": ["a"], "parameters": 1}, "Input should be an object"),
        (FillMaskRequest, {"inputs": "a", "parameters": {"targets": "good"}}, "Input should be an array"),
        (FillMaskRequest, {"inputs": []}, "is empty: send at least one"),
        (FillMaskRequest, {"inputs": "a", "top_k": 1}, "belongs in parameters"),
        (NextSentenceRequest, {"inputs": "a"}, 'must be {"text": …, "text_pair": …}'),
        (SentimentRequest, {"inputs": ["a", 5]}, 'must be a text or {"text": …, "text_pair": …}'),
        (
            SentimentRequest,
            {"inputs": {"text": "a", "text_pair": "b", "textpair": "c"}},
            "unknown field; did you mean text_pair?",
        ),
        (open_inference.InferRequest, {"inputs": [TENSOR | {"datatype": "FP32"}]}, "Input should be 'BYTES'"),
        (
            open_inference.InferRequest,
            {"inputs": [TENSOR | {"shape": [1] * 9}]},
            "Input should have at most 8 items, not 9",
        ),
    ],
)
def test_parse_messages_use_json_types_and_say_what_to_send(schema: type[BaseModel], body: Any, message: str) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        parse(schema, json.dumps(body).encode())
    assert raised.value.errors[0].message == message
