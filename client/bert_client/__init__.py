"""Clients of bert-service: typed results, requests of the right size, retries while the service is busy.

>>> with BertClient("http://127.0.0.1:8000") as client:
...     client.sentiment("A good film.").predictions[0].label
'POSITIVE'

`bert_client.wire` has the shapes of responses. Nothing here imports the service.
"""

from __future__ import annotations

from bert_client.errors import (
    BertServiceError,
    ConnectionFailedError,
    DeadlineExceededError,
    InvalidInputError,
    NoResponseError,
    ProblemError,
    TooBusyError,
    TooLargeError,
    UnauthorizedError,
    UnavailableError,
    UnexpectedAnswerError,
)
from bert_client.http.async_client import AsyncBertClient
from bert_client.http.client import BertClient
from bert_client.http.retry import RetryPolicy
from bert_client.results import FillMaskResult, LabelResult, Model
from bert_client.wire import LabelPrediction, Mask, TokenPrediction

__all__ = ["AsyncBertClient", "BertClient", "RetryPolicy"]
__all__ += ["FillMaskResult", "LabelPrediction", "LabelResult", "Mask", "Model", "TokenPrediction"]
__all__ += ["BertServiceError", "ConnectionFailedError", "ProblemError", "UnexpectedAnswerError"]
__all__ += ["DeadlineExceededError", "InvalidInputError", "TooBusyError", "TooLargeError", "UnauthorizedError"]
__all__ += ["NoResponseError", "UnavailableError"]
