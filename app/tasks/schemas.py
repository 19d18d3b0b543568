"""Parts of the schemas of request bodies.

Types are strict (neither `true` nor `"5"` is an integer), and unknown fields are errors. An optional field may be null,
which is the same as leaving it out. Unions have a name or a title, because clients are generated from the schemas.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NotRequired, TypeVar, get_args

from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    StrictBool,
    Tag,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    with_config,
)
from pydantic_core import InitErrorDetails
from typing_extensions import TypeAliasType, TypedDict  # pydantic needs these before Python 3.12

from app.errors import MAX_FAULTS, InvalidRequestError

MAX_TOP_K = 100

T = TypeVar("T")

described = with_config(use_attribute_docstrings=True)
"""Decorates a TypedDict whose field docstrings are in the OpenAPI document."""


@described
class Reading(TypedDict):
    """How the model has read an input."""

    tokens: int
    """Tokens that the model has read, special tokens included."""
    truncated: bool
    """Whether the text was cut to the model's limit."""
    unknown_tokens: NotRequired[int]
    """Number of tokens that are `[UNK]`, because the vocabulary lacks the word or its letters. Only present if most of
    the text is unknown; then the result says little about it."""


UNION_TAGS = frozenset({"one", "many", "string", "pair"})
"""Tags of union branches. pydantic adds them to the paths of errors, where they mean nothing to callers."""


@dataclass(frozen=True, slots=True)
class TextPair:
    """Two texts that are read together."""

    __pydantic_config__ = {"extra": "forbid", "use_attribute_docstrings": True}  # noqa: RUF012 (pydantic needs a dict)

    text: str
    """The first text; for a review, its title."""
    text_pair: str
    """The second text; for a review, its body."""


Input = str | TextPair


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
    """Validate a list with `fail_fast`, and continue after each invalid item, up to MAX_FAULTS of them. Without
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
"""A flat union, because generated clients choose the wrong branch of nested ones."""
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


def given(parameters: Parameters | None, known: Sequence[str] | None = None) -> dict[str, Any]:
    """The parameters that have a value, as keyword arguments of `Task.question`.

    `known`: names of those that the task has, if its caller may give others. Raises InvalidRequestError for these.
    """
    values = {} if parameters is None else parameters.model_dump(exclude_none=True)
    for name in values:
        if known is not None and name not in known:
            raise InvalidRequestError.at(unknown_field(name, known), "parameters", name)
    return values


def unknown_field(name: str, known: Sequence[str]) -> str:
    """The message for an unknown field: the known one that it may be meant as, or all known ones."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return "unknown field; " + (f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}")


def as_list(inputs: T | list[T]) -> list[T]:
    """The inputs as a list, even if there is only one."""
    return inputs if isinstance(inputs, list) else [inputs]


def field_names(schema: Any, path: list[str | int]) -> list[str]:
    """Names of the fields of the object at a path; empty if it is not of a pydantic model."""
    for part in path:
        if not isinstance(part, int) and part not in UNION_TAGS:
            field = getattr(schema, "model_fields", {}).get(part)
            schema = field and _model_in(field.annotation)
    return list(getattr(schema, "model_fields", ()))


def _model_in(annotation: Any) -> Any:
    """The first pydantic model of an annotation such as `list[Model] | None`, if there is one."""
    if hasattr(annotation, "model_fields"):
        return annotation
    return next(filter(None, map(_model_in, get_args(annotation))), None)
