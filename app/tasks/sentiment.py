"""The classifier: `/sentiment`, and `/classify` for other labels."""

from __future__ import annotations

from pydantic import Field, StrictInt

from app.inference.contract import Head
from app.tasks.labels import LabelQuestion, LabelResponse, example_response
from app.tasks.schemas import MAX_TOP_K, Parameters, Strict, TextsOrPairs, with_examples
from app.tasks.task import Operation, Task


class SentimentParameters(Parameters):
    """Parameters of sentiment."""

    top_k: StrictInt | None = Field(None, ge=1, le=MAX_TOP_K, description="Labels to return. Default: all.")


class SentimentRequest(Strict):
    """Texts, or pairs such as a review's title and body."""

    model_config = with_examples(
        {"inputs": "The movie was good and I loved it."},
        {"inputs": ["A good film.", {"text": "Bad", "text_pair": "I did not like it."}], "parameters": {"top_k": 1}},
    )

    inputs: TextsOrPairs = Field(title="SentimentInputs", description="One text or pair, or many.")
    parameters: SentimentParameters | None = None


SENTIMENT = Task(
    name="sentiment",
    description="The labels of the loaded classifier with their probabilities.",
    operations=[
        Operation(
            "/sentiment", "Judge the sentiment of texts", example_response("sentiment", POSITIVE=0.98, NEGATIVE=0.02)
        ),
        Operation("/classify", "Classify texts", example_response("topics", sports=0.91, politics=0.09)),
    ],
    request=SentimentRequest,
    response=LabelResponse,
    head=Head.LABELS,
    inputs="either",
    question=LabelQuestion,
    hugging_face="text-classification",
)
