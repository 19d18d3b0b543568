"""What a task is: what it asks, and how a request's texts become arrays and its outputs become results.

`app.tasks.TASKS` is the table of all tasks. Routes, admission, metrics, the OpenAPI document, the protocols of other
clients and the playground are made from it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel

from app.errors import MAX_FAULTS, InvalidInputError, Loc
from app.inference.contract import Head, ModelOutput, Query
from app.tasks.schemas import Input, Reading
from model.errors import EmptyTextError, TextError
from model.tokenizer import Encoding

PREDICTION_BYTES = 100
"""Estimated bytes of a prediction's or token's JSON, beside the text that it repeats."""
_CHARACTERS_PER_TOKEN = 4
"""A low estimate of tokens, for the room that a text gets before it is tokenized."""


@dataclass(frozen=True, slots=True)
class Operation:
    """A path that answers a task, and its place in the OpenAPI document."""

    path: str
    summary: str
    example: dict[str, Any]
    """A response."""


class Question(ABC):
    """The inputs of one request and what is asked about them: pure functions from texts to results."""

    inputs: Sequence[Input]
    split_advice: str
    """How a request gets a smaller answer."""
    needs_model = True
    """Whether a model computes something; else the tokens are the answer."""

    @abstractmethod
    def encode(self, given: Input) -> Encoding:
        """Tokenize an input. Raises `model.errors.TextError`: it has no answer."""

    @abstractmethod
    def query(self, encodings: list[Encoding]) -> Query:
        """What is asked of the model."""

    @abstractmethod
    def results(self, query: Query, outputs: Sequence[ModelOutput]) -> list[Any]:
        """A result for each input, as JSON has it."""

    @abstractmethod
    def response_bytes(self, query: Query) -> int:
        """Estimate the bytes of the response."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What a caller can ask of a model."""

    name: str
    """In the metrics, in `/info`, and as a model of the Open Inference Protocol."""
    description: str
    """In the OpenAPI document."""
    operations: Sequence[Operation]
    request: type[BaseModel]
    """Schema of a body: `inputs`, and `parameters`, whose names are arguments of `question`."""
    response: Any
    """Type of a response's body."""
    head: Head
    """What computes it."""
    inputs: Literal["text", "pair", "either"]
    results: Literal["words", "labels"]
    """The shape of its results, which the protocols know: `question` takes the parameters of `fill_mask_question` or of
    `label_question`."""
    question: Callable[..., Question]
    """`question(served, inputs, **parameters)`: what a request asks of a model. Raises InvalidInputError or
    InvalidRequestError: this model cannot do what a parameter asks for."""
    hugging_face: str = ""
    """The method of Hugging Face's clients that asks it, with hyphens. Without one, its name is its path there."""


@dataclass(slots=True)
class TaskResult:
    """Results in the order of the inputs, and the name of the model that computed them."""

    model: str
    results: list[Any]
    tokens: int
    """Of all inputs."""
    stages: dict[str, float]
    """Where the request's time went, in seconds: `tokenize`, `queue`, `inference`."""


def reading(encoding: Encoding, unk_id: int) -> Reading:
    """What the model has read of an input."""
    unknown, tokens = encoding.ids.count(unk_id), len(encoding)
    found: Reading = {"tokens": tokens, "truncated": encoding.truncated}
    if 2 * unknown > tokens - 2:  # [CLS] and [SEP]
        found["unknown_tokens"] = unknown
    return found


def characters(given: Input) -> int:
    """Characters of an input."""
    return len(given) if isinstance(given, str) else len(given.text) + len(given.text_pair)


def estimated_tokens(given: Input, max_length: int) -> int:
    """A low estimate of the tokens of an input."""
    return min(characters(given) // _CHARACTERS_PER_TOKEN, max_length)


def encode_all(question: Question, check_cancelled: Callable[[], None] = lambda: None) -> list[Encoding]:
    """All inputs of a question tokenized. `check_cancelled` is called after each; it raises once the request has ended.

    Raises:
        InvalidInputError: names the inputs that have no answer, up to MAX_FAULTS.
    """
    encodings: list[Encoding] = []
    faults: list[tuple[Exception, Loc]] = []
    for i, given in enumerate(question.inputs):
        try:
            encodings.append(question.encode(given))
        except TextError as error:
            half: Loc = (error.half,) if isinstance(error, EmptyTextError) and error.half else ()
            # Without the traceback, which has this frame and so `faults`: a cycle would outlive `gc.freeze`.
            faults.append((error.with_traceback(None), ("inputs", i, *half)))
            if len(faults) == MAX_FAULTS:
                break
        check_cancelled()
    if faults:
        raise InvalidInputError(faults)
    return encodings
