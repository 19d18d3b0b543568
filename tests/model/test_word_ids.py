from __future__ import annotations

from array import array

from model.word_ids import WordIds


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


def test_of_familiar_text_leaves_a_text_with_many_new_words_to_others() -> None:
    words, asked = make()
    assert words.of_familiar_text("a bb ccc", most=2) is None
    assert asked == ["a", "bb"]
    assert words.of_familiar_text("a bb ccc", most=2) == words.of_text("a bb ccc")
    assert array("H", words.of_familiar_text("ccc a dddd", most=2)).tolist() == [3, 1, 4]


def test_long_words_and_more_words_than_the_limit_are_not_kept() -> None:
    words, asked = make(limit=2)
    words.of_text("x" * 51)
    assert not words
    words.of_text("a b")
    assert sorted(words) == ["a", "b"]
    words.of_text("c")
    assert sorted(words) == ["c"]
    assert len(asked) == 4
