"""Open Inference Protocol v2: with Triton's client on a port, and on the wire."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import httpx
import numpy as np
import pytest
from tritonclient import http as triton
from tritonclient.utils import InferenceServerException

from app.tasks import TASKS
from tests.app.backends import PATIENCE

MODELS = ["fill-mask", "next-sentence", "sentiment"]
HEADER = "Inference-Header-Content-Length"


@pytest.fixture
def client(url: str) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(url.removeprefix("http://"), network_timeout=PATIENCE) as client:
        yield client


def texts(name: str, *values: str, binary: bool = True, shape: tuple[int, ...] = (-1,)) -> triton.InferInput:
    array = np.array([value.encode() for value in values], dtype=np.object_).reshape(shape)
    made = triton.InferInput(name, list(array.shape), "BYTES")
    made.set_data_from_numpy(array, binary_data=binary)
    return made


def test_triton_client_reads_health_and_metadata(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert [client.is_model_ready(model) for model in [*MODELS, "other"]] == [True, True, True, False]
    assert client.get_server_metadata()["extensions"] == ["binary_tensor_data"]
    told = [client.get_model_metadata(model) for model in MODELS]
    assert [[tensor["name"] for tensor in model["outputs"]] for model in told] == [
        ["token_str", "score"],
        ["label", "score"],
        ["label", "score"],
    ]
    with pytest.raises(InferenceServerException, match="the models are fill-mask, next-sentence, sentiment"):
        client.get_model_metadata("other")


async def test_infer_takes_the_body_of_kserves_client(serve: Any) -> None:
    """`kserve.InferRequest.to_rest` (0.21) repeats the model's name in the body."""
    tensor = {"name": "text", "shape": [1], "datatype": "BYTES", "data": ["good"]}
    async with serve() as service:
        body = {"id": "1", "model_name": "sentiment", "inputs": [tensor]}
        answer = await service.client.post("/v2/models/sentiment/infer", json=body)
    assert (answer.status_code, answer.json()["model_name"]) == (200, "sentiment")


@pytest.mark.parametrize("answered_in_binary", [True, False])
@pytest.mark.parametrize("sent_in_binary", [True, False])
def test_triton_client_infers(client: Any, sent_in_binary: bool, answered_in_binary: bool) -> None:
    def ask(model: str, *inputs: tuple[str, ...], **parameters: Any) -> tuple[Any, Any]:
        names = ["token_str" if model == "fill-mask" else "label", "score"]
        result = client.infer(
            model,
            [texts(*given, binary=sent_in_binary) for given in inputs],
            outputs=None if answered_in_binary else [triton.InferRequestedOutput(n, binary_data=False) for n in names],
            request_id="42",
            parameters=parameters,
        )
        assert (result.get_response()["id"], result.get_response()["model_name"]) == ("42", model)
        return [
            [word.decode() if isinstance(word, bytes) else word for word in row] for row in result.as_numpy(names[0])
        ], (result.as_numpy("score").tolist())

    both = ["POSITIVE", "NEGATIVE"]
    assert ask("sentiment", ("text", "good", "bäd")) == ([both, both], [[0.75, 0.25]] * 2)
    assert ask("sentiment", ("text", "good"), ("text_pair", "bad"), top_k=1) == ([["POSITIVE"]], [[0.75]])
    pair = ("text", "good"), ("text_pair", "bad " * 99)
    assert ask("next-sentence", *pair, truncate=True) == ([["NOT_NEXT", "IS_NEXT"]], [[0.75, 0.25]])
    words, scores = ask("fill-mask", ("text", "the [MASK]", "[MASK] a"), top_k=2)
    assert [len(row) for row in words] == [2, 2]
    assert scores == [[0.5, pytest.approx(1 / 3)]] * 2


@pytest.mark.parametrize("shape", [(2, 1), (1, 2), (2, 1, 1)])
@pytest.mark.parametrize("binary", [True, False])
def test_triton_client_sends_texts_in_several_dimensions(client: Any, shape: tuple[int, ...], binary: bool) -> None:
    inputs = [texts(name, "good", "bad", binary=binary, shape=shape) for name in ("text", "text_pair")]
    result = client.infer("sentiment", inputs)
    assert result.as_numpy("score").tolist() == [[0.75, 0.25]] * 2


def test_triton_client_sends_parameters_without_effect(client: Any) -> None:
    sequences: list[dict[str, Any]] = [
        {"sequence_id": 7, "sequence_start": True, "sequence_end": False},
        {"sequence_id": "talk", "sequence_end": True},
        {},
    ]
    for sequence in sequences:
        result = client.infer("sentiment", [texts("text", "good")], priority=3, timeout=0, **sequence)
        assert result.as_numpy("score").tolist() == [[0.75, 0.25]]


