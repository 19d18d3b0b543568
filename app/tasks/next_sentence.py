"""Next-sentence: whether a text directly follows another."""

from __future__ import annotations

from pydantic import Field

from app.inference.contract import Head
from app.tasks.labels import LabelQuestion, LabelResponse, example_response
from app.tasks.schemas import OneOrMany, Parameters, Strict, TextPair, with_examples
from app.tasks.task import Operation, Task


class NextSentenceRequest(Strict):
    """Pairs of texts, of which the second may follow the first."""

    model_config = with_examples({"inputs": {"text": "I went to the cinema.", "text_pair": "The film was good."}})

    inputs: OneOrMany[TextPair] = Field(title="NextSentenceInputs", description="One pair or many.")
    parameters: Parameters | None = None


NEXT_SENTENCE = Task(
    name="next-sentence",
    description="The probability that `text_pair` directly follows `text`.",
    operations=[
        Operation(
            "/next-sentence",
            "Judge whether a text follows another",
            example_response("pretrained", IS_NEXT=0.93, NOT_NEXT=0.07),
        )
    ],
    request=NextSentenceRequest,
    response=LabelResponse,
    head=Head.NEXT_SENTENCE,
    inputs="pair",
    question=LabelQuestion,
)
