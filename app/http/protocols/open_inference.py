"""Open Inference Protocol v2, which the clients of Triton and KServe speak, with Triton's binary tensors.

https://github.com/kserve/open-inference-protocol, and the binary tensor data extension in Triton's documentation.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Literal, NotRequired

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import Field, StrictBool, StrictInt
from pydantic_core import from_json, to_json
from typing_extensions import TypeAliasType, TypedDict

from app.errors import MAX_FAULTS, Fault, InvalidRequestError, Loc, TaskNotServedError
from app.http import openapi, operations
from app.http.body import check_inputs, parse
from app.http.context import Service, service_of
from app.http.handle import Call, TaskRoute
from app.inference.contract import Head
from app.tasks.schemas import MAX_TOP_K, Input, Items, Parameters, Strict, TextPair, given
from app.tasks.task import Task
from model.tokenizer_dir import MASK

TAG = {"name": "Open Inference Protocol", "description": "The same tasks in version 2 of the protocol."}

_invalid = InvalidRequestError.at
_MAX_TENSORS = 2
_MAX_TIMEOUT = 10**12
"""Microseconds. A longer timeout has the same effect, and may be too large for a float."""
_HEADER_LENGTH = "Inference-Header-Content-Length"


_TENSORS = {"text": ("text",), "pair": ("text", "text_pair"), "either": ("text", "text_pair")}
"""Tensors of each model. `text_pair` is optional where a task takes either."""

_NO_EFFECT = Field(None, exclude=True, description="No effect.")


class InputParameters(Strict):
    """Parameters of an input tensor."""

    content_type: Literal["str"] | None = _NO_EFFECT
    binary_data_size: StrictInt | None = Field(None, ge=0, description="Bytes of the tensor, after the JSON.")


class InputTensor(Strict):
    """An input tensor: texts."""

    name: str
    datatype: Literal["BYTES"]
    shape: list[StrictInt] = Field(min_length=1, max_length=8, description="The number of texts; further sizes are 1.")
    data: Items[str] | None = None
    parameters: InputParameters | None = None


class OutputParameters(Strict):
    """Parameters of a requested output."""

    binary_data: StrictBool | None = Field(None, description="Send the tensor as bytes after the JSON.")


class RequestedOutput(Strict):
    """An output to return."""

    name: str
    parameters: OutputParameters | None = None


class InferParameters(Parameters):
    """Parameters of a request."""

    top_k: StrictInt | None = Field(
        None, ge=1, le=MAX_TOP_K, description="Words (default: 5) or labels (all), if the task has it."
    )
    binary_data_output: StrictBool | None = Field(
        None, exclude=True, description="Send all outputs as bytes after the JSON."
    )
    timeout: StrictInt | None = Field(
        None, ge=0, exclude=True, description="Deadline in microseconds from the complete request on; 0: the server's."
    )
    priority: StrictInt | None = _NO_EFFECT
    sequence_id: StrictInt | str | None = _NO_EFFECT
    sequence_start: StrictBool | None = _NO_EFFECT
    sequence_end: StrictBool | None = _NO_EFFECT
    content_type: Literal["str"] | None = _NO_EFFECT


class InferRequest(Strict):
    """Texts, or pairs of texts, as tensors."""

    id: str | None = None
    model_name: str | None = Field(None, description="Ignored: the path names the model. KServe's client sends it.")
    model_version: str | None = Field(None, description="Ignored: models have no versions.")
    inputs: list[InputTensor] = Field(min_length=1, max_length=_MAX_TENSORS)
    outputs: list[RequestedOutput] | None = Field(None, max_length=_MAX_TENSORS, description="Default: all.")
    parameters: InferParameters | None = None


TensorData = TypeAliasType("TensorData", list[str] | list[float])


class TensorMetadata(TypedDict):
    """An input or output tensor. A size of -1 may be any number."""

    name: str
    datatype: Literal["BYTES", "FP32"]
    shape: list[int]


class OutputTensor(TensorMetadata):
    """Labels or tokens (BYTES), or their scores (FP32)."""

    data: NotRequired[TensorData]
    parameters: NotRequired[dict[Literal["binary_data_size"], int]]


class InferResponse(TypedDict):
    """A row per text, a column per prediction."""

    model_name: str
    id: NotRequired[str]
    outputs: list[OutputTensor]


def _parse(body: bytes, headers: Mapping[bytes, str], max_inputs: int) -> InferRequest:
    """Parse the JSON at the beginning of a body, and the data of the binary tensors after it."""
    given = headers.get(_HEADER_LENGTH.lower().encode(), str(len(body))).strip()
    if not (given.isascii() and given.isdecimal() and len(given) < 20 and int(given) <= len(body)):
        raise _invalid(f"must be the length of the JSON in bytes, at most {len(body)}", "header", _HEADER_LENGTH)
    end = int(given)
    asked = parse(InferRequest, body[:end], max_inputs)
    tensors = []
    for i, tensor in enumerate(asked.inputs):
        count, size = _count(tensor.shape, i), tensor.parameters and tensor.parameters.binary_data_size
        check_inputs(count, max_inputs)
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
            raise _invalid(f"is {tensor.shape}: give the number of texts in the data, at least 1", "inputs", i, "shape")
        tensors.append(tensor.model_copy(update={"data": texts}))
    if end < len(body):
        raise _invalid(f"{len(body) - end} bytes after the JSON belong to no input", "inputs")
    return asked.model_copy(update={"inputs": tensors})


def _count(shape: list[int], index: int) -> int:
    """Texts in a tensor: the product of its sizes, of which only one may differ from 1."""
    sizes = [size for size in shape if size != 1] or [1]
    if len(sizes) > 1:
        raise _invalid(f"is {shape}: give the number of texts as [n] or [n, 1]", "inputs", index, "shape")
    return sizes[0]


def _texts(raw: bytes, count: int, loc: Loc) -> list[str]:
    """Elements of a BYTES tensor, at most one more than `count`. Each follows its length in four bytes."""
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


def _columns(body: InferRequest, task: Task) -> dict[str, list[str]]:
    """The texts of each input."""
    names, columns = _TENSORS[task.inputs], dict[str, list[str]]()
    for i, tensor in enumerate(body.inputs):
        if tensor.name not in names or tensor.name in columns:
            raise _invalid(f"the inputs of this model are {', '.join(names)}, each once", "inputs", i, "name")
        columns[tensor.name] = tensor.data or []
    if missing := set(names) - columns.keys() - ({"text_pair"} if task.inputs == "either" else set()):
        raise _invalid(f"the input {missing.pop()} is missing", "inputs")
    if len({len(column) for column in columns.values()}) > 1:
        raise _invalid("text and text_pair have different shapes", "inputs")
    return columns


def _inputs(body: InferRequest, task: Task) -> Sequence[Input]:
    """The texts or pairs of a request."""
    columns = _columns(body, task)
    texts = columns["text"]
    if "text_pair" in columns:
        return [TextPair(*pair) for pair in zip(texts, columns["text_pair"], strict=True)]
    if task.head is Head.WORDS:
        several = [
            Fault(f"text {i} has {count} masks, this model takes one; see /fill-mask", ("inputs", 0, "data", i))
            for i, text in enumerate(texts)
            if (count := text.count(MASK)) > 1
        ]
        if several:
            raise InvalidRequestError(several[:MAX_FAULTS])
    return texts


def _outputs(task: Task) -> list[str]:
    return ["token_str" if task.head is Head.WORDS else "label", "score"]


def _route(task: Task) -> TaskRoute:
    names, results = _outputs(task), task.operations[0].example["results"]

    def to_call(body: InferRequest) -> Call:
        """Ask a model. Binary tensors with texts may follow the JSON, if `Inference-Header-Content-Length` is the
        length of the JSON in bytes. No `Content-Type` is needed."""
        outputs, all_binary = body.outputs or [], bool(body.parameters and body.parameters.binary_data_output)
        is_binary = dict.fromkeys([output.name for output in outputs] or names, all_binary)
        for i, output in enumerate(outputs):
            if output.name not in names:
                raise _invalid(f"the outputs of this model are {', '.join(names)}", "outputs", i, "name")
            if output.parameters and output.parameters.binary_data is not None:
                is_binary[output.name] = output.parameters.binary_data
        tensors = [tensor.name for tensor in body.inputs]

        def locate(loc: Loc) -> Loc:
            return ("inputs", tensors.index(str((*loc, "text")[2])), "data", loc[1])

        microseconds = body.parameters and body.parameters.timeout
        return Call(
            _inputs(body, task),
            given(body.parameters, task.parameters),
            lambda result: _response(task, body.id, result.results, is_binary),
            locate,
            min(microseconds, _MAX_TIMEOUT) / 1e6 if microseconds else None,
        )

    route = TaskRoute(
        f"/v2/models/{task.name}/infer",
        task,
        to_call,
        request=InferRequest,
        response=InferResponse,
        example=from_json(bytes(_response(task, "1", results, dict.fromkeys(names, False)).body)),
        summary=f"Infer: {task.name}",
        tag=TAG["name"],
        parse_body=_parse,
    )
    example = {"id": "1", "inputs": [{**_tensor(name, 1), "data": ["A [MASK] day."]} for name in _TENSORS[task.inputs]]}
    content = {"content": {"application/json": {"example": example}}}
    route.openapi_extra = {**(route.openapi_extra or {}), "requestBody": content}
    return route


def _response(task: Task, request_id: str | None, results: list[Any], is_binary: dict[str, bool]) -> Response:
    """The outputs in the order of `is_binary`, as JSON or as bytes after it."""
    rows = [(found["masks"][0] if task.head is Head.WORDS else found)["predictions"] for found in results]
    outputs, tail = [], b""
    for name, binary in is_binary.items():
        values = [prediction[name] for prediction in chain.from_iterable(rows)]
        output: dict[str, Any] = {**_tensor(name, len(rows), len(rows[0]))}
        if binary:
            raw = _raw(values)
            tail += raw
            outputs.append(output | {"parameters": {"binary_data_size": len(raw)}})
        else:
            outputs.append(output | {"data": values})
    answer = {"model_name": task.name} | ({} if request_id is None else {"id": request_id}) | {"outputs": outputs}
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


class ServerMetadata(TypedDict):
    """Name, version and protocol extensions of the service."""

    name: str
    version: str
    extensions: list[str]


class ServerLive(TypedDict):
    """The service is alive; otherwise the response is a problem document."""

    live: bool


class ServerReady(TypedDict):
    """The service can answer; otherwise the response is a problem document."""

    ready: bool


class ModelMetadata(TypedDict):
    """The tensors of a model."""

    name: str
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class ModelReady(ServerReady):
    """A model can answer; otherwise the response is a problem document."""

    name: str


async def server(request: Request) -> ServerMetadata:
    """Name, version and extensions of the service."""
    return {"name": "bert-service", "version": request.app.version, "extensions": ["binary_tensor_data"]}


async def live(request: Request) -> ServerLive:
    """200, or 503 once inference processes have ended and cannot be replaced."""
    await operations.live(request)
    return {"live": True}


async def ready(request: Request) -> ServerReady:
    """200 while the service can answer; otherwise 503."""
    await operations.ready(request)
    return {"ready": True}


async def metadata(model: str, request: Request) -> ModelMetadata:
    """The tensors of a model. `text_pair` is optional for models that take either."""
    service = service_of(request)
    task = _task(model, service)
    if service.lifecycle.has_loaded:
        service.lifecycle.engine.model_with(task.head, task.name)
    return _metadata(task)


def _metadata(task: Task) -> ModelMetadata:
    inputs = [_tensor(name, -1) for name in _TENSORS[task.inputs]]
    outputs = [_tensor(name, -1, -1) for name in _outputs(task)]
    return {"name": task.name, "platform": "pytorch", "inputs": inputs, "outputs": outputs}


def _tensor(name: str, *shape: int) -> TensorMetadata:
    return {"name": name, "datatype": "FP32" if name == "score" else "BYTES", "shape": list(shape)}


async def model_ready(model: str, request: Request) -> ModelReady:
    """Whether a model can answer."""
    service = service_of(request)
    task = _task(model, service)
    await operations.ready(request)
    service.lifecycle.engine.model_with(task.head, task.name)
    return {"name": model, "ready": True}


def _task(model: str, service: Service) -> Task:
    for task in service.tasks:
        if task.name == model:
            return task
    raise TaskNotServedError(f"the models are {', '.join(task.name for task in service.tasks)}")


def _get(path: str, endpoint: Any, summary: str, example: Any, *errors: int) -> APIRoute:
    return APIRoute(
        path,
        endpoint,
        operation_id=f"v2_{endpoint.__name__}",
        summary=summary,
        tags=[TAG["name"]],
        responses=openapi.ok_response(example) | openapi.refusals(*errors),
    )


_SERVER = {"name": "bert-service", "version": "0.4.0", "extensions": ["binary_tensor_data"]}


def routes(tasks: Sequence[Task]) -> list[APIRoute]:
    """Routes of the models, one for each task, and of the metadata of server and models."""
    example = _metadata(next(task for task in tasks if task.inputs == "either"))
    is_ready = {"name": example["name"], "ready": True}
    return [
        *map(_route, tasks),
        _get("/v2", server, "Server metadata", _SERVER),
        _get("/v2/health/live", live, "Liveness", {"live": True}, 503),
        _get("/v2/health/ready", ready, "Readiness", {"ready": True}, 503),
        _get("/v2/models/{model}", metadata, "Model metadata", example, 404),
        _get("/v2/models/{model}/ready", model_ready, "Readiness of a model", is_ready, 404, 503),
    ]
