"""Requests and responses as JSON, and the number of inputs in one request. Nothing here uses the network."""

from __future__ import annotations

import json
from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypedDict, TypeVar

import httpx

from bert_client import wire
from bert_client.errors import InvalidInputError
from bert_client.results import FillMaskResult, LabelResult, Model
from bert_client.wire import Limits


class PairDict(TypedDict):
    """A pair as in the service's JSON."""

    text: str
    text_pair: str


class FillMaskOptions(TypedDict, total=False):
    """The keyword arguments of `fill_mask`."""

    top_k: int | None
    targets: Iterable[str] | None
    truncate: bool
    request_id: str | None


Pair = tuple[str, str] | PairDict
PairInList = Pair | list[str] | Mapping[str, str]
"""A pair within a list. By itself, a list would be several inputs."""
Input = str | Pair
InputInList = str | PairInList
FLUSH = object()
"""A marker in a stream, not an input: all inputs before it are sent, and answered before the stream takes the next one.
A stream ends with it."""
Result_co = TypeVar("Result_co", covariant=True)
Encoded = bytes | InvalidInputError
"""An input as JSON, or the reason why it cannot be sent."""

_ENVELOPE_BYTES = 64
"""JSON around the inputs and parameters of a body."""
_BYTES_PER_TOKEN = 4
"""A low estimate; English text has more."""
_SPECIAL_TOKENS = 3


@dataclass(frozen=True, slots=True)
class Call(Generic[Result_co]):
    """A task with its parameters, without inputs."""

    path: str
    parameters: bytes
    read: Callable[[Any, str], Result_co]
    """Makes a result from its JSON and the model's name."""
    request_id: str | None = None
    takes_pairs: bool = True

    def __post_init__(self) -> None:
        if self.request_id is not None and not wire.REQUEST_ID.fullmatch(self.request_id):
            raise ValueError(f"request_id is {self.request_id!r}: give 1 to 128 ASCII letters, digits or . _ : / + = -")

    def body(self, inputs: Sequence[bytes]) -> bytes:
        """The body of a request."""
        return b'{"inputs":[%s],"parameters":%s}' % (b",".join(inputs), self.parameters)

    def results(self, response: httpx.Response, count: int) -> list[Result_co]:
        """The results in a response.

        Args:
            count: Number of inputs of the request.

        Raises:
            ValueError, KeyError, TypeError: the response is not the service's, or does not have `count` results.
        """
        body = response.json()
        results = [self.read(result, body["model"]) for result in body["results"]]
        if len(results) != count:
            raise ValueError(f"{len(results)} results to {count} inputs")
        return results


def fill_mask(
    top_k: int | None = None,
    targets: Iterable[str] | None = None,
    truncate: bool = False,
    request_id: str | None = None,
) -> Call[FillMaskResult]:
    """A call with the arguments of `BertClient.fill_mask`.

    Raises:
        TypeError: `targets` is a string, each letter of which would be a word.
    """
    if isinstance(targets, str):
        raise TypeError(f"targets is {targets!r}: give a list of words")
    words = None if targets is None else list(targets)
    parameters = _parameters(top_k=top_k, targets=words, truncate=truncate)
    return Call("/fill-mask", parameters, _fill_mask_result, request_id, takes_pairs=False)


def next_sentence(truncate: bool = False, request_id: str | None = None) -> Call[LabelResult]:
    """A call with the arguments of `BertClient.next_sentence`."""
    return Call("/next-sentence", _parameters(truncate=truncate), _label_result, request_id)


def sentiment(top_k: int | None = None, truncate: bool = False, request_id: str | None = None) -> Call[LabelResult]:
    """A call with the arguments of `BertClient.sentiment`."""
    return Call("/sentiment", _parameters(top_k=top_k, truncate=truncate), _label_result, request_id)


def _parameters(**given: object) -> bytes:
    return _to_json({name: value for name, value in given.items() if value is not None})


def _to_json(value: object) -> bytes:
    """JSON in UTF-8. A lone surrogate, such as "\\ud83d", is left to the service to refuse."""
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")


# --- inputs -------------------------------------------------------------------------------------


def is_one_input(inputs: Any, *, takes_pairs: bool) -> bool:
    """Whether this is one input, not several: a string, a pair, or something that is not iterable.

    Args:
        takes_pairs: Whether the task has pairs. If not, a tuple of two texts is several inputs.
    """
    if isinstance(inputs, tuple):
        return takes_pairs and len(inputs) == 2 and not any(isinstance(part, tuple | list) for part in inputs)
    return isinstance(inputs, str | bytes) or _is_pair_dict(inputs) or not isinstance(inputs, Iterable | AsyncIterable)


def _is_pair_dict(given: Any) -> bool:
    return isinstance(given, Mapping) and given.keys() == {"text", "text_pair"}


def check_inputs(inputs: Any) -> None:
    """Refuse an iterable whose items are not its texts.

    Raises:
        TypeError: the items of a string are characters, those of a dict its keys, those of a data frame its columns'
            names.
    """
    if isinstance(inputs, str | bytes | Mapping) or hasattr(inputs, "columns"):
        raise TypeError(f"inputs is a {type(inputs).__name__}: give a list, a column or another iterable of texts")


