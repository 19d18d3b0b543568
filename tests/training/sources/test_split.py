"""Which texts are held out."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from string import ascii_lowercase

import pytest

from training.sources.documents import Document
from training.sources.split import hashes, held_out_below, text_hash


def document(text: str, group: str | None = None) -> Document:
    return Document((text,), group=group)


@pytest.mark.parametrize("text", ["Größe: überaus schön", "ÉTÉ À LA MER", "Отличный фильм", "αγαπημένος", "plain"])
def test_text_hash_does_not_depend_on_case_in_any_alphabet(text: str) -> None:
    assert len({text_hash(text), text_hash(text.upper()), text_hash(text.lower())}) == 1


@pytest.mark.parametrize(
    "text",
    [
        "It isn't \"fine\", it's great",
        "it isn't ``fine'', it's great",
        "It is n't “fine” , it ’s great",
        "  It isn’t\t«fine» – it's<br /><br />great…",
        "It isn’t fine,\nit's great!",
    ],
)
def test_text_hash_does_not_depend_on_space_punctuation_and_breaks(text: str) -> None:
    assert text_hash(text) == text_hash("it isn't fine it's great")


def test_text_hash_differs_between_texts() -> None:
    texts = ["good", "goods", "go od x", "", ":)", ":(", "…", "好", "坏", "\ud83d"]
    assert len({text_hash(text) for text in texts}) == len(texts)


def test_hashes_are_those_of_the_text_and_of_the_group_if_there_is_one() -> None:
    assert hashes(document("a", "film")) == (text_hash("a"), text_hash("film"))
    assert hashes(document("A  b")) == (text_hash("a b"), text_hash("a b"))


def groups(found: Iterable[Document]) -> Iterator[int]:
    return (hashes(document)[1] for document in found)


def held_out(found: list[Document], limit: int) -> list[bool]:
    return [group < limit for group in groups(found)]


@pytest.mark.parametrize("fraction", [0.05, 0.3, 0.9])
def test_held_out_below_holds_out_about_its_share(fraction: float) -> None:
    found = [document(str(number)) for number in range(3000)]
    limit = held_out_below(groups(found), fraction)
    assert abs(sum(held_out(found, limit)) / len(found) - fraction) < 0.05


@pytest.mark.parametrize("fraction", [1e-9, 0.5, 1 - 1e-9])
@pytest.mark.parametrize("count", [2, 3, 26])
def test_held_out_below_holds_out_at_least_one_group_and_leaves_one(fraction: float, count: int) -> None:
    found = [document("text", letter) for letter in ascii_lowercase[:count]]
    assert 0 < sum(held_out(found, held_out_below(groups(found), fraction))) < count


@pytest.mark.parametrize("fraction", [1e-9, 0.5, 1 - 1e-9])
@pytest.mark.parametrize("group", ["a", "b", "c", "d"])
def test_held_out_below_leaves_a_single_group(fraction: float, group: str) -> None:
    found = [document(str(number), group) for number in range(9)]
    assert not any(held_out(found, held_out_below(groups(found), fraction)))


def test_held_out_below_does_not_depend_on_the_order_and_hardly_on_other_groups() -> None:
    found = [document(str(number)) for number in range(500)]
    expected = held_out(found, held_out_below(groups(found), 0.2))
    shuffled = random.Random(0).sample(found, len(found))
    for others in (shuffled, found[:100]):
        assert held_out(found, held_out_below(groups(others), 0.2)) == expected


def test_held_out_below_reads_no_more_than_it_needs() -> None:
    found = iter([document(str(number)) for number in range(1000)])
    held_out_below(groups(found), 0.5)
    assert len(list(found)) > 900


def test_held_out_below_of_no_fraction_holds_out_nothing() -> None:
    found = [document(letter) for letter in ascii_lowercase]
    assert not any(held_out(found, held_out_below(groups(found), 0.0)))


def test_held_out_below_keeps_the_spellings_of_a_text_together() -> None:
    found = [document(f"it is n't {letter} ''") for letter in ascii_lowercase]
    limit = held_out_below(groups(found), 0.5)
    spelled = [
        document(f"It isn’t {letter}”", group=kept.text) for letter, kept in zip(ascii_lowercase, found, strict=True)
    ]
    assert held_out(spelled, limit) == held_out(found, limit)
