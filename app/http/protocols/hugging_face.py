"""`POST /hf/*`: the shapes that `huggingface_hub.InferenceClient` and `@huggingface/inference` send and read."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field
from typing_extensions import TypeAliasType

from app.http.handle import Call, TaskRoute
from app.http.native import as_sent, locate_one
from app.inference.contract import Head
from app.tasks.fill_mask import FillMaskParameters, FillMaskRequest, TokenPrediction
from app.tasks.labels import LabelPrediction
from app.tasks.schemas import ALSO_TRUNCATION, Parameters, Truncate, as_list, given, with_examples
from app.tasks.sentiment import SentimentParameters, SentimentRequest
from app.tasks.task import Task, TaskResult

TAG = {"name": "Hugging Face clients", "description": "The same tasks in the shapes of Hugging Face's clients."}

# The clients omit fields or send null, and older ones add `options`.
Ignored = Annotated[dict[str, Any] | None, AfterValidator(lambda _: None)]
"""Dropped while parsing: a body of 2 MB would take up to 50 MB of memory while the request waits."""
TruncateByDefault = Annotated[
    Truncate,
    ALSO_TRUNCATION,
    Field(description="Cut an input that is longer than the model's limit instead of refusing it. Default: true."),
]
"""True by default, because `InferenceClient` has no parameter for it and cannot split a long text."""


class HuggingFaceFillMaskParameters(FillMaskParameters):
    """Parameters of fill-mask."""

    truncate: TruncateByDefault = None


class HuggingFaceFillMaskRequest(FillMaskRequest):
    """The body that `InferenceClient.fill_mask` sends."""

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
    """The body that `InferenceClient.text_classification` sends."""

    model_config = with_examples({"inputs": "The movie was good."})

    parameters: HuggingFaceClassificationParameters | None = None
    options: Ignored = Field(None, description="Ignored.")


HuggingFaceTokens = TypeAliasType(
    "HuggingFaceTokens",
    list[TokenPrediction] | list[list[TokenPrediction] | list[list[TokenPrediction]]],  # see `fill_mask`
)


def fill_mask(task: Task, body: HuggingFaceFillMaskRequest) -> Call:
    """Predictions for the one mask of one text. Several masks and several texts each add a level of lists."""
    is_list, texts = isinstance(body.inputs, list), list[str](as_list(body.inputs))

    def write(result: TaskResult) -> Any:
        rows = [[mask["predictions"] for mask in found["masks"]] for found in result.results]
        shapes: list[Any] = [row[0] if len(row) == 1 else row for row in rows]
        return shapes if is_list else shapes[0]

    return Call(texts, _given(task, body.parameters), write, as_sent if is_list else locate_one)


def text_classification(task: Task, body: HuggingFaceClassificationRequest) -> Call:
    """One list of labels per text, highest score first. Clients expect this list for a single text too."""
    is_list = isinstance(body.inputs, list)
    return Call(as_list(body.inputs), _given(task, body.parameters), predictions, as_sent if is_list else locate_one)


def predictions(result: TaskResult) -> list[Any]:
    """The labels of each input."""
    return [found["predictions"] for found in result.results]


def _given(task: Task, parameters: Parameters | None) -> dict[str, Any]:
    return {"truncate": True} | given(parameters, [*task.parameters, "function_to_apply"])


_TOKEN = {"score": 0.21, "token": 1523, "token_str": "good", "sequence": "The movie was good."}
_LABELS = [{"label": "POSITIVE", "score": 0.98}, {"label": "NEGATIVE", "score": 0.02}]


def routes(tasks: Sequence[Task]) -> list[TaskRoute]:
    """A route for each task that takes single texts."""
    return [_route(task) for task in tasks if task.inputs != "pair"]


def _route(task: Task) -> TaskRoute:
    words: Any = (fill_mask, HuggingFaceFillMaskRequest, HuggingFaceTokens, [_TOKEN])
    labels: Any = (text_classification, HuggingFaceClassificationRequest, list[list[LabelPrediction]], [_LABELS])
    to_call, request, response, example = words if task.head is Head.WORDS else labels
    method = task.hugging_face.replace("-", "_")
    return TaskRoute(
        f"/hf/{task.hugging_face or task.name}",
        task,
        partial(to_call, task),
        request=request,
        response=response,
        example=example,
        summary=f"InferenceClient.{method}" if method else task.operations[0].summary,
        description=to_call.__doc__,
        tag=TAG["name"],
    )