async def test_infer_takes_the_body_of_mlservers_client(serve: Any) -> None:
    """`mlserver.codecs.StringCodec` sets the content type and a shape of two dimensions."""
    content_type = {"content_type": "str"}
    body = tensor(data=["good", "bad"], shape=[2, 1], parameters=content_type) | {"parameters": content_type}
    answer = await post(serve, body)
    assert (answer.status_code, answer.json()["outputs"][1]["shape"]) == (200, [2, 2])


def test_triton_client_timeout_is_a_deadline_in_microseconds(client: Any, backend: Any) -> None:
    """The service's own deadline is 30 seconds, after which this client gives up."""
    backend.gate.clear()
    try:
        with pytest.raises(InferenceServerException, match="deadline") as late:
            client.infer("sentiment", [texts("text", "good")], timeout=50_000)
    finally:
        backend.gate.set()
    assert late.value.status() == "504"


async def test_infer_timeout_can_only_shorten_the_deadline(serve: Any) -> None:
    """Of 20 and 100 seconds, and of none: the service's deadline is 30 seconds."""
    async with serve() as service:
        engine = service.lifecycle.engine
        with patch.object(engine, "compute", wraps=engine.compute) as compute:
            for timeout in (20_000_000, 100_000_000, 10**310, 0, None):
                body = tensor(data=["good"]) | {"parameters": {"timeout": timeout}}
                answer = await service.client.post("/v2/models/sentiment/infer", json=body)
                assert answer.status_code == 200
    used = [call.args[2].from_client for call in compute.call_args_list]
    assert used == [True, False, False, False, False]


@pytest.mark.parametrize(
    ("model", "inputs", "more", "message"),
    [
        ("fill-mask", [("text", "a [MASK]", "[MASK] [MASK]")], {}, "text 1 has 2 masks, this model takes one"),
        ("fill-mask", [("text", "a")], {}, "the text holds no"),
        ("fill-mask", [("text", "[MASK]"), ("text_pair", "a")], {}, "inputs.1.name: the inputs of this model are text"),
        ("next-sentence", [("text", "a")], {}, "the input text_pair is missing"),
        ("next-sentence", [("text", "a"), ("text_pair", "b", "c")], {}, "different shapes"),
        ("sentiment", [("text", "a"), ("text", "b")], {}, "each once"),
        ("sentiment", [("text", "a")], {"parameters": {"topk": 1}}, "did you mean top_k"),
        ("sentiment", [("text", "a")], {"parameters": {"top_k": 0}}, "greater than or equal to 1"),
        ("sentiment", [("text", "a")], {"parameters": {"x": 5}}, "known are truncate, top_k, binary_data_output"),
        ("sentiment", [("text", "a")], {"timeout": -1}, "greater than or equal to 0"),
        ("sentiment", [("text", "a")], {"outputs": [triton.InferRequestedOutput("words")]}, "are label, score"),
        (
            "sentiment",
            [("text", "a")],
            {"outputs": [triton.InferRequestedOutput("label", class_count=2)]},
            "binary_data",
        ),
        ("sentiment", [("text", "a " * 99)], {}, "the model takes at most 64"),
        ("other", [("text", "a")], {}, "no such path"),
    ],
)
def test_triton_client_reads_errors(client: Any, model: str, inputs: Any, more: Any, message: str) -> None:
    with pytest.raises(InferenceServerException, match=message.replace("[", r"\[")):
        client.infer(model, [texts(*given) for given in inputs], **more)


async def post(serve: Any, head: Any, tail: bytes = b"", **headers: str) -> httpx.Response:
    body = json.dumps(head).encode()
    headers = {HEADER: str(len(body))} | headers
    async with serve(max_client_batch=3, cors_origins="https://example.org") as service:
        answer: httpx.Response = await service.client.post(
            "/v2/models/sentiment/infer", content=body + tail, headers=headers
        )
    return answer


def tensor(size: int | None = None, count: int = 1, **more: Any) -> dict[str, Any]:
    parameters = {} if size is None else {"parameters": {"binary_data_size": size}}
    return {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [count]} | parameters | more]}


GOOD = b"\4\0\0\0good"


