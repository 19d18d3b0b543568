"""Tasks whose results are labels with scores. Results are dicts, because making and writing dataclasses takes four
times as long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from app.errors import InvalidRequestError
from app.inference.contract import ModelOutput, Query, ServedModel
from app.tasks.schemas import Input, Reading, described
from app.tasks.task import PREDICTION_BYTES, Question, reading
from model.config import Truncation
from model.tokenizer import Encoding


class LabelPrediction(TypedDict):
    """A label and its score: a probability, the number of a regression, or a logit if raw scores were asked for."""

    label: str
    score: float


@described
class LabelResult(Reading):
    """The result of a text or pair."""

    predictions: list[LabelPrediction]
    """Most likely first."""


@described
class LabelResponse(TypedDict):
    """One result per input, in the order of the inputs."""

    model: str
    """The checkpoint that computed the results."""
    results: list[LabelResult]


def example_response(model: str, **scores: float) -> dict[str, Any]:
    """A response to one input, for the OpenAPI document."""
    predictions = [{"label": label, "score": score} for label, score in scores.items()]
    return {"model": model, "results": [{"predictions": predictions, "tokens": 11, "truncated": False}]}


@dataclass(slots=True)
class LabelQuestion(Question):
    """The labels of texts or pairs.

    Raises:
        InvalidRequestError: the checkpoint has another score function than `function_to_apply`, or, with `one_label`,
            several labels.
    """

    served: ServedModel
    inputs: Sequence[Input]
    labels: Sequence[str] = field(init=False)
    """Labels of the model's head."""
    top_k: int | None = None
    """Number of labels to return; by default all."""
    truncate: bool = False
    truncation: Truncation | None = None
    """See `Tokenizer.encode`; by default the checkpoint's."""
    function_to_apply: str | None = None
    """`none` for logits as scores, or the checkpoint's own score function."""
    one_label: bool = False
    spans = False
    split_advice = "lower top_k, or send fewer texts"

    def __post_init__(self) -> None:
        config, asked = self.served.config, self.function_to_apply
        if asked not in (None, "none") and asked != (computed := config.score_function):
            raise InvalidRequestError.at(
                f"the loaded checkpoint's scores are computed with {computed!r}, not {asked!r}; leave this out",
                *("parameters", "function_to_apply"),
            )
        self.labels = self.served.labels
        if self.one_label and len(self.labels) > 1:
            raise InvalidRequestError.at(f"the checkpoint must have one label for this, but has {len(self.labels)}")

    def encode(self, given: Input) -> Encoding:
        """Tokenize a text or pair."""
        text, text_pair = (given, None) if isinstance(given, str) else (given.text, given.text_pair)
        return self.served.tokenizer.encode(
            text,
            text_pair,
            max_length=self.served.config.max_position_embeddings,
            truncate=self.truncate,
            truncation=self.truncation or self.served.config.truncation,
            spans=self.spans,
        )

    def query(self, encodings: list[Encoding]) -> Query:
        """Ask for the scores or logits of the labels."""
        return Query(encodings, len(self.labels), self.function_to_apply == "none")

    def results(self, query: Query, outputs: Sequence[ModelOutput]) -> list[LabelResult]:
        """The labels of each input, highest score first."""
        by_score: Any = itemgetter(1)
        unk_id = self.served.tokenizer.unk_id
        results: list[LabelResult] = []
        for encoding, scores in zip(query.encodings, outputs, strict=True):
            ranked: Any = sorted(zip(self.labels, scores, strict=True), key=by_score, reverse=True)[: self.top_k]
            predictions: list[LabelPrediction] = [{"label": label, "score": score} for label, score in ranked]
            results.append({"predictions": predictions, **reading(encoding, unk_id)})
        return results

    def response_bytes(self, query: Query) -> int:
        """Estimate the bytes of the response from the number of labels."""
        longest = max(map(len, map(str.encode, self.labels)))
        return len(query.encodings) * len(self.labels[: self.top_k]) * (PREDICTION_BYTES + longest)