def encode(given: Any) -> Encoded:
    """An input as JSON, or as an error if it is neither a string nor a pair of strings."""
    value = given.tolist() if hasattr(given, "tolist") else given  # a row of a numpy array
    value = value.as_py() if hasattr(value, "as_py") else value  # a value of an Arrow column
    if isinstance(value, str):
        return _to_json(value)
    if _is_pair_dict(value):
        value = (value["text"], value["text_pair"])
    if not isinstance(value, tuple | list):
        found = type(given).__name__
    elif len(value) == 2 and all(isinstance(part, str) for part in value):
        return _to_json({"text": value[0], "text_pair": value[1]})
    else:
        found = f"a {type(given).__name__} of {', '.join(type(part).__name__ for part in value[:3]) or 'nothing'}"
    return InvalidInputError(None, "invalid_input", f"an input is a string or a pair of two strings, not {found}")


@dataclass(frozen=True, slots=True)
class Chunk:
    """The inputs of one request."""

    first: int
    """Index of the first of them among all inputs."""
    inputs: list[Encoded]


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Limits of one request."""

    inputs: int
    body_bytes: int
    tokens: int
    """Estimated tokens. Small enough that the service is fair to other callers and responds long before its
    deadline."""

    @classmethod
    def of(cls, limits: Limits) -> RequestLimits:
        """Derive the limits of requests from those of the service.

        Two batches keep the device busy while the next request is on its way. A quarter of the queue's limit never
        overflows the queue, even if every byte is a token.
        """
        tokens = min(2 * limits.max_batch_tokens, limits.max_queue_tokens // _BYTES_PER_TOKEN)
        return cls(limits.max_client_batch, limits.max_body_bytes - _ENVELOPE_BYTES, tokens)


@dataclass(frozen=True, slots=True)
class ServiceInfo:
    """The contents of `/info`."""

    limits: RequestLimits
    is_ready: bool
    """Whether the service is ready. Before, it has not measured its speed."""
    models: Mapping[str, Model]
    """Models by task; empty while they are loaded."""


HIDDEN_INFO = ServiceInfo(RequestLimits(inputs=32, body_bytes=64 * 1024, tokens=4096), is_ready=True, models={})
"""Assumed for a service whose `/info` is hidden by a proxy: the limits are cautious."""


class Chunker:
    """Cuts a stream of inputs into chunks within the limits. An input that exceeds a limit by itself is a chunk.

    A None among the chunks means that all before it must be answered before the next is sent.
    """

    def __init__(self, parameters: bytes) -> None:
        self._parameter_bytes = len(parameters)
        self._next = 0
        self._begin()

    def _begin(self) -> None:
        self._inputs: list[Encoded] = []
        self._bytes = 0
        self._tokens = 0

    def push(self, given: Any, limits: RequestLimits) -> Iterator[Chunk | None]:
        """Add an input or `FLUSH`. Yields the chunk before it, if an input does not fit into that chunk."""
        if given is FLUSH:
            yield from self.flush()
            return
        encoded = encode(given)
        size = len(encoded) + 1 if isinstance(encoded, bytes) else 0
        tokens = size // _BYTES_PER_TOKEN + _SPECIAL_TOKENS
        if (
            len(self._inputs) >= limits.inputs
            or self._bytes + size > limits.body_bytes - self._parameter_bytes
            or self._tokens + tokens > limits.tokens
        ):
            yield from self._rest()
        self._inputs.append(encoded)
        self._bytes += size
        self._tokens += tokens

    def flush(self) -> Iterator[Chunk | None]:
        """The last chunk, if there is one, and None."""
        yield from self._rest()
        yield None

    def _rest(self) -> Iterator[Chunk]:
        if self._inputs:
            yield Chunk(self._next, self._inputs)
            self._next += len(self._inputs)
            self._begin()


# --- responses ----------------------------------------------------------------------------------


def read_info(response: httpx.Response) -> ServiceInfo:
    """Read a response of `/info`. Raises ValueError, KeyError or TypeError if it is not the service's."""
    info = response.json()
    limits = Limits(**{name: int(info["limits"][name]) for name in Limits.__slots__})
    models = {task: _model(model) for model in info.get("models", []) for task in model["tasks"]}
    return ServiceInfo(RequestLimits.of(limits), info["status"] == "ready", models)


def _model(found: Any) -> Model:
    return Model(found["name"], *map(found.get, ("sha256", "labels", "problem_type")))


def _fill_mask_result(result: Any, model: str) -> FillMaskResult:
    masks = [wire.Mask(mask["position"], list(map(_token_prediction, mask["predictions"]))) for mask in result["masks"]]
    unknown = result.get("unknown_tokens", 0)
    return FillMaskResult(masks, result["tokens"], result["truncated"], model, unknown_tokens=unknown)


def _token_prediction(entry: Any) -> wire.TokenPrediction:
    return wire.TokenPrediction(entry["score"], entry["token"], entry["token_str"], entry["sequence"])


def _label_result(result: Any, model: str) -> LabelResult:
    predictions = [wire.LabelPrediction(entry["label"], entry["score"]) for entry in result["predictions"]]
    unknown = result.get("unknown_tokens", 0)
    return LabelResult(predictions, result["tokens"], result["truncated"], model, unknown_tokens=unknown)
