"""A backend's numbers into what a caller reads: pure functions. Results are dicts, because making and writing
dataclasses takes four times as long."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any

from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from app.inference.types import Answer, Query, Words
from model.tokenizer import Encoding, Tokenizer

NEXT_SENTENCE_LABELS = ["IS_NEXT", "NOT_NEXT"]  # logit 0: the second follows (Devlin et al.)


class TokenPrediction(TypedDict):
    """A token that may stand in place of a mask."""

    score: float
    """Its probability over the whole vocabulary."""
    token: int
    """Its number in the vocabulary."""
    token_str: str
    """As the vocabulary writes it. A piece that joins the word before it begins with `##`."""
    sequence: str
    """The text with this one mask replaced."""


class Mask(TypedDict):
    """A mask of a text, and its predictions, most likely first."""

    position: int
    """Index of its token; [CLS] has 0."""
    predictions: list[TokenPrediction]


class LabelPrediction(TypedDict):
    """A label and its score: a probability; the number, of a regression; a logit, if raw scores were asked for."""

    label: str
    score: float


class TextToken(TypedDict):
    """A token of a text."""

    id: int
    """Its number in the vocabulary."""
    text: str
    """The part of the text that it stands for; of `[CLS]` and `[SEP]`, their names."""
    special: bool
    """Whether it was added to the text."""
    start: int | None
    """Index of its first character in the text; null if it was added."""
    stop: int | None
    """Index after its last character; null if it was added."""


class FillMaskResult(TypedDict):
    """The answer to a text."""

    masks: list[Mask]
    """One entry per `[MASK]`, in order."""
    tokens: int
    """Tokens that the model has read, special tokens included."""
    truncated: bool
    """Whether the text was cut to the model's limit."""


class LabelResult(TypedDict):
    """The answer to a text or pair."""

    predictions: list[LabelPrediction]
    """Most likely first."""
    tokens: int
    """Tokens that the model has read, special tokens included."""
    truncated: bool
    """Whether the text was cut to the model's limit."""


class FillMaskResponse(TypedDict):
    """One result per input, in the order of the inputs."""

    model: str
    """The checkpoint that answered."""
    results: list[FillMaskResult]


class LabelResponse(TypedDict):
    """One result per input, in the order of the inputs."""

    model: str
    """The checkpoint that answered."""
    results: list[LabelResult]


_SHAPES: list[Any] = [TokenPrediction, Mask, TextToken, FillMaskResult, LabelResult, FillMaskResponse, LabelResponse]
for _shape in _SHAPES:
    _shape.__pydantic_config__ = {"use_attribute_docstrings": True}  # for the OpenAPI document


def fill_mask_results(
    texts: Sequence[str], query: Query, answers: Sequence[Answer], tokenizer: Tokenizer
) -> Iterator[FillMaskResult]:
    """For each text, every mask with its predictions, each written into the caller's own text."""
    k = query.top_k
    for text, encoding, positions, words in zip(texts, query.encodings, query.masks, answers, strict=True):
        assert isinstance(words, Words)
        masks: list[Mask] = []
        for number, position in enumerate(positions):
            span, predictions = encoding.spans[position], list[TokenPrediction]()
            for i in range(number * k, (number + 1) * k):
                token_id = words.token_ids[i]
                token = tokenizer.token(token_id)
                predictions.append(
                    {
                        "score": words.scores[i],
                        "token": token_id,
                        "token_str": token,
                        "sequence": fill(text, span, token),
                    }
                )
            masks.append({"position": position, "predictions": predictions})
        yield {"masks": masks, "tokens": len(encoding), "truncated": encoding.truncated}


def fill(text: str, span: tuple[int, int], token: str) -> str:
    """A text with the mask at `span` replaced by a token; a `##` piece joins the word before it. The white space in
    the span, which some checkpoints count as a part of the mask, stays.

    >>> fill("I was walk [MASK] home", (11, 17), "##ing")
    'I was walking home'
    """
    mask = text[slice(*span)].strip()
    start = text.index(mask, span[0])
    before, after = text[:start], text[start + len(mask) :]
    if token.startswith("##") and len(token) > 2:
        return before.rstrip() + token[2:] + after
    return before + token + after


def label_results(
    labels: Sequence[str], query: Query, answers: Sequence[Answer], top_k: int | None = None
) -> Iterator[LabelResult]:
    """Labels with their scores, highest first."""
    by_score: Any = itemgetter(1)
    for encoding, scores in zip(query.encodings, answers, strict=True):
        assert isinstance(scores, list)
        ranked = sorted(zip(labels, scores, strict=True), key=by_score, reverse=True)[:top_k]
        predictions: list[LabelPrediction] = [{"label": label, "score": score} for label, score in ranked]
        yield {"predictions": predictions, "tokens": len(encoding), "truncated": encoding.truncated}


def text_tokens(text: str, encoding: Encoding, tokenizer: Tokenizer) -> list[TextToken]:
    """The tokens of one text with their places in it. The first and the last are [CLS] and [SEP]."""
    last = len(encoding) - 1
    tokens: list[TextToken] = []
    for i, (token_id, (start, stop)) in enumerate(zip(encoding.ids, encoding.spans, strict=True)):
        if i in (0, last):
            tokens.append(
                {"id": token_id, "text": tokenizer.token(token_id), "special": True, "start": None, "stop": None}
            )
        else:
            tokens.append({"id": token_id, "text": text[start:stop], "special": False, "start": start, "stop": stop})
    return tokens
