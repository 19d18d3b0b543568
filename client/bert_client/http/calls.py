"""What is asked and how the answer reads: pure functions between Python values and JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypedDict, TypeVar

import httpx

from bert_client.errors import UnexpectedAnswerError
from bert_client.wire import (
    FillMaskResult,
    LabelPrediction,
    LabelResult,
    Limits,
    Mask,
    TokenPrediction,
    is_valid_request_id,
)

Result_co = TypeVar("Result_co", covariant=True)
Pair = tuple[str, str]
Texts = list[str] | list[Pair] | list[str | Pair]

DEFAULT_URL = "http://127.0.0.1:8000"

# JSON around the inputs, beside the parameters.
_ENVELOPE_BYTES = 64
_BYTES_PER_TOKEN = 4
_TOKENS_PER_INPUT = 3  # special tokens


@dataclass(frozen=True, slots=True)
class Call(Generic[Result_co]):
    """One question, still without its inputs."""

    path: str
    parameters: bytes
    read: Callable[[Any], Result_co]
    """One result of the answer's JSON."""
    request_id: str | None = None

    def __post_init__(self) -> None:
        if self.request_id is not None and not is_valid_request_id(self.request_id):
            raise ValueError(f"request_id is {self.request_id!r}: give 1 to 128 ASCII letters, digits or . _ : / + = -")

    def body(self, inputs: Sequence[bytes]) -> bytes:
        """A request body of encoded inputs."""
        return b'{"inputs":[%s],"parameters":%s}' % (b",".join(inputs), self.parameters)

    def results(self, response: httpx.Response, count: int) -> list[Result_co]:
        """The results of an answer to so many inputs.

        Raises:
            UnexpectedAnswerError: it is no such answer.
        """
        try:
            results = [self.read(result) for result in response.json()["results"]]
        except (ValueError, KeyError, TypeError) as error:
            raise UnexpectedAnswerError(f"{response.url} does not answer as this service does") from error
        if len(results) != count:
            raise UnexpectedAnswerError(f"{response.url} gave {len(results)} results to {count} inputs")
        return results


class Options(TypedDict, total=False):
    """Keyword arguments that every question takes."""

    truncate: bool
    """Cut an input that is longer than the model's limit, instead of refusing it."""
    request_id: str | None
    """Sent as `X-Request-ID` with every request of this call."""


class SentimentOptions(Options, total=False):
    """Keyword arguments of `sentiment`."""

    top_k: int | None
    """Labels to return; default: all."""


class FillMaskOptions(Options, total=False):
    """Keyword arguments of `fill_mask`."""

    top_k: int | None
    """Predictions per mask; default: 5, or all of `targets`."""
    targets: Sequence[str] | None
    """Score these words only."""


def fill_mask(
    *,
    top_k: int | None = None,
    targets: Sequence[str] | None = None,
    truncate: bool = False,
    request_id: str | None = None,
) -> Call[FillMaskResult]:
    """Words for `[MASK]`.

    Raises:
        TypeError: `targets` is a string: of that, each letter would be a word.
    """
    if isinstance(targets, str):
        raise TypeError(f"targets is {targets!r}: give a list of words")
    parameters = _parameters(top_k=top_k, targets=None if targets is None else list(targets), truncate=truncate)
    return Call("/fill-mask", parameters, _fill_mask_result, request_id)


def next_sentence(*, truncate: bool = False, request_id: str | None = None) -> Call[LabelResult]:
    """Does the second text of a pair follow the first?"""
    return Call("/next-sentence", _parameters(truncate=truncate), _label_result, request_id)


def sentiment(*, top_k: int | None = None, truncate: bool = False, request_id: str | None = None) -> Call[LabelResult]:
    """What a text feels."""
    return Call("/sentiment", _parameters(top_k=top_k, truncate=truncate), _label_result, request_id)


