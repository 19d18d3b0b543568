"""Scores of labels into results."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pydantic_core import to_json

from app.inference.contract import ServedModel
from app.tasks.labels import LabelQuestion
from app.tasks.schemas import TextPair
from app.tasks.task import encode_all


def results_of(question: LabelQuestion, *scores: list[float]) -> list[Any]:
    return question.results(question.query(encode_all(question)), scores)


def test_label_results_come_likeliest_first(served: ServedModel) -> None:
    (result,) = results_of(LabelQuestion(served, ["good"]), [0.1, 0.9])
    assert [tuple(p.values()) for p in result["predictions"]] == [("POSITIVE", 0.9), ("NEGATIVE", 0.1)]
    assert (result["tokens"], result["truncated"]) == (3, False)


@pytest.mark.parametrize(("top_k", "expected"), [(None, 2), (1, 1), (100, 2)])
def test_label_results_are_the_top_k(served: ServedModel, top_k: int | None, expected: int) -> None:
    (result,) = results_of(LabelQuestion(served, ["good"], top_k=top_k), [0.1, 0.9])
    assert [p["label"] for p in result["predictions"]] == ["POSITIVE", "NEGATIVE"][:expected]


def test_label_results_keep_the_order_of_the_inputs(served: ServedModel) -> None:
    results = results_of(LabelQuestion(served, ["a", "a film"]), [0.1, 0.9], [0.8, 0.2])
    assert [result["predictions"][0]["label"] for result in results] == ["POSITIVE", "NEGATIVE"]
    assert [result["tokens"] for result in results] == [3, 4]


def test_label_results_say_when_most_of_the_text_is_unknown(served: ServedModel) -> None:
    scores = [0.1, 0.9]
    half, most = results_of(LabelQuestion(served, ["good \u0e01", "good \u0e01 \u0e02"]), scores, scores)
    assert "unknown_tokens" not in half
    assert most["unknown_tokens"] == 2


def test_label_results_of_equal_scores_keep_the_order_of_the_labels(served: ServedModel) -> None:
    (result,) = results_of(LabelQuestion(served, ["a"]), [0.5, 0.5])
    assert [p["label"] for p in result["predictions"]] == ["NEGATIVE", "POSITIVE"]


def test_label_question_has_the_labels_of_the_head(served: ServedModel, backend: Any) -> None:
    assert LabelQuestion(served, ["a"]).labels == ["NEGATIVE", "POSITIVE"]
    question = LabelQuestion(backend.models["pretrained"], [TextPair("a", "film")])
    query = question.query([served.tokenizer.encode("a", "film")])
    assert (question.labels, query.labels, list(query.lengths)) == (("IS_NEXT", "NOT_NEXT"), 2, [5])


@pytest.mark.parametrize(
    ("checkpoint", "asked", "first", "last"),
    [
        ("head", None, True, False),
        ("head", "tail", False, True),
        ("head_tail", None, True, True),
        ("head_tail", "head", True, False),
    ],
)
def test_label_question_keeps_the_ends_that_the_checkpoint_says_unless_told_otherwise(
    served: ServedModel, checkpoint: str, asked: str | None, first: bool, last: bool
) -> None:
    model = replace(served, config=served.config.replace(truncation=checkpoint))
    text = "bad " + "good " * 100 + "film"
    (encoding,) = encode_all(LabelQuestion(model, [text], truncate=True, truncation=asked))
    assert (len(encoding), encoding.truncated) == (64, True)
    ends = (served.tokenizer.token_id("bad"), served.tokenizer.token_id("film"))
    assert tuple(end in encoding.ids for end in ends) == (first, last)


@pytest.mark.parametrize("top_k", [None, 1])
def test_label_response_bytes_are_about_those_of_the_json(served: ServedModel, top_k: int | None) -> None:
    labels = {0: "é" * 500, 1: "b"}
    long = replace(served, config=served.config.replace(id2label=labels))
    question = LabelQuestion(long, ["a"] * 7, top_k=top_k)
    query = question.query(encode_all(question))
    written = len(to_json(question.results(query, [[0.123456789012, 0.1]] * 7)))
    assert written <= question.response_bytes(query) == 7 * (top_k or 2) * 1100
