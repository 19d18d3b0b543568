"""A backend's numbers into what a caller reads: pure functions."""

from __future__ import annotations

from app.inference.types import Answer, Query
from bert_client.wire import FillMaskResult, LabelPrediction, LabelResult, Mask, TextToken, TokenPrediction
from model.tokenizer import Encoding, Tokenizer

NEXT_SENTENCE_LABELS = ["IS_NEXT", "NOT_NEXT"]  # logit 0: the second follows (Devlin et al.)


def fill_mask_result(text: str, query: Query, answer: Answer, tokenizer: Tokenizer) -> FillMaskResult:
    """Every mask of a text with its predictions, each written into the caller's own text."""
    masks = []
    for position, scores, token_ids in zip(query.masks, answer.scores, answer.token_ids, strict=True):
        span = query.encoding.spans[position]
        predictions = []
        for score, token_id in zip(scores, token_ids, strict=True):
            token = tokenizer.token(token_id)
            predictions.append(TokenPrediction(score, token_id, token, fill(text, span, token)))
        masks.append(Mask(position, predictions))
    return FillMaskResult(masks, len(query.encoding), query.encoding.truncated)


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


def label_result(labels: list[str], query: Query, answer: Answer, top_k: int | None = None) -> LabelResult:
    """Labels with their scores, highest first."""
    predictions = [LabelPrediction(label, score) for label, score in zip(labels, answer.scores[0], strict=True)]
    predictions.sort(key=lambda prediction: -prediction.score)
    return LabelResult(predictions[:top_k], len(query.encoding), query.encoding.truncated)


def text_tokens(text: str, encoding: Encoding, tokenizer: Tokenizer) -> list[TextToken]:
    """The tokens of one text with their places in it. The first and the last are [CLS] and [SEP]."""
    first, *own, last = zip(encoding.input_ids, encoding.spans, strict=True)
    added = [TextToken(token_id, tokenizer.token(token_id), True, None, None) for token_id, _ in (first, last)]
    tokens = [TextToken(token_id, text[start:stop], False, start, stop) for token_id, (start, stop) in own]
    return [added[0], *tokens, added[1]]