def authorization(api_key: str | None) -> dict[bytes, bytes]:
    """The header that carries an API key, if there is one.

    Raises:
        ValueError: no header can carry this one.
    """
    if not api_key:
        return {}
    if not api_key.isprintable():
        raise ValueError("the API key has characters that are not printable: give it as the service has it")
    return {b"Authorization": f"Bearer {api_key}".encode()}


def encode(given: str | Pair) -> bytes:
    """An input as JSON; encoded once, and so measured exactly."""
    value = given if isinstance(given, str) else _pair(given)
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")


def _pair(given: Any) -> dict[str, str]:
    if not (isinstance(given, tuple) and len(given) == 2):
        raise TypeError(f"an input is a string or a tuple of two strings, not {type(given).__name__}")
    return {"text": given[0], "text_pair": given[1]}


@dataclass(frozen=True, slots=True)
class Chunk:
    """Inputs of one request, and the index of the first among all."""

    first: int
    inputs: list[bytes]


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """What one request may carry."""

    inputs: int
    body_bytes: int
    tokens: int
    """Estimated; small enough that the service is fair to others and answers long before its deadline."""

    @classmethod
    def of(cls, limits: Limits) -> RequestLimits:
        """Two batches fill the device while the next request is on its way. A quarter of the queue never
        overflows it, even if every byte is a token.
        """
        tokens = min(2 * limits.max_batch_tokens, limits.max_queue_tokens // _BYTES_PER_TOKEN)
        return cls(limits.max_client_batch, limits.max_body_bytes - _ENVELOPE_BYTES, tokens)


class Chunker:
    """Cuts a stream of encoded inputs into chunks; one that is too large for any goes alone."""

    def __init__(self, sizes: RequestLimits, parameters: bytes) -> None:
        self._sizes = sizes
        self._room = sizes.body_bytes - len(parameters)
        self._next = 0
        self._begin()

    def push(self, given: bytes) -> Iterator[Chunk]:
        """Add an input; gives the chunk that it no longer fits into."""
        tokens = len(given) // _BYTES_PER_TOKEN + _TOKENS_PER_INPUT
        full = (
            len(self._inputs) >= self._sizes.inputs
            or self._bytes + len(given) + 1 > self._room
            or self._tokens + tokens > self._sizes.tokens
        )
        if full:
            yield from self.rest()
        self._inputs.append(given)
        self._bytes += len(given) + 1
        self._tokens += tokens

    def rest(self) -> Iterator[Chunk]:
        """The chunk that is not full yet, if there is one."""
        if self._inputs:
            yield Chunk(self._next, self._inputs)
            self._next += len(self._inputs)
            self._begin()

    def _begin(self) -> None:
        self._inputs: list[bytes] = []
        self._bytes = 0
        self._tokens = 0


def read_limits(response: httpx.Response) -> Limits:
    """The limits that `/info` tells.

    Raises:
        UnexpectedAnswerError: it is no such answer.
    """
    try:
        limits = response.json()["limits"]
        return Limits(**{name: int(limits[name]) for name in Limits.__slots__})
    except (ValueError, KeyError, TypeError) as error:
        raise UnexpectedAnswerError(f"{response.url} does not tell limits as this service does") from error


def _parameters(**given: object) -> bytes:
    return json.dumps({name: value for name, value in given.items() if value is not None}, ensure_ascii=False).encode(
        errors="surrogatepass"
    )


def _fill_mask_result(result: Any) -> FillMaskResult:
    masks = [
        Mask(
            mask["position"],
            [
                TokenPrediction(entry["score"], entry["token"], entry["token_str"], entry["sequence"])
                for entry in mask["predictions"]
            ],
        )
        for mask in result["masks"]
    ]
    return FillMaskResult(masks, result["tokens"], result["truncated"])


def _label_result(result: Any) -> LabelResult:
    predictions = [LabelPrediction(entry["label"], entry["score"]) for entry in result["predictions"]]
    return LabelResult(predictions, result["tokens"], result["truncated"])
