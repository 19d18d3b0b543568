"""What the shipped weights answer to everyday English, through the real service: what the README says, and floors.

The floors are a little below what `make test` prints (run with `ARGS="tests/shipped -rP"`); raise them when
better weights are shipped.
"""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest

from tests.shipped.behaviour import FOLDER, read

README = (FOLDER.parents[1] / "README.md").read_text()
CLAIM = r"Of the (\d+) [a-z ]+ `tests/shipped/(\w+)\.json`,\s+(\d+) are"
CLAIMS = {name: (int(right), int(count)) for count, name, right in re.findall(CLAIM, README)}
"""How many are right, and of how many"""
CLOZE_TOP_5 = 0.9
CONTRACTIONS = 0.8
EVERYDAY = 0.85


def ask(client: httpx.Client, path: str, inputs: list[Any]) -> list[dict[str, Any]]:
    response = client.post(path, json={"inputs": inputs})
    assert response.status_code == 200, response.text
    results: list[dict[str, Any]] = response.json()["results"]
    return results


def share(right: list[bool], what: str) -> float:
    print(f"{what}: {sum(right)} of {len(right)} right")
    return sum(right) / len(right)


def assert_as_claimed(name: str, right: list[bool]) -> None:
    """As in the README. In another precision, a text whose labels are nearly equally likely may change its side."""
    claimed, count = CLAIMS[name]
    share(right, name)
    assert len(right) == count
    assert abs(sum(right) - claimed) <= 1


def test_cloze_sentences_find_a_fitting_word_among_the_first_five(shipped: httpx.Client) -> None:
    rows = read("cloze")
    results = ask(shipped, "/fill-mask", [text for text, _ in rows])
    right = []
    for (text, accepted), result in zip(rows, results, strict=True):
        words = [prediction["token_str"] for prediction in result["masks"][0]["predictions"]]
        print(text, words)
        right.append(bool(set(words) & set(accepted)))
    assert share(right, "cloze, top 5") >= CLOZE_TOP_5


def test_sentence_pairs_are_told_apart(shipped: httpx.Client) -> None:
    rows = read("pairs")
    results = ask(shipped, "/next-sentence", [{"text": a, "text_pair": b} for a, b, _ in rows])
    right = [result["predictions"][0]["label"] == label for result, (*_, label) in zip(results, rows, strict=True)]
    assert_as_claimed("pairs", right)


def opinions_right(client: httpx.Client, name: str, apostrophe: str = "'") -> list[bool]:
    """Whether the label of each text is the first one."""
    rows = read(name)
    results = ask(client, "/sentiment", [text.replace("'", apostrophe) for text, _ in rows])
    right = [result["predictions"][0]["label"] == label for result, (_, label) in zip(results, rows, strict=True)]
    for (text, _), result, understood in zip(rows, results, right, strict=True):
        if not understood:
            print(f"wrong: {text} {result['predictions'][0]}")
    return right


def test_short_opinions_are_understood(shipped: httpx.Client) -> None:
    assert_as_claimed("opinions", opinions_right(shipped, "opinions"))


@pytest.mark.parametrize("apostrophe", ["'", "’"])
def test_contractions_are_understood_however_the_apostrophe_is_typed(shipped: httpx.Client, apostrophe: str) -> None:
    right = opinions_right(shipped, "contractions", apostrophe)
    assert share(right, f"contractions with {apostrophe}") >= CONTRACTIONS


def test_everyday_opinions_are_understood(shipped: httpx.Client) -> None:
    assert share(opinions_right(shipped, "everyday"), "everyday opinions") >= EVERYDAY
