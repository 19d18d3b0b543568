"""`POST /predict`, `/rerank` and `/tokenize` with the request and response bodies of text-embeddings-inference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Annotated, Any, Literal, NotRequired

from pydantic import BeforeValidator, Discriminator, Field, StrictBool, Tag
from pydantic.json_schema import SkipJsonSchema
from typing_extensions import TypeAliasType, TypedDict

from app.batching.admission import CHARACTERS_PER_TOKEN
from app.errors import Loc, TooLargeError
from app.http.handle import MAX_RESPONSE_BYTES, Call, TaskRoute
from app.http.native import as_sent, locate_one
from app.http.protocols.hugging_face import predictions
from app.inference.contract import ModelOutput, Query, ServedModel
from app.tasks.labels import LabelPrediction
from app.tasks.schemas import (
    ALSO_TRUNCATION,
    Input,
    Items,
    OneOrMany,
    Strict,
    TextPair,
    Truncate,
    as_list,
    described,
    with_examples,
)
from app.tasks.task import PREDICTION_BYTES, Question, Task, TaskResult
from model.config import Truncation
from model.tokenizer import Encoding

TAG = {"name": "text-embeddings-inference", "description": "Classification and tokens in its shapes."}

_KEPT_ENDS: dict[str | None, Truncation | None] = {None: None, "right": "head", "left": "tail"}

TextList = TypeAliasType("TextList", Annotated[list[str], Field(min_length=1, max_length=2, fail_fast=True)])


def _kind(value: object) -> str | None:
    """A list whose first item is a list is a batch; a list of one or two texts is one input."""
    if isinstance(value, list) and value:
        return "many" if isinstance(value[0], list) else "pair" if len(value) <= 2 else None
    return "string" if isinstance(value, str) else None


def _lower(value: object) -> object:
    """Ignore case: the clients of text-embeddings-inference send `Left`."""
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


class ScoreRequest(Strict):
    """How texts are cut and scored."""

    truncate: Annotated[Truncate, ALSO_TRUNCATION] = None
    truncation_direction: Annotated[Literal["left", "right"] | None, BeforeValidator(_lower)] = Field(
        None, description="The end of a text at which it is cut. Default: as the loaded checkpoint says."
    )
    raw_scores: StrictBool | None = Field(None, description="Answer with logits instead of probabilities.")


class PredictRequest(ScoreRequest):
    """One text, one pair, or many of both."""

    model_config = with_examples(
        {"inputs": "The movie was good."},
        {"inputs": ["A good film", "I loved it."]},
        {"inputs": [["I loved it."], ["A good film", "I loved it."]], "truncate": True},
    )

    inputs: PredictInputs = Field(
        description="A text; `[text, text]`, which is one pair; or a batch, `[[text] or [text, text], ...]`."
    )


class RerankRequest(ScoreRequest):
    """A query, and the texts to sort by how well they match it."""

    model_config = with_examples({"query": "a film for children", "texts": ["It broke.", "My son loved the film."]})

    query: str
    texts: Items[str] = Field(min_length=1)
    return_text: StrictBool | None = Field(None, description="Repeat each text in the answer. Default: false.")


class TokenizeRequest(Strict):
    """One text or many."""

    model_config = with_examples({"inputs": "The movie was good.", "add_special_tokens": False})

    inputs: OneOrMany[str] = Field(title="TokenizeInputs", description="One text or many.")
    add_special_tokens: StrictBool | None = Field(None, description="Include `[CLS]` and `[SEP]`. Default: true.")
    prompt_name: SkipJsonSchema[None] = None  # the model has no prompts; generators know no field that is only null


@described
class Rank(TypedDict):
    """How well a text matches the query."""

    index: int
    """Index of the text in the request."""
    score: float
    """The sigmoid of the checkpoint's only logit, or with `raw_scores` the logit."""
    text: NotRequired[str]


PredictResponse = TypeAliasType("PredictResponse", list[LabelPrediction] | list[list[LabelPrediction]])


@described
class TextToken(TypedDict):
    """A token of a text."""

    id: int
    """Its index in the vocabulary."""
    text: str
    """The part of the text that it stands for; for `[CLS]` and `[SEP]`, their names."""
    special: bool
    """Whether it was added to the text."""
    start: int | None
    """Index of its first character in the text; null if it was added."""
    stop: int | None
    """Index after its last character; null if it was added."""


def _truncation(body: ScoreRequest) -> dict[str, Any]:
    """Arguments of `LabelQuestion`."""
    return {"truncate": bool(body.truncate), "truncation": _KEPT_ENDS[body.truncation_direction]}


