"""Schemas of request bodies. Those of responses are in `bert_client.wire`.

Types are strict (neither `true` nor `"5"` is an integer), and unknown fields are errors. An optional field may be null,
which is the same as leaving it out. Unions have a name or a title, because clients are generated from the schemas.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    StrictBool,
    StrictInt,
    Tag,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic_core import InitErrorDetails
from typing_extensions import TypeAliasType

from app.errors import MAX_FAULTS
from app.scheduling.tokenization import TextPair

MAX_TOP_K = 100
MAX_TARGETS = 100

T = TypeVar("T")

UNION_TAGS = frozenset({"one", "many", "string", "pair"})
"""Branches of unions. pydantic adds them to the paths of errors, where they mean nothing to callers."""


def _one_or_many(value: object) -> str:
    return "many" if isinstance(value, list) else "one"


def _string_or_pair(value: object) -> str:
    return "pair" if isinstance(value, dict | TextPair) else "string"


def _string_or_pair_or_many(value: object) -> str:
    return "many" if isinstance(value, list) else _string_or_pair(value)


class Strict(BaseModel):
    """A body or a part of one."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def with_examples(*examples: dict[str, Any]) -> ConfigDict:
    """The configuration of a body with examples for the OpenAPI document."""
    return ConfigDict(json_schema_extra={"examples": list(examples)})


def _name_invalid_items(items: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    """Validate a list with `fail_fast`, and go on behind the first invalid item, up to MAX_FAULTS of them. Without
    `fail_fast`, naming 65,536 items takes 0.2 s."""
    faults: list[InitErrorDetails] = []
    start = 0
    while len(faults) < MAX_FAULTS and (not start or start < len(items)):
        try:
            valid = validate(items[start:] if start else items)
        except ValidationError as error:
            details = error.errors(include_url=False)
            if not details[0]["loc"]:  # the fault is the list's own, such as a wrong type
                raise
            index = start
            for detail in details:
                index = start + int(detail["loc"][0])
                loc = (index, *detail["loc"][1:])
                faults.append(
                    {"type": detail["type"], "loc": loc, "input": detail["input"], "ctx": detail.get("ctx", {})}
                )
            start = index + 1
        else:
            if not faults:
                return valid
            break
    raise ValidationError.from_exception_data("items", faults)


Items = Annotated[list[T], Field(fail_fast=True), WrapValidator(_name_invalid_items)]
"""A list whose errors name up to MAX_FAULTS invalid items."""
Many = Annotated[Items[T], Field(min_length=1), Tag("many")]
OneOrMany = Annotated[Annotated[T, Tag("one")] | Many[T], Discriminator(_one_or_many)]
_Text = Annotated[str, Tag("string")]
_Pair = Annotated[TextPair, Tag("pair")]
TextOrPair = TypeAliasType("TextOrPair", Annotated[_Text | _Pair, Discriminator(_string_or_pair)])
TextsOrPairs = Annotated[_Text | _Pair | Many[TextOrPair], Discriminator(_string_or_pair_or_many)]
"""A flat union: of nested ones, generated clients choose the wrong branch."""
Truncate = Annotated[
    StrictBool | None,
    Field(description="Cut an input that is longer than the model's limit instead of refusing it. Default: false."),
]
ALSO_TRUNCATION = Field(validation_alias=AliasChoices("truncate", "truncation"))
"""Accepts `truncation` as another name of `truncate`."""
Target = Annotated[str, Field(min_length=1, max_length=200)]


class Parameters(Strict):
    """Parameters of all tasks."""

    truncate: Truncate = None


class FillMaskParameters(Parameters):
    """Parameters of fill-mask."""

    top_k: StrictInt | None = Field(
        None, ge=1, le=MAX_TOP_K, description="Predictions per mask. Default: 5, or all of `targets` if there are any."
    )
    targets: list[Target] | None = Field(
        None,
        min_length=1,
        max_length=MAX_TARGETS,
        fail_fast=True,
        description="Score only these words. Each must be a single token of the vocabulary.",
    )


class SentimentParameters(Parameters):
    """Parameters of sentiment."""

    top_k: StrictInt | None = Field(None, ge=1, le=MAX_TOP_K, description="Labels to return. Default: all.")


class FillMaskRequest(Strict):
    """Texts with one or more `[MASK]`."""

    model_config = with_examples(
        {"inputs": "The movie was [MASK] and I loved it."},
        {"inputs": ["A [MASK] film.", "I [MASK] it."], "parameters": {"top_k": 2, "truncate": True}},
        {"inputs": "The movie was [MASK].", "parameters": {"targets": ["good", "bad"]}},
    )

    inputs: OneOrMany[str] = Field(
        title="FillMaskInputs", description="One text or many; each holds at least one `[MASK]`."
    )
    parameters: FillMaskParameters | None = None


class NextSentenceRequest(Strict):
    """Pairs of texts, of which the second may follow the first."""

    model_config = with_examples({"inputs": {"text": "I went to the cinema.", "text_pair": "The film was good."}})

    inputs: OneOrMany[TextPair] = Field(title="NextSentenceInputs", description="One pair or many.")
    parameters: Parameters | None = None


class SentimentRequest(Strict):
    """Texts, or pairs such as a review's title and body."""

    model_config = with_examples(
        {"inputs": "The movie was good and I loved it."},
        {"inputs": ["A good film.", {"text": "Bad", "text_pair": "I did not like it."}], "parameters": {"top_k": 1}},
    )

    inputs: TextsOrPairs = Field(title="SentimentInputs", description="One text or pair, or many.")
    parameters: SentimentParameters | None = None


def given(parameters: Parameters | None) -> dict[str, Any]:
    """The parameters that have a value, as keyword arguments of a method of `Engine`."""
    return {} if parameters is None else parameters.model_dump(exclude_none=True)


def as_list(inputs: T | list[T]) -> list[T]:
    """A list of the inputs, also of a single one."""
    return inputs if isinstance(inputs, list) else [inputs]
