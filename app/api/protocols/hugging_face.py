"""`POST /hf/*`: the shapes that `huggingface_hub.InferenceClient` and `@huggingface/inference` send and read."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field
from typing_extensions import TypeAliasType

from app.api.schemas import (
    ALSO_TRUNCATION,
    FillMaskParameters,
    FillMaskRequest,
    Parameters,
    SentimentParameters,
    SentimentRequest,
    Truncate,
    as_list,
    given,
    with_examples,
)
from app.api.task_route import TaskRequest, TaskRoute
from app.errors import InvalidRequestError
from app.inference.types import Task
from app.scheduling.engine import Engine, Reply
from app.scheduling.results import FillMaskResult, LabelPrediction, LabelResult, TokenPrediction

TAG = {"name": "Hugging Face clients", "description": "The same tasks in the shapes of Hugging Face's clients."}

# The clients omit fields or send null, and older ones add `options`.
Ignored = Annotated[dict[str, Any] | None, AfterValidator(lambda _: None)]
"""Dropped, since it would take memory while the request waits: up to 50 MB for a body of 2 MB."""
TruncateByDefault = Annotated[
    Truncate,
    ALSO_TRUNCATION,
    Field(description="Cut an input that is longer than the model's limit instead of refusing it. Default: true."),
]
"""`InferenceClient` has no parameter for it, and cannot split a review."""


class HuggingFaceFillMaskParameters(FillMaskParameters):
    """Parameters of fill-mask."""

    truncate: TruncateByDefault = None


class HuggingFaceFillMaskRequest(FillMaskRequest):
    """What `InferenceClient.fill_mask` sends."""

    model_config = with_examples({"inputs": "The movie was [MASK].", "parameters": {"top_k": 3}})

    parameters: HuggingFaceFillMaskParameters | None = None
    options: Ignored = Field(None, description="Ignored.")


class HuggingFaceClassificationParameters(SentimentParameters):
    """Parameters of text-classification."""

    truncate: TruncateByDefault = None
    function_to_apply: Literal["softmax", "sigmoid", "none"] | None = Field(
        None,
        description="`none` for logits, or what the loaded checkpoint computes its scores with; another function is "
        "refused.",
    )


class HuggingFaceClassificationRequest(SentimentRequest):
    """What `InferenceClient.text_classification` sends."""

    model_config = with_examples({"inputs": "The movie was good."})

    parameters: HuggingFaceClassificationParameters | None = None
    options: Ignored = Field(None, description="Ignored.")


HuggingFaceTokens = TypeAliasType(
    "HuggingFaceTokens",
    list[TokenPrediction] | list[list[TokenPrediction] | list[list[TokenPrediction]]],  # by the masks of each
)


async def fill_mask(body: HuggingFaceFillMaskRequest, request: TaskRequest) -> tuple[Reply[FillMaskResult], Any]:
    """The predictions for the one mask of one text. Several masks and several texts add a level of lists each."""
    reply = await request.fill_mask(as_list(body.inputs), **_given(body.parameters))
    rows = [[mask["predictions"] for mask in result["masks"]] for result in reply.results]
    shapes: list[Any] = [row[0] if len(row) == 1 else row for row in rows]
    return reply, shapes if isinstance(body.inputs, list) else shapes[0]


async def text_classification(
    body: HuggingFaceClassificationRequest, request: TaskRequest
) -> tuple[Reply[LabelResult], Any]:
    """One list of labels per text, highest score first; also for a single text, because the clients read that."""
    parameters = _given(body.parameters)
    function = parameters.pop("function_to_apply", None)
    if function not in (None, "none"):
        _check_function(request.engine, function)
    parameters["raw_scores"] = function == "none"
    reply = await request.labels(Task.SENTIMENT, as_list(body.inputs), **parameters)
    return reply, [result["predictions"] for result in reply.results]


def _given(parameters: Parameters | None) -> dict[str, Any]:
    return {"truncate": True} | given(parameters)


def _check_function(engine: Engine, asked: str) -> None:
    """Refuse a `function_to_apply` that the served checkpoint does not compute."""
    with engine.lifecycle.encoder_for(Task.SENTIMENT) as (_, served):
        if (computed := served.config.score_function) != asked:
            message = f"the loaded checkpoint's scores are computed with {computed!r}, not {asked!r}; leave this out"
            raise InvalidRequestError.at(message, "parameters", "function_to_apply")


_TOKEN = {"score": 0.21, "token": 1523, "token_str": "good", "sequence": "The movie was good."}
_LABELS = [{"label": "POSITIVE", "score": 0.98}, {"label": "NEGATIVE", "score": 0.02}]

ROUTES = [
    TaskRoute(
        "/hf/fill-mask",
        fill_mask,
        task=Task.FILL_MASK,
        summary="InferenceClient.fill_mask",
        response=HuggingFaceTokens,
        example=[_TOKEN],
        tag=TAG["name"],
    ),
    TaskRoute(
        "/hf/text-classification",
        text_classification,
        task=Task.SENTIMENT,
        summary="InferenceClient.text_classification",
        response=list[list[LabelPrediction]],
        example=[_LABELS],
        tag=TAG["name"],
    ),
]
