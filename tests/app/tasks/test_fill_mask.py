"""Masked texts into queries, and numbers into words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pydantic_core import to_json

from app.errors import InvalidInputError
from app.inference.contract import ServedModel, Words
from app.tasks.fill_mask import FillMaskQuestion, fill
from app.tasks.task import encode_all
from model.errors import EmptyTextError, NoMaskError, TextError, TextTooLongError, UnknownTargetError


def results_of(question: FillMaskQuestion, *outputs: Words) -> list[Any]:
    return question.results(question.query(encode_all(question)), outputs)


@pytest.mark.parametrize(
    ("text", "token", "expected"),
    [
        ("The  Film was [MASK]!", "good", "The  Film was good!"),
        ("I was walk [MASK] home", "##ing", "I was walking home"),
        ("[MASK] x", "##ing", "ing x"),
        ("a [MASK]", "##", "a ##"),
        ("é 😀 \x00 \u202e עברית [MASK] \U0010ffff", "good", "é 😀 \x00 \u202e עברית good \U0010ffff"),
    ],
)
def test_fill_writes_a_token_into_the_callers_own_text(text: str, token: str, expected: str) -> None:
    start = text.index("[MASK]")
    assert fill(text, (start, start + 6), token) == expected
    first = len(text[:start].rstrip())
    assert fill(text, (first, start + 6), token) == expected, "the span has white space if the mask has `lstrip`"


def test_fill_mask_results_replace_each_mask_alone(served: ServedModel) -> None:
    question = FillMaskQuestion(served, ["Äh 😀 [MASK]  WAS [MASK]"], top_k=1)
    good = served.tokenizer.token_id("good")
    (result,) = results_of(question, Words([0.5, 0.25], [good, good]))
    assert [mask["predictions"] for mask in result["masks"]] == [
        [{"score": 0.5, "token": good, "token_str": "good", "sequence": "Äh 😀 good  WAS [MASK]"}],
        [{"score": 0.25, "token": good, "token_str": "good", "sequence": "Äh 😀 [MASK]  WAS good"}],
    ]
    encoding = served.tokenizer.encode("Äh 😀 [MASK]  WAS [MASK]")
    masks = [i for i, token in enumerate(encoding.ids) if token == served.tokenizer.mask_id]
    assert [mask["position"] for mask in result["masks"]] == masks
    assert (result["tokens"], result["truncated"]) == (len(encoding), False)


def test_fill_mask_results_keep_the_order_of_inputs_masks_and_scores(served: ServedModel) -> None:
    good, bad, film = map(served.tokenizer.token_id, ("good", "bad", "film"))
    question = FillMaskQuestion(served, ["[MASK] a [MASK]", "a [MASK]"], top_k=2)
    results = results_of(question, Words([0.4, 0.3, 0.2, 0.1], [good, bad, film, good]), Words([0.9, 0.1], [bad, film]))
    words = [[[p["token_str"] for p in mask["predictions"]] for mask in result["masks"]] for result in results]
    assert words == [[["good", "bad"], ["film", "good"]], [["bad", "film"]]]


def test_fill_mask_query_has_the_places_of_all_masks(served: ServedModel) -> None:
    question = FillMaskQuestion(served, ["[MASK] a", "b [MASK] [MASK]"], top_k=3, targets=["good", "bad"])
    query = question.query(encode_all(question))
    assert (query.masks, query.top_k) == ([(1,), (2, 3)], 2)
    assert query.targets == tuple(map(served.tokenizer.token_id, ("good", "bad")))


@pytest.mark.parametrize(
    ("text", "truncate", "expected"),
    [
        ("", False, EmptyTextError),
        ("a film", False, NoMaskError),
        ("[mask]", False, NoMaskError),
        ("[MASK] " * 100, False, TextTooLongError),
        ("a " * 100 + "[MASK]", True, NoMaskError),
        ("[MASK] " + "a " * 100 + "[MASK]", True, NoMaskError),
    ],
)
def test_fill_mask_text_without_an_answer_is_an_error(
    served: ServedModel, text: str, truncate: bool, expected: type[TextError]
) -> None:
    question = FillMaskQuestion(served, [text], truncate=truncate)
    with pytest.raises(expected):
        question.encode(text)


def test_fill_mask_long_text_is_cut_behind_its_masks(served: ServedModel) -> None:
    (encoding,) = encode_all(FillMaskQuestion(served, ["[MASK] " + "a " * 100], truncate=True))
    assert (len(encoding), encoding.truncated) == (64, True)


def test_fill_mask_text_is_cut_where_the_checkpoint_says(served: ServedModel) -> None:
    model = replace(served, config=served.config.replace(truncation="head_tail"))
    (encoding,) = encode_all(FillMaskQuestion(model, ["a " * 100 + "[MASK]"], truncate=True))
    assert encoding.ids[62] == served.tokenizer.mask_id


def test_fill_mask_unknown_target_is_named(served: ServedModel) -> None:
    with pytest.raises(InvalidInputError, match="xyzzy") as raised:
        FillMaskQuestion(served, ["[MASK]"], targets=["good", "xyzzy"])
    ((error, loc),) = raised.value.faults
    assert loc == ("parameters", "targets", 1)
    assert isinstance(error, UnknownTargetError)


def test_fill_mask_targets_that_are_one_token_count_once(served: ServedModel) -> None:
    question = FillMaskQuestion(served, ["[MASK]"], targets=["good", "Good", "GOOD", "bad"])
    assert list(map(served.tokenizer.token, question.target_ids)) == ["good", "bad"]
    assert question.words_per_mask == 2


WORDS = ["good", "bad", "great", "boring", "film", "movie"]


@pytest.mark.parametrize(
    ("targets", "top_k", "expected"),
    [
        ([], None, 5),
        ([], 7, 7),
        ([], 100, 76),  # the whole vocabulary
        (WORDS, None, 6),
        (WORDS, 2, 2),
        (WORDS, 50, 6),
    ],
)
def test_fill_mask_predictions_are_five_or_all_targets_unless_top_k_says_otherwise(
    served: ServedModel, targets: list[str], top_k: int | None, expected: int
) -> None:
    assert FillMaskQuestion(served, ["[MASK]"], targets=targets, top_k=top_k).words_per_mask == expected


@pytest.mark.parametrize("character", ["a", "\u0001", "\U0001f600", "é"])
def test_fill_mask_response_bytes_are_about_those_of_the_json(served: ServedModel, character: str) -> None:
    """JSON writes six bytes for a control character, which the model does not even read."""
    texts = ["[MASK] " + character * 1000, "[MASK] a [MASK]"]
    question = FillMaskQuestion(served, texts, top_k=3, truncate=True)
    query = question.query(encode_all(question))
    token, outputs = served.tokenizer.token_id("good"), []
    for masks in query.masks:
        predictions = 3 * len(masks)
        outputs.append(Words([0.123456789012] * predictions, [token] * predictions))
    written = len(to_json(question.results(query, outputs)))
    assert written <= question.response_bytes(query) <= written + 1000
