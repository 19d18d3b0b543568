"""Clients of the service: typed answers, batches of the right size, patience with a busy server.

>>> with BertClient("http://127.0.0.1:8000") as client:
...     client.sentiment("A good film.").predictions[0].label
'POSITIVE'

Needs httpx and nothing else of what serving needs. In a checkout:
`pip install httpx ./client && pip install --no-deps .`
"""

from __future__ import annotations

from app.client.aio import AsyncBertClient
from app.client.errors import (
    BertServiceError,
    ConnectionFailedError,
    DeadlineExceededError,
    InvalidInputError,
    ProblemError,
    TooBusyError,
    TooLargeError,
    UnauthorizedError,
    UnavailableError,
    UnexpectedAnswerError,
)
from app.client.retry import RetryPolicy
from app.client.sync import BertClient
from app.responses import FillMaskResult, LabelPrediction, LabelResult, Mask, TokenPrediction

__all__ = [
    "AsyncBertClient",
    "BertClient",
    "BertServiceError",
    "ConnectionFailedError",
    "DeadlineExceededError",
    "FillMaskResult",
    "InvalidInputError",
    "LabelPrediction",
    "LabelResult",
    "Mask",
    "ProblemError",
    "RetryPolicy",
    "TokenPrediction",
    "TooBusyError",
    "TooLargeError",
    "UnauthorizedError",
    "UnavailableError",
    "UnexpectedAnswerError",
]
