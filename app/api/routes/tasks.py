"""The tasks: one handler and one entry of `ROUTES` for each. docs/architecture.md has the steps for a new one."""

from __future__ import annotations

from app.api.schemas import FillMaskRequest, NextSentenceRequest, SentimentRequest, as_list, given
from app.api.task_route import TaskRequest, TaskRoute
from app.inference.types import Task
from app.scheduling.engine import Reply
from app.scheduling.results import FillMaskResponse, FillMaskResult, LabelResponse, LabelResult


async def fill_mask(body: FillMaskRequest, request: TaskRequest) -> tuple[Reply[FillMaskResult], FillMaskResponse]:
    """The most probable words for each `[MASK]`, with their probability over the whole vocabulary."""
    reply = await request.fill_mask(as_list(body.inputs), **given(body.parameters))
    return reply, {"model": reply.model, "results": reply.results}


async def next_sentence(body: NextSentenceRequest, request: TaskRequest) -> tuple[Reply[LabelResult], LabelResponse]:
    """The probability that `text_pair` directly follows `text`."""
    pairs = as_list(body.inputs)
    reply = await request.labels(Task.NEXT_SENTENCE, pairs, **given(body.parameters))
    return reply, {"model": reply.model, "results": reply.results}


async def sentiment(body: SentimentRequest, request: TaskRequest) -> tuple[Reply[LabelResult], LabelResponse]:
    """The labels of the loaded classifier with their probabilities."""
    reply = await request.labels(Task.SENTIMENT, as_list(body.inputs), **given(body.parameters))
    return reply, {"model": reply.model, "results": reply.results}


_PREDICTION = {"score": 0.21, "token": 1523, "token_str": "good", "sequence": "The movie was good and I loved it."}
_MASKS = {"masks": [{"position": 4, "predictions": [_PREDICTION]}]}
_READ = {"tokens": 11, "truncated": False}


def _labels(model: str, **scores: float) -> dict[str, object]:
    """An example of a response with labels."""
    predictions = [{"label": label, "score": score} for label, score in scores.items()]
    return {"model": model, "results": [{"predictions": predictions} | _READ]}


ROUTES = [
    TaskRoute(
        "/fill-mask",
        fill_mask,
        task=Task.FILL_MASK,
        summary="Fill in masked words",
        response=FillMaskResponse,
        example={"model": "pretrained", "results": [_MASKS | _READ]},
    ),
    TaskRoute(
        "/next-sentence",
        next_sentence,
        task=Task.NEXT_SENTENCE,
        summary="Judge whether a text follows another",
        response=LabelResponse,
        example=_labels("pretrained", IS_NEXT=0.93, NOT_NEXT=0.07),
    ),
    TaskRoute(
        "/sentiment",
        sentiment,
        task=Task.SENTIMENT,
        summary="Judge the sentiment of texts",
        response=LabelResponse,
        example=_labels("sentiment", POSITIVE=0.98, NEGATIVE=0.02),
    ),
    TaskRoute(  # the same for other labels, such as topics
        "/classify",
        sentiment,
        task=Task.SENTIMENT,
        summary="Classify texts",
        response=LabelResponse,
        example=_labels("topics", sports=0.91, politics=0.09),
    ),
]
