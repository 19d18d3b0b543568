"""The tables of behaviour in the cards say what the service answers."""

from __future__ import annotations

import re

import httpx
import pytest

from tests.shipped.behaviour import CARDS, TABLES, amid_neutral_sentences, in_full, misspelt, table_of

TOLERANCE = 0.03
"""Share of the cases that another processor, with other roundings, may answer otherwise."""


def rates(table: str) -> dict[str, tuple[int, int]]:
    """Right answers and cases of each row."""
    rows = re.findall(r"^\| (.+?) \| (\d+) of (\d+) \|", table, re.MULTILINE)
    return {ability: (int(right), int(cases)) for ability, right, cases in rows}


@pytest.mark.parametrize("name", CARDS)
def test_rates_are_those_of_the_card(shipped: httpx.Client, name: str) -> None:
    told, found = rates(table_of(CARDS[name].read_text(encoding="utf-8"))), rates(TABLES[name](shipped))
    assert len(told) > 8
    assert {ability: cases for ability, (_, cases) in told.items()} == {
        ability: cases for ability, (_, cases) in found.items()
    }
    for ability, (right, cases) in found.items():
        assert abs(right - told[ability][0]) <= max(1, TOLERANCE * cases), ability


def test_changes_do_what_their_names_say() -> None:
    assert in_full("It isn't bad, I can't complain.") == "It is not bad, I cannot complain."
    assert misspelt("Nothing to complain about.") == "Nothing to compalin about."
    assert "Great." in amid_neutral_sentences("Great.")