def predict(body: PredictRequest) -> Call:
    """The labels of one text or pair, highest score first. A batch gets a list of such lists."""
    is_batch = isinstance(body.inputs, list) and isinstance(body.inputs[0], list)
    rows: list[Any] = as_list(body.inputs) if is_batch else [as_list(body.inputs)]

    def locate(loc: Loc) -> Loc:
        _, row, *half = loc
        return ("inputs", *([row] if is_batch else []), *(["text", "text_pair"].index(str(x)) for x in half))

    return Call(
        [TextPair(*row) if len(row) == 2 else row[0] for row in rows],
        _truncation(body) | {"function_to_apply": "none" if body.raw_scores else None},
        predictions if is_batch else lambda result: predictions(result)[0],
        locate,
    )


def rerank(body: RerankRequest) -> Call:
    """The texts by how well they match the query, best first. Needs a checkpoint with one label."""

    def write(result: TaskResult) -> list[Rank]:
        logits = [found["score"] for (found,) in predictions(result)]
        scores = logits if body.raw_scores else [(1 + math.tanh(logit / 2)) / 2 for logit in logits]  # the sigmoid
        ranks: list[Rank] = [{"index": index, "score": score} for index, score in enumerate(scores)]
        for rank in ranks if body.return_text else ():
            rank["text"] = body.texts[rank["index"]]
        return sorted(ranks, key=itemgetter("score"), reverse=True)

    return Call(
        [TextPair(body.query, text) for text in body.texts],
        _truncation(body) | {"function_to_apply": "none", "one_label": True},
        write,
        lambda loc: ("query",) if "text" in loc else ("texts", *loc[1:2]),
    )


def tokenize(body: TokenizeRequest) -> Call:
    """The tokens of each text for the sentiment model, with their positions in characters."""
    is_list = isinstance(body.inputs, list)
    texts: list[str] = as_list(body.inputs)
    keep = slice(1, -1) if body.add_special_tokens is False else slice(None)

    def write(result: TaskResult) -> list[list[TextToken]]:
        return [tokens[keep] for tokens in result.results]

    return Call(texts, {}, write, as_sent if is_list else locate_one)


@dataclass(slots=True)
class TokenizeQuestion(Question):
    """The tokens of whole texts.

    Raises:
        TooLargeError: the texts are so long that the response could be too large.
    """

    served: ServedModel
    inputs: Sequence[Input]
    split_advice = "send fewer or shorter texts"
    needs_model = False

    def __post_init__(self) -> None:
        size = sum(len(str(text)) for text in self.inputs)
        if size > (most := MAX_RESPONSE_BYTES // PREDICTION_BYTES * CHARACTERS_PER_TOKEN):
            raise TooLargeError(f"the texts have {size} characters, a request may have {most}; {self.split_advice}")

    def encode(self, given: Input) -> Encoding:
        """Tokenize a whole text."""
        return self.served.tokenizer.encode(str(given))

    def query(self, encodings: list[Encoding]) -> Query:
        """Keep the tokens; no model reads them."""
        return Query(encodings)

    def response_bytes(self, query: Query) -> int:
        """Estimate the bytes of the response from the tokens."""
        return sum(query.lengths) * PREDICTION_BYTES

    def results(self, query: Query, _: Sequence[ModelOutput]) -> list[list[TextToken]]:
        """The tokens of each text. The first and the last token are [CLS] and [SEP]."""
        results: list[list[TextToken]] = []
        for text, encoding in zip(map(str, self.inputs), query.encodings, strict=True):
            tokens: list[TextToken] = [
                {"id": token_id, "text": text[start:stop], "special": False, "start": start, "stop": stop}
                for token_id, (start, stop) in zip(encoding.ids, encoding.spans, strict=True)
            ]
            for token in (tokens[0], tokens[-1]):
                name = self.served.tokenizer.token(token["id"])
                token.update({"text": name, "special": True, "start": None, "stop": None})
            results.append(tokens)
        return results


def routes(tasks: Sequence[Task]) -> list[TaskRoute]:
    """`/predict` for the first task that takes texts and pairs, `/rerank` and `/tokenize`."""
    classifier = next(task for task in tasks if task.inputs == "either")
    return [
        TaskRoute(
            "/predict",
            classifier,
            predict,
            request=PredictRequest,
            response=PredictResponse,
            example=[{"label": "POSITIVE", "score": 0.98}, {"label": "NEGATIVE", "score": 0.02}],
            summary="Classify texts",
            tag=TAG["name"],
        ),
        TaskRoute(
            "/rerank",
            replace(classifier, name="rerank"),
            rerank,
            request=RerankRequest,
            response=list[Rank],
            example=[{"index": 1, "score": 0.93}, {"index": 0, "score": 0.02}],
            summary="Sort texts by a query",
            tag=TAG["name"],
        ),
        TaskRoute(
            "/tokenize",
            replace(classifier, name="tokenize", request=TokenizeRequest, question=TokenizeQuestion),
            tokenize,
            request=TokenizeRequest,
            response=list[list[TextToken]],
            example=[[{"id": 1509, "text": "movie", "special": False, "start": 4, "stop": 9}]],
            summary="Tokenize texts",
            tag=TAG["name"],
        ),
    ]
