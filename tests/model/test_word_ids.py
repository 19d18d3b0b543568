from __future__ import annotations

import random
from array import array
from string import ascii_letters, ascii_lowercase, digits, hexdigits

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.word_ids import WordIds


def random_words(length: int, letters: str, count: int) -> str:
    """A text of different words of this length, with at most 8192 characters."""
    generator = random.Random(0)
    words: dict[str, None] = {}
    while len(words) < count:
        words["".join(generator.choices(letters, k=length))] = None
    return " ".join(words)


def make(limit: int = 100) -> tuple[WordIds, list[str]]:
    """Word ids with the length of each word as its only id, and the words that were asked for."""
    asked: list[str] = []

    def ids(word: str) -> list[int]:
        asked.append(word)
        return [len(word)]

    return WordIds(ids, "H", limit), asked


def test_of_text_splits_at_white_space_and_around_punctuation() -> None:
    words, asked = make()
    assert array("H", words.of_text("a film's\t[UNK] [MASK]é\n…")).tolist() == [1, 4, 1, 1, 5, 1, 4, 1, 1, 1]
    assert asked == ["a", "film", "'", "s", "[UNK]", "[", "MASK", "]", "é", "…"]


def test_of_text_asks_for_a_word_once() -> None:
    words, asked = make()
    assert words.of_text("good good film") == words.of_text("good good film")
    assert asked == ["good", "film"]


@pytest.mark.parametrize(
    ("text", "asked_letters"),
    [
        pytest.param(random_words(1, "".join(map(chr, range(0x4E00, 0x9000))), 4096), 64, id="words of one letter"),
        pytest.param(random_words(5, ascii_lowercase, 1365), 64 * 5, id="short words"),
        pytest.param(random_words(20, "acgt", 390), 64 * 20, id="DNA"),
        pytest.param(random_words(64, hexdigits, 126), 0, id="hexadecimal digits"),
        pytest.param(random_words(76, ascii_letters + digits, 106), 0, id="base64"),
        pytest.param("x" * 8192, 0, id="one long word"),
        pytest.param("a " * 4097, 0, id="many characters"),
    ],
)
def test_of_familiar_text_leaves_much_work_to_others(text: str, asked_letters: int) -> None:
    """It asks only for words that it remembers, so that none is computed twice."""
    words, asked = make(limit=1000)
    assert not words.is_quick(text)
    assert words.of_familiar_text(text) is None
    assert len("".join(asked)) == asked_letters
    assert sorted(asked) == sorted(words)


@given(st.lists(st.text(ascii_letters, min_size=1, max_size=120), max_size=100))
def test_of_familiar_text_work_is_bounded_for_any_words(found: list[str]) -> None:
    """WordPiece takes at most 35 ns for each unit of this sum; 512 characters have up to 75,000."""
    words, asked = make()
    text = " ".join(found)
    quick = words.is_quick(text)
    assert (words.of_familiar_text(text) is not None) == quick
    assert sum((min(len(word), 100) + 16) ** 2 for word in asked) <= (75_000 if quick else 64 * 40**2)
    assert words.work >= sum((len(word) + 16) ** 2 for word in asked)


def test_of_familiar_text_learns_the_new_words_of_one_text_after_the_other() -> None:
    words, _ = make(limit=1000)
    text = random_words(7, ascii_lowercase, 200)
    tries = [words.of_familiar_text(text) for _ in range(3)]
    assert (tries[0], tries[2]) == (None, words.of_text(text))
    assert words.is_quick(text)


def test_long_words_and_more_words_than_the_limit_are_not_kept() -> None:
    words, asked = make(limit=2)
    words.of_text("x" * 25)
    assert not words
    words.of_text("a b")
    assert sorted(words) == ["a", "b"]
    words.of_text("c")
    assert sorted(words) == ["c"]
    assert len(asked) == 4
