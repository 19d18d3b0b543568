"""Inputs of callers into token ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from app.errors import MAX_FAULTS, InvalidInputError, Loc
from app.inference.types import ServedModel
from model.errors import EmptyTextError, NoMaskError, TextError
from model.tokenizer import Encoding


@dataclass(frozen=True, slots=True)
class TextPair:
    """Two texts that are read together."""

    __pydantic_config__ = {"extra": "forbid", "use_attribute_docstrings": True}  # noqa: RUF012 (pydantic needs a dict)

    text: str
    """The first text; of a review, its title."""
    text_pair: str
    """The second text; of a review, its body."""


Input = str | TextPair
CheckCancelled = Callable[[], None]
"""Called between the parts of long work; raises once the request has ended."""
Tokenize = Callable[[Input], Encoding]
"""Tokenizes an input, for one task with its parameters."""

_CHARACTERS_PER_TOKEN = 4
"""A low estimate of tokens, for the room that a text gets before it is tokenized."""


def characters(given: Input) -> int:
    """Characters of an input."""
    return len(given) if isinstance(given, str) else len(given.text) + len(given.text_pair)


def estimated_tokens(given: Input, max_length: int) -> int:
    """A low estimate of the tokens of an input."""
    return min(characters(given) // _CHARACTERS_PER_TOKEN, max_length)


def mask_positions(served: ServedModel, encoding: Encoding) -> tuple[int, ...]:
    """Token indices of the masks of a text.

    Raises:
        NoMaskError: the text has no mask, or truncation removed one.
    """
    if encoding.masks_lost:
        raise NoMaskError("a [MASK] lies beyond the model's limit and was lost by truncation; shorten the text")
    masks = tuple(i for i, token_id in enumerate(encoding.ids) if token_id == served.tokenizer.mask_id)
    if not masks:
        raise NoMaskError("the text holds no [MASK]: write the mask so, in capitals")
    return masks


def target_ids(served: ServedModel, targets: Sequence[str]) -> tuple[int, ...]:
    """Token ids in the caller's order, each once: "Good" and "good" may be the same token.

    Raises:
        InvalidInputError: a target is not a single token of the vocabulary.
    """
    ids: dict[int, None] = {}
    for i, word in enumerate(targets):
        try:
            ids[served.tokenizer.target_id(word)] = None
        except TextError as error:
            raise InvalidInputError([(error, ("parameters", "targets", i))]) from error
    return tuple(ids)


def tokenized(inputs: Sequence[Input], tokenize: Tokenize, check_cancelled: CheckCancelled) -> list[Encoding]:
    """All inputs tokenized.

    Raises:
        InvalidInputError: names the inputs that have no answer, up to MAX_FAULTS.
    """
    encodings: list[Encoding] = []
    faults: list[tuple[Exception, Loc]] = []
    for i, given in enumerate(inputs):
        try:
            encodings.append(tokenize(given))
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
