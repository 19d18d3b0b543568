"""Python values to JSON and back, and how many inputs travel together."""

from __future__ import annotations

import json
from typing import Any, cast

import httpx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_client import InvalidInputError
from bert_client.http import calls
from bert_client.http.calls import Chunk, Chunker, RequestLimits
from bert_client.wire import Limits

LIMITS = Limits(
    max_batch_tokens=4096,
    max_queue_tokens=262_144,
    max_client_batch=512,
    max_body_bytes=2_097_152,
    request_timeout_ms=30_000,
)


def encoded(given: Any) -> bytes:
    found = calls.encode(given)
    assert isinstance(found, bytes)
    return found


def split(inputs: list[Any], sizes: RequestLimits) -> list[Chunk | None]:
    splitter = Chunker(b"{}")
    return [chunk for given in inputs for chunk in splitter.push(given, sizes)] + list(splitter.flush())


def test_call_body_has_inputs_and_parameters() -> None:
    call = calls.fill_mask(top_k=2, targets=("gut", "schön"), truncate=True)
    body = json.loads(call.body([encoded('a "[MASK]"\n'), encoded("é")]))
    assert body == {
        "inputs": ['a "[MASK]"\n', "é"],
        "parameters": {"top_k": 2, "targets": ["gut", "schön"], "truncate": True},
    }


def test_call_options_that_are_absent_are_not_sent() -> None:
    assert json.loads(calls.sentiment().body([b'"a"']))["parameters"] == {"truncate": False}


@pytest.mark.parametrize("pair", [("a", "b"), ["a", "b"], np.array(["a", "b"])])
def test_encode_pair_is_two_strings(pair: Any) -> None:
    assert json.loads(encoded(pair)) == {"text": "a", "text_pair": "b"}


def test_encode_strings_of_numpy_are_strings() -> None:
    assert encoded(np.array(["é"])[0]) == '"é"'.encode()


@pytest.mark.parametrize(
    ("wrong", "found"),
    [
        (None, "NoneType"),
        (float("nan"), "float"),
        (np.float64("nan"), "float"),
        (5, "int"),
        (b"good", "bytes"),
        ({"text": "a"}, "dict"),
        ({"a", "b"}, "set"),
        (("a",), "a tuple of str"),
        ([], "a list of nothing"),
        (["a", "b", "c"], "a list of str, str, str"),
        (("a", None), "a tuple of str, NoneType"),
    ],
)
def test_encode_other_inputs_are_errors(wrong: Any, found: str) -> None:
    error = calls.encode(wrong)
    assert isinstance(error, InvalidInputError)
    assert error.detail.startswith("an input is a string or a pair of two strings, not ")
    assert found in error.detail


@pytest.mark.parametrize(
    ("inputs", "one"),
    [
        ("good", True),
        (("a", "b"), True),
        (("a", None), True),
        (None, True),
        (b"good", True),
        (["a", "b"], False),
        (("a", "b", "c"), False),
        ((("a", "b"), ("c", "d")), False),
        ((["a", "b"], ["c", "d"]), False),
        ((text for text in "ab"), False),
        (np.array(["a", "b"]), False),
    ],
)
def test_is_one_input_tells_an_input_from_several(inputs: Any, one: bool) -> None:
    assert calls.is_one_input(inputs, takes_pairs=True) is one


@given(
    st.lists(st.text("aé", max_size=60) | st.just(calls.FLUSH), max_size=60),
    st.builds(RequestLimits, st.integers(1, 9), st.integers(3, 99), st.integers(1, 40)),
)
def test_chunker_keeps_order_and_limits(inputs: list[Any], sizes: RequestLimits) -> None:
    found = split(inputs, sizes)
    assert (found[-1], found.count(None)) == (None, inputs.count(calls.FLUSH) + 1)
    chunks = [chunk for chunk in found if chunk]
    assert [one for chunk in chunks for one in chunk.inputs] == [encoded(one) for one in inputs if one != calls.FLUSH]
    assert [chunk.first for chunk in chunks] == [
        sum(len(before.inputs) for before in chunks[:i]) for i in range(len(chunks))
    ]
    for chunk in chunks:
        assert 1 <= len(chunk.inputs) <= sizes.inputs
        if len(chunk.inputs) > 1:
            sent = cast("list[bytes]", chunk.inputs)
            assert sum(len(one) + 1 for one in sent) + len(b"{}") <= sizes.body_bytes
            assert sum(len(one) // 4 + 3 for one in sent) <= sizes.tokens


def test_chunker_full_chunk_is_within_the_limit_of_bytes() -> None:
    sizes = RequestLimits.of(Limits(10**9, 10**9, 10**9, max_body_bytes=1000, request_timeout_ms=1))
    call = calls.fill_mask(targets=["good"] * 50)
    splitter = Chunker(call.parameters)
    chunks = [chunk for n in range(300) for chunk in splitter.push(f"text {n}", sizes) if chunk]
    assert 900 < max(len(call.body(cast("list[bytes]", chunk.inputs))) for chunk in chunks) <= 1000


def test_request_limits_one_request_never_overflows_an_empty_queue() -> None:
    assert RequestLimits.of(LIMITS).tokens == 8192
    small = Limits(4096, 100, 512, 1000, 1000)
    chunks = split(["x" * 100] * 3, RequestLimits.of(small))  # every byte may be a token
    assert [len(chunk.inputs) for chunk in chunks if chunk] == [1, 1, 1]


@pytest.mark.parametrize(
    "content",
    [
        {"content": b"<html>"},
        {"json": []},
        {"json": {"model": "m", "results": [{"label": "POSITIVE"}]}},
        {"json": {"model": "m", "results": []}},
        {"json": {"results": [{"predictions": [], "tokens": 3, "truncated": False}]}},
    ],
)
def test_call_results_of_another_service_are_an_error(content: dict[str, Any]) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        calls.sentiment().results(httpx.Response(200, **content), 1)


def test_call_results_may_have_more_fields() -> None:
    result = {"predictions": [{"label": "A", "score": 1, "new": 0}], "tokens": 3, "truncated": False, "new": 0}
    response = httpx.Response(200, json={"model": "m", "results": [result], "new": 0})
    (read,) = calls.sentiment().results(response, 1)
    assert (read.predictions[0].label, read.tokens, read.model) == ("A", 3, "m")


def test_fill_mask_targets_are_no_string() -> None:
    with pytest.raises(TypeError, match="targets is 'good': give a list of words"):
        calls.fill_mask(targets="good")


@pytest.mark.parametrize("request_id", ["", "é", "a\nb", "a b", "x" * 129])
def test_call_request_id_that_the_service_would_replace_is_refused(request_id: str) -> None:
    with pytest.raises(ValueError, match=r"request_id is .*: give 1 to 128 ASCII letters"):
        calls.sentiment(request_id=request_id)


def test_call_half_a_character_is_sent() -> None:
    assert b"\xed\xa0\xbd" in calls.fill_mask(targets=["\ud83d"]).parameters
