"""The interface of a task: its paths and schemas, and how texts become a query and outputs become results.

`app.tasks.TASKS` is the table of all tasks. Routes, the OpenAPI document, `/info` and the label `task` of the metrics
follow from it. So do the routes of other protocols: `/v2` has all tasks, `/hf` those that take single texts, and
`/predict`, `/rerank` and `/tokenize` belong to the first task that takes texts and pairs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any, Literal

from pydantic import BaseModel

from app.errors import MAX_FAULTS, InvalidInputError, Loc
from app.inference.contract import Head, ModelOutput, Query, ServedModel
from app.tasks.schemas import Input, Reading, field_names
from model.errors import EmptyTextError, TextError
from model.tokenizer import Encoding

PREDICTION_BYTES = 100
"""Estimated bytes of a prediction's or token's JSON, beside the text that it repeats."""


@dataclass(frozen=True, slots=True)
class Operation:
    """A path of a task, and its place in the OpenAPI document."""

    path: str
    summary: str
    example: dict[str, Any]
    """An example response."""


class Question(ABC):
    """The inputs of one request with its parameters: pure functions from texts to results."""

    inputs: Sequence[Input]
    served: ServedModel
    spans = True
    """Whether the results need the places of tokens in their texts."""
    split_advice: str
    """Advice for a request whose response is too large."""
    needs_model = True
    """Whether a model computes something; if not, the tokens are the output."""

    @abstractmethod
    def encode(self, given: Input) -> Encoding:
        """Tokenize an input. Raises `model.errors.TextError` if it cannot have a result."""

    @abstractmethod
    def query(self, encodings: list[Encoding]) -> Query:
        """Make the query for the model."""

    @abstractmethod
    def results(self, query: Query, outputs: Sequence[ModelOutput]) -> list[Any]:
        """The result of each input, as JSON has it."""

    @abstractmethod
    def response_bytes(self, query: Query) -> int:
        """Estimate the bytes of the response."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A kind of prediction that callers can ask a model for."""

    name: str
    """Its name in the metrics, in `/info`, and as a model of the Open Inference Protocol."""
    description: str
    """Its description in the OpenAPI document."""
    operations: Sequence[Operation]
    request: type[BaseModel]
    """Schema of a body: `inputs`, and `parameters`, whose names are arguments of `question`."""
    response: Any
    """Type of a response's body."""
    head: Head
    """The head that computes it. The adapters of protocols know the shape of its results from it."""
    inputs: Literal["text", "pair", "either"]
    question: Callable[..., Question]
    """`question(served, inputs, **parameters)`, which takes every parameter that the schema has. Its results have the
    shape of those of `FillMaskQuestion` for `Head.WORDS`, otherwise of `LabelQuestion`, because other protocols rewrite
    them. For labels, `/hf` also gives `function_to_apply`; `/predict` and `/rerank` give what `LabelQuestion` takes.
    Raises InvalidInputError or InvalidRequestError if this model does not support a parameter."""
    hugging_face: str = ""
    """The method of Hugging Face's clients for this task, with hyphens. Without one, the task's name is its path
    there."""

    def __post_init__(self) -> None:
        """Raise TypeError or ValueError if `question` does not take the arguments that it would get."""
        signature(self.question).bind(None, (), **dict.fromkeys(self.parameters))

    @property
    def parameters(self) -> Sequence[str]:
        """Names of the parameters in the schema."""
        return field_names(self.request, ["parameters"])


@dataclass(slots=True)
class TaskResult:
    """Results in the order of the inputs, and the name of the model that computed them."""

    model: str
    results: list[Any]
    tokens: int
    """Tokens of all inputs."""
    stages: dict[str, float]
    """Seconds of each stage of the request: `tokenize`, `queue`, `inference`."""


def reading(encoding: Encoding, unk_id: int) -> Reading:
    """How the model has read an input."""
    unknown, tokens = encoding.ids.count(unk_id), len(encoding)
    found: Reading = {"tokens": tokens, "truncated": encoding.truncated}
    if 2 * unknown > tokens - 2:  # [CLS] and [SEP]
        found["unknown_tokens"] = unknown
    return found


def characters(given: Input) -> int:
    return len(given) if isinstance(given, str) else len(given.text) + len(given.text_pair)


def encode_all(question: Question, check: Callable[[Input], object] = lambda _: None) -> list[Encoding]:
    """Tokenize all inputs of a question. `check` is called before each, and may raise an error to end this.

    Raises:
        InvalidInputError: names the inputs that cannot have a result, up to MAX_FAULTS.
    """
    encodings: list[Encoding] = []
    faults: list[tuple[Exception, Loc]] = []
    for i, given in enumerate(question.inputs):
        check(given)
        try:
            encodings.append(question.encode(given))
        except TextError as error:
            half: Loc = (error.half,) if isinstance(error, EmptyTextError) and error.half else ()
            # Without the traceback, which refers to this frame and so to `faults`: the cycle would outlive `gc.freeze`.
            faults.append((error.with_traceback(None), ("inputs", i, *half)))
            if len(faults) == MAX_FAULTS:
                break
    if faults:
        raise InvalidInputError(faults)
    return encodings
