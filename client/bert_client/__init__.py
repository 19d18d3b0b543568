"""Clients of bert-service: typed answers, requests of the right size, retries while the service is busy.

>>> with BertClient("http://127.0.0.1:8000") as client:
...     client.sentiment("A good film.").predictions[0].label
'POSITIVE'

`bert_client.tables` reads tables; `bert_client.wire` has the shapes of answers. Nothing here imports the service.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bert_client.errors import (
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
    from bert_client.http.async_client import AsyncBertClient
    from bert_client.http.client import BertClient
    from bert_client.http.retry import RetryPolicy
    from bert_client.wire import FillMaskResult, LabelPrediction, LabelResult, Mask, TokenPrediction

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

_MODULES = {"AsyncBertClient": "http.async_client", "BertClient": "http.client", "RetryPolicy": "http.retry"}
_MODULES |= dict.fromkeys(("FillMaskResult", "LabelPrediction", "LabelResult", "Mask", "TokenPrediction"), "wire")


def __getattr__(name: str) -> Any:
    """Import a name at its first use, because the readers of tables and of answers need no HTTP library."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES.get(name, 'errors')}"), name)
