"""A task that the service does not have: the labels of the classifier, as topics."""

from __future__ import annotations

from app.inference.contract import Head
from app.tasks.labels import LabelQuestion, LabelResponse, example_response
from app.tasks.sentiment import SentimentRequest
from app.tasks.task import Operation, Task

TOPICS = Task(
    name="topics",
    description="The topics of texts.",
    operations=[
        Operation("/topics", "Find the topics of texts", example_response("topics", sports=0.91, politics=0.09))
    ],
    request=SentimentRequest,
    response=LabelResponse,
    head=Head.LABELS,
    inputs="either",
    question=LabelQuestion,
)
