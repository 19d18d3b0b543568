"""Request and response bodies.

Requests are strict (a bool is no int, "5" is no int) and know no field that is not listed. Responses are
plain dataclasses: nothing is validated twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

MAX_TOP_K = 100
MAX_TARGETS = 100

T = TypeVar("T")

# Branches of a union. They stand in the locations of pydantic's errors, where callers do not expect them.
UNION_TAGS = frozenset({"one", "many", "string", "pair"})


def _one_or_many(value: object) -> str:
    return "many" if isinstance(value, list) else "one"


def _string_or_pair(value: object) -> str:
    return "pair" if isinstance(value, dict | TextPair) else "string"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


def _examples(*examples: dict[str, Any]) -> ConfigDict:
    return ConfigDict(json_schema_extra={"examples": list(examples)})


class TextPair(_Strict):
    """Two texts that are read together."""

    text: str
    text_pair: str


OneOrMany = Annotated[
    Annotated[T, Tag("one")] | Annotated[list[T], Field(min_length=1), Tag("many")], Discriminator(_one_or_many)
]
TextOrPair = Annotated[
    Annotated[str, Tag("string")] | Annotated[TextPair, Tag("pair")], Discriminator(_string_or_pair)
]
Truncate = Annotated[
    bool, Field(description="Cut an input that is longer than the model's limit, instead of refusing it.")
]
Target = Annotated[str, Field(min_length=1, max_length=200)]


class Parameters(_Strict):
    """What all tasks understand."""

    truncate: Truncate = False


class FillMaskParameters(Parameters):
    """Parameters of fill-mask."""

    top_k: int | None = Field(
        None,
        ge=1,
        le=MAX_TOP_K,
        description="Predictions per mask. Default: 5, or all of `targets` if there are any.",
    )
    targets: list[Target] | None = Field(
        None,
        min_length=1,
        max_length=MAX_TARGETS,
        description="Score these words only; each must be a single token of the vocabulary.",
    )


class SentimentParameters(Parameters):
    """Parameters of sentiment."""

    top_k: int | None = Field(None, ge=1, le=MAX_TOP_K, description="Labels to return. Default: all.")


class FillMaskRequest(_Strict):
    """Texts with one or more `[MASK]`."""

    model_config = _examples(
        {"inputs": "The movie was [MASK] and I loved it."},
        {"inputs": ["A [MASK] film.", "I [MASK] it."], "parameters": {"top_k": 2, "truncate": True}},
        {"inputs": "The movie was [MASK].", "parameters": {"targets": ["good", "bad"]}},
    )

    inputs: OneOrMany[str]
    parameters: FillMaskParameters = FillMaskParameters()


class NextSentenceRequest(_Strict):
    """Pairs of texts: does the second follow the first?"""

    model_config = _examples(
        {"inputs": {"text": "I went to the cinema.", "text_pair": "The film was good."}},
    )

    inputs: OneOrMany[TextPair]
    parameters: Parameters = Parameters()


class SentimentRequest(_Strict):
    """Texts, or a review's title and body."""

    model_config = _examples(
        {"inputs": "The movie was good and I loved it."},
        {
            "inputs": ["A good film.", {"text": "Bad", "text_pair": "I did not like it."}],
            "parameters": {"top_k": 1},
        },
    )

    inputs: OneOrMany[TextOrPair]
    parameters: SentimentParameters = SentimentParameters()


# Hugging Face's clients leave fields out or send null, and older ones add `options`.


class HuggingFaceFillMaskRequest(_Strict):
    """What `InferenceClient.fill_mask` sends."""

    model_config = _examples({"inputs": "The movie was [MASK].", "parameters": {"top_k": 3}})

    inputs: OneOrMany[str]
    parameters: FillMaskParameters | None = None
    options: dict[str, Any] | None = Field(None, description="Accepted and passed over.")


class HuggingFaceClassificationParameters(SentimentParameters):
    """Parameters of text-classification."""

    function_to_apply: Literal["softmax"] | None = None


class HuggingFaceClassificationRequest(_Strict):
    """What `InferenceClient.text_classification` sends."""

    model_config = _examples({"inputs": "The movie was good."})

    inputs: OneOrMany[TextOrPair]
    parameters: HuggingFaceClassificationParameters | None = None
    options: dict[str, Any] | None = Field(None, description="Accepted and passed over.")


@dataclass(frozen=True, slots=True)
class TokenPrediction:
    """One token that may stand for a mask."""

    score: float
    token: int
    token_str: str
    sequence: str


@dataclass(frozen=True, slots=True)
class Mask:
    """One mask of a text and what may stand there, likeliest first. [CLS] has position 0."""

    position: int
    predictions: list[TokenPrediction]


@dataclass(frozen=True, slots=True)
class LabelPrediction:
    """One label and its probability."""

    label: str
    score: float


@dataclass(frozen=True, slots=True)
class FillMaskResult:
    """The answer to one text."""

    masks: list[Mask]
    tokens: int
    truncated: bool


@dataclass(frozen=True, slots=True)
class LabelResult:
    """The answer to one text or pair, likeliest label first."""

    predictions: list[LabelPrediction]
    tokens: int
    truncated: bool


@dataclass(frozen=True, slots=True)
class FillMaskResponse:
    """One result per input, in the order of the inputs."""

    model: str
    results: list[FillMaskResult]


@dataclass(frozen=True, slots=True)
class LabelResponse:
    """One result per input, in the order of the inputs."""

    model: str
    results: list[LabelResult]


@dataclass(frozen=True, slots=True)
class ProblemError:
    """One fault and where in the body it lies."""

    message: str
    loc: list[str | int]


@dataclass(frozen=True, slots=True)
class Problem:
    """RFC 9457, and `error` for Hugging Face's clients."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    request_id: str
    error: str
    errors: list[ProblemError]


def as_list(inputs: T | list[T]) -> list[T]:
    """One input or many, as many."""
    return inputs if isinstance(inputs, list) else [inputs]
