"""Texts into token ids, for any task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from app.errors import InvalidInputError
from app.inference.contract import ServedModel
from app.tasks.labels import LabelQuestion
from app.tasks.schemas import Input, TextPair
from app.tasks.task import characters, encode_all
from model.errors import EmptyTextError, TextTooLongError


class Counting:
    """A tokenizer that remembers what it has read."""

    def __init__(self, tokenizer: Any) -> None:
        self.encoded: list[str] = []
        self._tokenizer = tokenizer

    def encode(self, text: str, *others: Any, **options: Any) -> Any:
        self.encoded.append(text)
        return self._tokenizer.encode(text, *others, **options)


def counting(served: ServedModel, inputs: Sequence[Input]) -> tuple[Counting, LabelQuestion]:
    tokenizer: Any = Counting(served.tokenizer)
    return tokenizer, LabelQuestion(replace(served, tokenizer=tokenizer), inputs)


def test_encode_all_keeps_the_order_of_the_inputs(served: ServedModel) -> None:
    encodings = encode_all(LabelQuestion(served, ["a", "a film", TextPair("a", "film")]))
    assert [len(encoding) for encoding in encodings] == [3, 4, 5]


def test_encode_all_names_all_inputs_without_an_answer(served: ServedModel) -> None:
    inputs = ["", "good", "a " * 100, TextPair("good", " "), TextPair("", "good")]
    with pytest.raises(InvalidInputError) as raised:
        encode_all(LabelQuestion(served, inputs))
    assert [(type(error), loc) for error, loc in raised.value.faults] == [
        (EmptyTextError, ("inputs", 0)),
        (TextTooLongError, ("inputs", 2)),
        (EmptyTextError, ("inputs", 3, "text_pair")),
        (EmptyTextError, ("inputs", 4, "text")),
    ]
    assert str(raised.value) == "the text is empty"


def test_encode_all_errors_hold_no_frames(served: ServedModel) -> None:
    """A frame holds the list of errors: a cycle, which is never collected after `gc.freeze()`."""
    with pytest.raises(InvalidInputError) as raised:
        encode_all(LabelQuestion(served, ["", ""]))
    assert [error.__traceback__ for error, _ in raised.value.faults] == [None, None]


def test_encode_all_ends_after_a_hundred_inputs_without_an_answer(served: ServedModel) -> None:
    tokenizer, question = counting(served, [""] * 300)
    with pytest.raises(InvalidInputError) as raised:
        encode_all(question)
    assert [loc for _, loc in raised.value.faults] == [("inputs", i) for i in range(100)]
    assert len(tokenizer.encoded) == 100


def test_encode_all_is_cancelled_between_two_inputs(served: ServedModel) -> None:
    tokenizer, question = counting(served, ["a", "b", "c"])

    def check_cancelled(_: Input) -> None:
        if len(tokenizer.encoded) == 2:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        encode_all(question, check_cancelled)
    assert tokenizer.encoded == ["a", "b"]


def test_characters_are_those_of_both_texts_of_a_pair() -> None:
    assert characters("abc") == 3
    assert characters(TextPair("a" * 40, "b" * 8)) == 48
