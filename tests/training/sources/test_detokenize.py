"""The same text as different writers spell it."""

from __future__ import annotations

import numpy as np
import pytest

from training.sources.detokenize import capitals, contractions, typographic


def ways(text: str) -> set[str]:
    """What `contractions` makes of a text."""
    return {contractions(text, np.random.default_rng(seed)) for seed in range(60)}


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("I do not know.", "I don't know."),
        ("It isn’t bad", "It is not bad"),
        ("WE CANNOT WAIT", "WE CAN'T WAIT"),
        ("I'm glad", "I am glad"),
        ("We'll see", "We will see"),
        ("Won't do", "Will not do"),
    ],
)
def test_contractions_change_into_their_long_forms_and_back(text: str, other: str) -> None:
    assert ways(text) == {text, other}
    assert other in ways(other)


@pytest.mark.parametrize(
    "text",
    ["Don't you see?", "Isn't it good?", "It's his.", "He'd go.", "They are here, as we will.", "", "notable"],
)
def test_contractions_leave_what_is_not_safe(text: str) -> None:
    assert ways(text) == {text}


def test_contractions_are_those_of_the_generator() -> None:
    text = "I do not, you do not, we don't. " * 10
    first, second, third = (contractions(text, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert first == second != third


def test_capitals_are_of_three_kinds() -> None:
    found = {capitals('"it was GOOD." i said!\nreally? été', np.random.default_rng(seed)) for seed in range(40)}
    assert found == {
        '"IT WAS GOOD." I SAID!\nREALLY? ÉTÉ',
        '"it was good." i said!\nreally? été',
        '"It was good." I said!\nReally? Été',
    }


def test_typographic_marks_open_and_close() -> None:
    assert typographic("it's \"so\" ('so')") == "it’s “so” (‘so’)"
