"""Which texts are held out."""

from __future__ import annotations

import random
from string import ascii_lowercase

import pytest

from training.sources.documents import Document
from training.sources.split import HeldOut, group_hash, hash_share, hold_out, is_contaminated, text_hash


def document(text: str, group: str | None = None) -> Document:
    return Document(text, (text,), group=group)


@pytest.mark.parametrize(
    "text", ["Größe: überaus schön", "ÉTÉ À LA MER", "Отличный фильм", "αγαπημένος", "plain"]
)
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


def test_hash_share_is_even() -> None:
    shares = sorted(hash_share(text_hash(str(number))) for number in range(1000))
    assert all(abs(share - index / 1000) < 0.05 for index, share in enumerate(shares))


def test_group_hash_is_that_of_the_group_if_there_is_one() -> None:
    assert group_hash(document("a", "film")) == group_hash(document("b", "film")) != group_hash(document("a"))
    assert group_hash(document("A  b")) == group_hash(document("a b"))


@pytest.mark.parametrize("fraction", [0.05, 0.3, 0.9])
def test_hold_out_takes_about_its_share(fraction: float) -> None:
    keys = [text_hash(str(number)) for number in range(3000)]
    held_out = hold_out(keys, fraction)
    assert abs(sum(key in held_out for key in keys) / len(keys) - fraction) < 0.05


@pytest.mark.parametrize("fraction", [1e-9, 0.5, 1 - 1e-9])
@pytest.mark.parametrize("count", [2, 3, 26])
def test_hold_out_takes_at_least_one_group_and_leaves_one(fraction: float, count: int) -> None:
    keys = [text_hash(letter) for letter in ascii_lowercase[:count]]
    held_out = hold_out(keys, fraction)
    assert 0 < sum(key in held_out for key in keys) < count


@pytest.mark.parametrize("fraction", [1e-9, 0.5, 1 - 1e-9])
@pytest.mark.parametrize("text", ["a", "b", "c", "d"])
def test_hold_out_leaves_a_single_group(fraction: float, text: str) -> None:
    assert text_hash(text) not in hold_out([text_hash(text)] * 9, fraction)


def test_hold_out_of_nothing_or_all() -> None:
    keys = [text_hash(letter) for letter in ascii_lowercase]
    assert not any(key in hold_out(keys, 0) for key in keys)
    assert all(key in hold_out(keys, 1) for key in keys)
    assert text_hash("a") not in HeldOut()


def test_hold_out_does_not_depend_on_the_order_and_hardly_on_other_groups() -> None:
    keys = [text_hash(str(number)) for number in range(500)]
    held_out = {key for key in keys if key in hold_out(keys, 0.2)}
    shuffled = random.Random(0).sample(keys, len(keys))
    assert {key for key in keys if key in hold_out(shuffled, 0.2)} == held_out
    assert {key for key in keys if key in hold_out(keys[:100], 0.2)} == held_out


def test_hold_out_reads_no_more_than_it_needs() -> None:
    keys = iter(text_hash(str(number)) for number in range(1000))
    hold_out(keys, 0.5)
    assert len(list(keys)) > 900


def test_held_out_of_two_sources_is_what_either_holds_out() -> None:
    first, second = [text_hash(text) for text in "ab"], [text_hash(text) for text in "cd"]
    both = hold_out(first, 1e-9) | hold_out(second, 1e-9)
    assert [sum(key in both for key in keys) for keys in (first, second)] == [1, 1]
    both = hold_out(first, 1 - 1e-9) | hold_out(second, 1 - 1e-9)
    assert [sum(key in both for key in keys) for keys in (first, second)] == [1, 1]


def test_is_contaminated_in_any_spelling() -> None:
    heldout = {text_hash("It isn't fine.")}
    assert is_contaminated(document("it is n't fine"), heldout)
    assert not is_contaminated(document("it is fine"), heldout)
