"""Which texts are held out."""

from __future__ import annotations

import random
from string import ascii_lowercase

import pytest

from training.sources.documents import Document
from training.sources.split import group_hash, split_by_hash, text_hash


def document(text: str, group: str | None = None) -> Document:
    return Document(text, (text,), group=group)


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


def test_group_hash_is_that_of_the_group_if_there_is_one() -> None:
    assert group_hash(document("a", "film")) == group_hash(document("b", "film")) != group_hash(document("a"))
    assert group_hash(document("A  b")) == group_hash(document("a b"))


@pytest.mark.parametrize("fraction", [0.05, 0.3, 0.9])
def test_split_by_hash_holds_out_about_its_share(fraction: float) -> None:
    found = [document(str(number)) for number in range(3000)]
    split = split_by_hash(found, fraction)
    assert abs(sum(map(split.holds_out, found)) / len(found) - fraction) < 0.05


@pytest.mark.parametrize("fraction", [1e-9, 0.5, 1 - 1e-9])
@pytest.mark.parametrize("count", [2, 3, 26])
def test_split_by_hash_holds_out_at_least_one_group_and_leaves_one(fraction: float, count: int) -> None:
    found = [document("text", letter) for letter in ascii_lowercase[:count]]
    assert 0 < sum(map(split_by_hash(found, fraction).holds_out, found)) < count


@pytest.mark.parametrize("fraction", [1e-9, 0.5, 1 - 1e-9])
@pytest.mark.parametrize("group", ["a", "b", "c", "d"])
def test_split_by_hash_leaves_a_single_group(fraction: float, group: str) -> None:
    found = [document(str(number), group) for number in range(9)]
    assert not any(map(split_by_hash(found, fraction).holds_out, found))


def test_split_by_hash_does_not_depend_on_the_order_and_hardly_on_other_groups() -> None:
    found = [document(str(number)) for number in range(500)]
    held_out = list(map(split_by_hash(found, 0.2).holds_out, found))
    shuffled = random.Random(0).sample(found, len(found))
    for others in (shuffled, found[:100]):
        assert list(map(split_by_hash(others, 0.2).holds_out, found)) == held_out


def test_split_by_hash_reads_no_more_than_it_needs() -> None:
    found = iter([document(str(number)) for number in range(1000)])
    split_by_hash(found, 0.5)
    assert len(list(found)) > 900


def test_split_by_hash_of_no_fraction_holds_out_nothing() -> None:
    found = [document(letter) for letter in ascii_lowercase]
    assert not any(map(split_by_hash(found, 0.0).holds_out, found))


def test_holds_out_keeps_the_spellings_of_a_text_together() -> None:
    found = [document(f"it is n't {letter} ''") for letter in ascii_lowercase]
    split = split_by_hash(found, 0.5)
    spelled = [
        document(f"It isn’t {letter}”", group=kept.text) for letter, kept in zip(ascii_lowercase, found, strict=True)
    ]
    assert list(map(split.holds_out, spelled)) == list(map(split.holds_out, found))
