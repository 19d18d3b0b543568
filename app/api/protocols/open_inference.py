"""Open Inference Protocol v2, which the clients of Triton and KServe speak, with Triton's binary tensors.

https://github.com/kserve/open-inference-protocol, and the binary tensor data extension in Triton's documentation.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import Field, StrictBool, StrictInt
from pydantic_core import to_json

from app.api import openapi
from app.api.routes import operations
from app.api.schemas import MAX_TOP_K, Parameters, Strict, with_examples
from app.api.task_route import TaskRequest, TaskRoute, check_inputs, parse
from app.errors import FieldError, InvalidInputError, InvalidRequestError, Loc, TaskNotServedError
from app.inference.types import Task
from app.scheduling.engine import DEFAULT_TOP_K, Reply
from app.scheduling.tokenization import TextPair
from bert_client.wire import LabelPrediction, TokenPrediction
from model.tokenizer_dir import MASK

TAG = {"name": "Open Inference Protocol", "description": "The same tasks in version 2 of the protocol."}

_MAX_TENSORS = 2
_HEADER_LENGTH = "Inference-Header-Content-Length"
_EXTENSION = "binary_tensor_data"


@dataclass(frozen=True, slots=True)
class Model:
    """The tensors of a model."""

    inputs: tuple[str, ...]
    optional: tuple[str, ...]
    output: str
    """The words or labels; the other output is `score`."""


MODELS = {
    Task.FILL_MASK: Model(("text",), (), "token_str"),
    Task.NEXT_SENTENCE: Model(("text", "text_pair"), (), "label"),
    Task.SENTIMENT: Model(("text", "text_pair"), ("text_pair",), "label"),
}


class InputParameters(Strict):
    """Parameters of an input tensor."""

    binary_data_size: StrictInt | None = Field(None, ge=0, description="Bytes of the tensor, after the JSON.")


class InputTensor(Strict):
    """Texts."""

    name: str
    datatype: str = Field(pattern="^BYTES$")
    shape: list[StrictInt] = Field(min_length=1, max_length=1, description="The number of texts.")
    data: list[str] | None = Field(None, fail_fast=True)
    parameters: InputParameters = InputParameters()


class OutputParameters(Strict):
    """Parameters of a requested output."""

    binary_data: StrictBool | None = Field(None, description="Send the tensor as bytes after the JSON.")


class RequestedOutput(Strict):
    """An output to answer with."""

    name: str
    parameters: OutputParameters = OutputParameters()


class InferParameters(Parameters):
    """Parameters of a request."""

    top_k: StrictInt | None = Field(None, ge=1, le=MAX_TOP_K, description="Words (default: 5) or labels (all).")
    binary_data_output: StrictBool = Field(False, description="Send all outputs as bytes after the JSON.")


class InferRequest(Strict):
    """Texts, or pairs of texts, as tensors."""

    model_config = with_examples(
        {"id": "1", "inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["It is a [MASK] day."]}]}
    )

    id: str | None = None
    inputs: list[InputTensor] = Field(min_length=1, max_length=_MAX_TENSORS)
    outputs: list[RequestedOutput] = Field([], max_length=_MAX_TENSORS, description="Default: all.")
    parameters: InferParameters = InferParameters()


def _invalid(message: str, *loc: str | int) -> InvalidRequestError:
    return InvalidRequestError([FieldError(message, loc)])


def _parse(body: bytes, request: TaskRequest) -> InferRequest:
    """The JSON at the head of a body, with the data of the binary tensors after it."""
    given = request.headers.get(_HEADER_LENGTH, str(len(body)))
    if not (given.isascii() and given.isdecimal() and len(given) < 20 and int(given) <= len(body)):
        raise _invalid(f"must be the bytes of the JSON, at most {len(body)}", "header", _HEADER_LENGTH)
    end = int(given)
    asked = parse(InferRequest, body[:end], _MAX_TENSORS)
    tensors = []
    for i, tensor in enumerate(asked.inputs):
        (count,), size = tensor.shape, tensor.parameters.binary_data_size
        check_inputs(count, request.settings.max_client_batch)
        if (size is None) is (tensor.data is None):
            raise _invalid("needs either data or the parameter binary_data_size", "inputs", i)
        start, end = end, end + (size or 0)
        if end > len(body):
            raise _invalid(
                f"{size} bytes are announced, {len(body) - start} follow the JSON; see the header {_HEADER_LENGTH}",
                *("inputs", i, "parameters", "binary_data_size"),
            )
        texts = _texts(body[start:end], count, ("inputs", i)) if tensor.data is None else tensor.data
        if len(texts) != count or not count:
            raise _invalid(f"does not fit the data: [{count}], and {len(texts)} texts or more", "inputs", i, "shape")
        tensors.append(tensor.model_copy(update={"data": texts}))
    if end < len(body):
        raise _invalid(f"{len(body) - end} bytes after the JSON belong to no input", "inputs")
    return asked.model_copy(update={"inputs": tensors})


def _texts(raw: bytes, count: int, loc: Loc) -> list[str]:
    """Elements of a BYTES tensor, at most one more than `count`: each after its length in four bytes."""
    texts: list[str] = []
    at = 0
    while at < len(raw) and len(texts) <= count:
        start = at + 4
        at = start + int.from_bytes(raw[at:start], "little")
        if start > len(raw) or at > len(raw):
            raise _invalid(f"text {len(texts)} is cut off; send its length in 4 bytes, little-endian, before it", *loc)
        try:
            texts.append(raw[start:at].decode())
        except UnicodeDecodeError:
            raise _invalid(f"text {len(texts)} is not UTF-8", *loc) from None
    return texts


def _columns(body: InferRequest, model: Model) -> dict[str, list[str]]:
    """The texts of each input."""
    columns: dict[str, list[str]] = {}
    for i, tensor in enumerate(body.inputs):
        if tensor.name not in model.inputs or tensor.name in columns:
            raise _invalid(f"the inputs of this model are {', '.join(model.inputs)}, each once", "inputs", i, "name")
        columns[tensor.name] = tensor.data or []
    for name in model.inputs:
        if name not in columns and name not in model.optional:
            raise _invalid(f"the input {name} is missing", "inputs")
    if len({len(column) for column in columns.values()}) > 1:
        raise _invalid("text and text_pair have different shapes", "inputs")
    return columns


Rows = Sequence[Sequence[LabelPrediction | TokenPrediction]]


async def _ask(task: Task, body: InferRequest, request: TaskRequest) -> tuple[Reply[Any], Rows]:
    """The predictions for each text."""
    columns = _columns(body, MODELS[task])
    texts, top_k, cut = columns["text"], body.parameters.top_k, body.parameters.truncate
    engine, deadline = request.engine, request.deadline
    if task is Task.FILL_MASK:
        for i, text in enumerate(texts):
            if (masks := text.count(MASK)) > 1:
                raise _invalid(f"text {i} has {masks} masks, this model takes one; see /fill-mask", "inputs", 0)
        filled = await engine.fill_mask(texts, deadline=deadline, top_k=top_k or DEFAULT_TOP_K, truncate=cut)
        return filled, [result.masks[0].predictions for result in filled.results]
    if "text_pair" not in columns:
        reply = await engine.sentiment(texts, deadline=deadline, truncate=cut)
    else:
        pairs = [TextPair(*pair) for pair in zip(texts, columns["text_pair"], strict=True)]
        ask = engine.sentiment if task is Task.SENTIMENT else engine.next_sentence
        reply = await ask(pairs, deadline=deadline, truncate=cut)
    return reply, [result.predictions[:top_k] for result in reply.results]


def _route(task: Task) -> TaskRoute:
    model = MODELS[task]

    async def infer(body: InferRequest, request: TaskRequest) -> tuple[Reply[Any], Response]:
        """Ask a model. Texts may also follow the JSON as binary tensors, if `Inference-Header-Content-Length` tells
        the bytes of the JSON; then a `Content-Type` is not needed."""
        outputs = {output.name: output.parameters.binary_data for output in body.outputs}
        known = (model.output, "score")
        for i, output in enumerate(body.outputs):
            if output.name not in known:
                raise _invalid(f"the outputs of this model are {', '.join(known)}", "outputs", i, "name")
        try:
            reply, rows = await _ask(task, body, request)
        except InvalidInputError as error:
            names = [tensor.name for tensor in body.inputs]
            half = str(error.loc[2]) if error.loc[2:] else "text"
            error.loc = ("inputs", names.index(half), "data", error.loc[1])
            raise
        is_binary = {name: outputs.get(name) for name in outputs or known}
        default = body.parameters.binary_data_output
        return reply, _response(task, body.id, rows, {n: default if b is None else b for n, b in is_binary.items()})

    return TaskRoute(
        f"/v2/models/{task}/infer",
        infer,
        task=task,
        summary=f"Infer: {task}",
        response=dict[str, Any],
        example={
            "model_name": task,
            "id": "1",
            "outputs": [
                {"name": model.output, "datatype": "BYTES", "shape": [1, 1], "data": ["good"]},
                {"name": "score", "datatype": "FP32", "shape": [1, 1], "data": [0.21]},
            ],
        },
        tag=TAG["name"],
        parser=_parse,
        binary=True,
    )


def _response(task: Task, request_id: str | None, rows: Rows, is_binary: dict[str, bool]) -> Response:
    """The outputs in the order of `is_binary`, as JSON or as bytes after it."""
    outputs, tail = [], b""
    for name, binary in is_binary.items():
        values = [getattr(prediction, name) for prediction in chain.from_iterable(rows)]
        datatype = "FP32" if name == "score" else "BYTES"
        output: dict[str, Any] = {"name": name, "datatype": datatype, "shape": [len(rows), len(rows[0])]}
        if binary:
            raw = _raw(values)
            tail += raw
            outputs.append(output | {"parameters": {"binary_data_size": len(raw)}})
        else:
            outputs.append(output | {"data": values})
    answer = {"model_name": task} | ({} if request_id is None else {"id": request_id}) | {"outputs": outputs}
    head = to_json(answer)
    if not any(is_binary.values()):
        return Response(head, media_type="application/json")
    return Response(head + tail, headers={_HEADER_LENGTH: str(len(head))}, media_type="application/octet-stream")


def _raw(values: list[Any]) -> bytes:
    """A tensor as bytes, little-endian."""
    if isinstance(values[0], float):
        return struct.pack(f"<{len(values)}f", *values)
    return b"".join(len(raw).to_bytes(4, "little") + raw for raw in (value.encode() for value in values))


# Metadata and health --------------------------------------------------------------------------------------------

_router = APIRouter(tags=[TAG["name"]])


@_router.get("/v2", operation_id="v2", summary="Server metadata", responses=openapi.answer({"name": "bert-service"}))
async def server(request: Request) -> dict[str, Any]:
    """Name, version and extensions of the service."""
    return {"name": "bert-service", "version": request.app.version, "extensions": [_EXTENSION]}


@_router.get(
    "/v2/health/live",
    operation_id="v2_live",
    summary="Liveness",
    responses=openapi.answer({"live": True}) | openapi.problems(503),
)
async def live(request: Request) -> dict[str, bool]:
    """See `/health/live`."""
    await operations.live(request)
    return {"live": True}


@_router.get(
    "/v2/health/ready",
    operation_id="v2_ready",
    summary="Readiness",
    responses=openapi.answer({"ready": True}) | openapi.problems(503),
)
async def ready(request: Request) -> dict[str, bool]:
    """See `/health/ready`."""
    await operations.ready(request)
    return {"ready": True}


@_router.get(
    "/v2/models/{model}",
    operation_id="v2_model",
    summary="Model metadata",
    responses=openapi.answer({"name": "sentiment"}) | openapi.problems(404),
)
async def metadata(model: str) -> dict[str, Any]:
    """The tensors of a model. `text_pair` is optional for `sentiment`."""
    named = _model(model)
    shape = {"datatype": "BYTES", "shape": [-1, -1]}
    outputs = [{"name": named.output} | shape, {"name": "score", "datatype": "FP32", "shape": [-1, -1]}]
    inputs = [{"name": name, "datatype": "BYTES", "shape": [-1]} for name in named.inputs]
    return {"name": model, "platform": "pytorch", "inputs": inputs, "outputs": outputs}


@_router.get(
    "/v2/models/{model}/ready",
    operation_id="v2_model_ready",
    summary="Readiness of a model",
    responses=openapi.answer({"name": "sentiment", "ready": True}) | openapi.problems(404, 503),
)
async def model_ready(model: str, request: Request) -> dict[str, Any]:
    """Whether a model can answer."""
    _model(model)
    await operations.ready(request)
    with request.app.state.engine.lifecycle.encoder_for(Task(model)):
        return {"name": model, "ready": True}


def _model(name: str) -> Model:
    if name not in MODELS:
        raise TaskNotServedError(f"the models are {', '.join(MODELS)}")
    return MODELS[Task(name)]


ROUTES = [*map(_route, MODELS), *_router.routes]