@pytest.mark.parametrize(
    ("head", "tail", "message"),
    [
        (tensor(9), GOOD, "9 bytes are announced, 8 follow the JSON"),
        (tensor(8), GOOD + b"x", "1 bytes after the JSON belong to no input"),
        (tensor(8, 2), GOOD, "is [2]: give the number of texts"),
        (tensor(8, 0), GOOD, "is [0]: give the number of texts in the data, at least 1"),
        (tensor(16), GOOD * 2, "is [1]: give the number of texts"),
        (tensor(7), GOOD[:7], "text 0 is cut off"),
        (tensor(3), GOOD[:3], "text 0 is cut off"),
        (tensor(8), b"\xff\xff\xff\xffgood", "text 0 is cut off"),
        (tensor(8), b"\4\0\0\0goo\xff", "text 0 is not UTF-8"),
        (tensor(-1), b"", "greater than or equal to 0"),
        (tensor(), b"", "needs either data or the parameter binary_data_size"),
        (tensor(8, data=["good"]), GOOD, "needs either data or the parameter binary_data_size"),
        (tensor(data=["good"], datatype="FP32"), b"", "inputs.0.datatype"),
        (tensor(data=["good"], shape=[]), b"", "inputs.0.shape"),
        (tensor(data=["good"] * 4, shape=[2, 2]), b"", "is [2, 2]: give the number of texts as [n] or [n, 1]"),
        (tensor(data=["good"], shape=[1] * 9), b"", "inputs.0.shape"),
        (tensor(data=["good"], parameters={"content_type": "base64"}), b"", "inputs.0.parameters.content_type"),
        (tensor(data=[5]), b"", "inputs.0.data.0"),
        (tensor(data=["a", ""], count=2), b"", "the text is empty"),
    ],
)
async def test_infer_refuses_tensors_of_wrong_sizes(serve: Any, head: Any, tail: bytes, message: str) -> None:
    answer = await post(serve, head, tail)
    assert answer.status_code == 422
    assert message in answer.json()["error"]


@pytest.mark.parametrize("length", ["-1", "999", "x", "", "9" * 5000])
async def test_infer_refuses_a_wrong_length_of_the_json(serve: Any, length: str) -> None:
    answer = await post(serve, tensor(8), GOOD, **{HEADER: length})
    assert (answer.status_code, answer.json()["errors"][0]["loc"]) == (422, ["header", HEADER])


async def test_infer_reads_a_padded_length_of_the_json(serve: Any) -> None:
    head = tensor(8)
    answer = await post(serve, head, GOOD, **{HEADER: f"{len(json.dumps(head))} "})
    assert answer.status_code == 200


async def test_infer_bounds_the_inputs(serve: Any) -> None:
    answer = await post(serve, tensor(32, 4), GOOD * 4)
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")


async def test_infer_locates_the_texts_without_an_answer(serve: Any) -> None:
    head = tensor(data=["a", "b", ""], count=3)
    head["inputs"].append(tensor(data=["a", "", "a"], count=3, name="text_pair")["inputs"][0])
    answer = await post(serve, head)
    locs = [fault["loc"] for fault in answer.json()["errors"]]
    assert (answer.json()["code"], locs) == ("empty_text", [["inputs", 1, "data", 1], ["inputs", 0, "data", 2]])


async def test_infer_names_all_texts_with_several_masks(serve: Any) -> None:
    texts = ["[MASK] [MASK]", "a [MASK]", "[MASK] a [MASK]"]
    async with serve() as service:
        answer = await service.client.post("/v2/models/fill-mask/infer", json=tensor(data=texts, count=3))
    assert [fault["loc"] for fault in answer.json()["errors"]] == [["inputs", 0, "data", 0], ["inputs", 0, "data", 2]]


@pytest.mark.parametrize("media_type", [None, "", "application/octet-stream", "application/json", "text/plain"])
@pytest.mark.parametrize("origin", [None, "https://example.org", "https://evil.example", "null"])
async def test_infer_needs_a_media_type_from_other_origins(
    serve: Any, media_type: str | None, origin: str | None
) -> None:
    given = {"Content-Type": media_type, "Origin": origin}
    answer = await post(serve, tensor(8), GOOD, **{name: value for name, value in given.items() if value is not None})
    trusted = media_type == "application/json" or (
        media_type != "text/plain" and origin in (None, "https://example.org")
    )
    assert answer.status_code == (200 if trusted else 415)


async def test_infer_is_counted_as_its_task(serve: Any) -> None:
    async with serve() as service:
        for model in (task.name for task in TASKS):
            await service.client.post(f"/v2/models/{model}/infer", json={})
            assert await service.metric(f'bert_requests_total{{status="422",task="{model}"}}') == 1


async def test_model_that_is_not_loaded_is_not_ready(serve: Any, backend: Any) -> None:
    backend.may_load.clear()
    async with serve() as service:
        loading = [await service.client.get(path) for path in ("/v2/health/ready", "/v2/models/sentiment/ready")]
        assert [answer.status_code for answer in loading] == [503, 503]
        assert (await service.client.get("/v2/health/live")).json() == {"live": True}
        del backend.models["sentiment"]
        backend.may_load.set()
        await service.settled()
        missing = [await service.client.get(f"/v2/models/sentiment{path}") for path in ("", "/ready")]
    for answer in missing:
        assert (answer.status_code, answer.json()["code"]) == (404, "task_not_served")
