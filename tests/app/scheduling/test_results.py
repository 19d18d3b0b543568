"""Numbers into words."""

from __future__ import annotations

import pytest

from app.inference.types import Kind, Query, Words
from app.scheduling.results import fill, fill_mask_results, label_results
from model import Tokenizer


@pytest.mark.parametrize(
    ("text", "token", "expected"),
    [
        ("The  Film was [MASK]!", "good", "The  Film was good!"),
        ("I was walk [MASK] home", "##ing", "I was walking home"),
        ("[MASK] x", "##ing", "ing x"),
        ("a [MASK]", "##", "a ##"),
        ("é 😀 [MASK]", "good", "é 😀 good"),
    ],
)
def test_prediction_is_written_into_the_callers_own_text(text: str, token: str, expected: str) -> None:
    start = text.index("[MASK]")
    assert fill(text, (start, start + 6), token) == expected
    first = len(text[:start].rstrip())
    assert fill(text, (first, start + 6), token) == expected, "the span has white space if the mask has `lstrip`"


def test_each_mask_is_replaced_alone(tokenizer: Tokenizer) -> None:
    text = "Äh 😀 [MASK]  WAS [MASK]"
    encoding = tokenizer.encode(text)
    masks = tuple(i for i, token_id in enumerate(encoding.input_ids) if token_id == tokenizer.mask_id)
    good = tokenizer.token_id("good")
    query = Query(Kind.WORDS, [encoding], masks=[masks], top_k=1)
    (result,) = fill_mask_results([text], query, [Words([0.5, 0.25], [good, good])], tokenizer)
    assert [mask["predictions"][0]["sequence"] for mask in result["masks"]] == [
        "Äh 😀 good  WAS [MASK]",
        "Äh 😀 [MASK]  WAS good",
    ]
    assert [mask["position"] for mask in result["masks"]] == list(masks)
    assert result["tokens"] == len(encoding)


def test_labels_come_likeliest_first(tokenizer: Tokenizer) -> None:
    query = Query(Kind.PROBABILITIES, [tokenizer.encode("good")], 2)
    (result,) = label_results(["NEGATIVE", "POSITIVE"], query, [[0.1, 0.9]])
    assert [tuple(p.values()) for p in result["predictions"]] == [("POSITIVE", 0.9), ("NEGATIVE", 0.1)]
    (result,) = label_results(["NEGATIVE", "POSITIVE"], query, [[0.1, 0.9]], 1)
    assert len(result["predictions"]) == 1
