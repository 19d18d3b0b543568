"""`POST /predict` and `/tokenize` as text-embeddings-inference has them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, StrictBool, Tag
from pydantic.json_schema import SkipJsonSchema
from typing_extensions import TypeAliasType

from app.api.schemas import ALSO_TRUNCATION, Items, OneOrMany, Strict, Truncate, as_list, with_examples
from app.api.task_route import TaskRequest, TaskRoute, check_inputs, parse
from app.errors import InferenceError, InvalidInputError, Loc
from app.inference.types import Task
from app.scheduling.engine import Reply
from app.scheduling.results import LabelPrediction, LabelResult, TextToken
from app.scheduling.tokenization import TextPair
from model.errors import TextTooLongError

TAG = {"name": "text-embeddings-inference", "description": "Classification and tokens in its shapes."}

_KEPT_ENDS = {None: None, "right": "head", "left": "tail"}

TextList = TypeAliasType("TextList", Annotated[list[str], Field(min_length=1, max_length=2, fail_fast=True)])


def _kind(value: object) -> str | None:
    """A list whose first item is a list is a batch; a list of one or two texts is one input."""
    if isinstance(value, list) and value:
        return "many" if isinstance(value[0], list) else "pair" if len(value) <= 2 else None
    return "string" if isinstance(value, str) else None


def _lower(value: object) -> object:
    """Ignores case: the clients of text-embeddings-inference send `Left`."""
    return value.lower() if isinstance(value, str) else value


PredictInputs = TypeAliasType(
    "PredictInputs",
    Annotated[
        Annotated[str, Tag("string")]
        | Annotated[TextList, Tag("pair")]
        | Annotated[Items[TextList], Field(min_length=1), Tag("many")],
        Discriminator(
            _kind,
            custom_error_type="inputs",
            custom_error_message="Input should be a text, [text, text] for one pair, or a batch, "
            "[[text] or [text, text], ...]",
        ),
    ],
)


class PredictRequest(Strict):
    """One text, one pair, or many of both."""

    model_config = with_examples(
        {"inputs": "The movie was good."},
        {"inputs": ["A good film", "I loved it."]},
        {"inputs": [["I loved it."], ["A good film", "I loved it."]], "truncate": True},
    )

    inputs: PredictInputs = Field(
        description="A text; `[text, text]`, which is one pair; or a batch, `[[text] or [text, text], ...]`."
    )
    truncate: Annotated[Truncate, ALSO_TRUNCATION] = None
    truncation_direction: Annotated[Literal["left", "right"] | None, BeforeValidator(_lower)] = Field(
        None, description="The end of a text at which it is cut. Default: as the loaded checkpoint says."
    )
    raw_scores: StrictBool | None = Field(None, description="Answer with logits instead of probabilities.")


class TokenizeRequest(Strict):
    """One text or many."""

    model_config = with_examples({"inputs": "The movie was good.", "add_special_tokens": False})

    inputs: OneOrMany[str] = Field(title="TokenizeInputs", description="One text or many.")
    add_special_tokens: StrictBool | None = Field(None, description="Include `[CLS]` and `[SEP]`. Default: true.")
    prompt_name: SkipJsonSchema[None] = None  # the model has no prompts; generators know no field that is only null


PredictResponse = TypeAliasType("PredictResponse", list[LabelPrediction] | list[list[LabelPrediction]])


def _parse(body: bytes, request: TaskRequest) -> PredictRequest:
    return parse(PredictRequest, body, max(request.settings.max_client_batch, 2))  # a pair is a list of two


async def predict(body: PredictRequest, request: TaskRequest) -> tuple[Reply[LabelResult], Any]:
    """The labels of one text or pair, highest score first; of a batch, a list of such lists."""
    is_batch = isinstance(body.inputs, list) and isinstance(body.inputs[0], list)
    rows: list[Any] = as_list(body.inputs) if is_batch else [as_list(body.inputs)]
    check_inputs(len(rows), request.settings.max_client_batch)
    try:
        reply = await request.labels(
            Task.SENTIMENT,
            [TextPair(*row) if len(row) == 2 else row[0] for row in rows],
            truncate=bool(body.truncate),
            truncation=_KEPT_ENDS[body.truncation_direction],
            raw_scores=bool(body.raw_scores),
        )
    except InvalidInputError as error:
        raise InvalidInputError([_own_fault(fault, loc, is_batch) for fault, loc in error.faults]) from None
    except InferenceError as error:
        error.relocate(lambda loc: loc if is_batch else ("inputs",))
        raise
    predictions = [result["predictions"] for result in reply.results]
    return reply, predictions if is_batch else predictions[0]


def _own_fault(fault: Exception, loc: Loc, is_batch: bool) -> tuple[Exception, Loc]:
    """A fault with the option and the path that this request has."""
    if isinstance(fault, TextTooLongError):
        fault = fault.with_option("truncate")
    _, row, *half = loc
    return fault, ("inputs", *([row] if is_batch else []), *(["text", "text_pair"].index(str(name)) for name in half))


async def tokenize(body: TokenizeRequest, request: TaskRequest) -> tuple[Reply[list[TextToken]], Any]:
    """The tokens of each text, as the sentiment model reads them, with their places in characters."""
    reply = await request.engine.tokenize(as_list(body.inputs), deadline=request.deadline, held=request.held)
    return reply, [tokens[1:-1] for tokens in reply.results] if body.add_special_tokens is False else reply.results


ROUTES = [
    TaskRoute(
        "/predict",
        predict,
        task=Task.SENTIMENT,
        summary="Classify texts",
        response=PredictResponse,
        example=[{"label": "POSITIVE", "score": 0.98}, {"label": "NEGATIVE", "score": 0.02}],
        tag=TAG["name"],
        parser=_parse,
    ),
    TaskRoute(
        "/tokenize",
        tokenize,
        task="tokenize",
        summary="Tokenize texts",
        response=list[list[TextToken]],
        example=[[{"id": 1509, "text": "movie", "special": False, "start": 4, "stop": 9}]],
        tag=TAG["name"],
    ),
]
