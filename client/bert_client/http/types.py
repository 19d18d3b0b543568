"""The types of what a caller gives to a client and gets from it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypedDict

from bert_client.errors import ProblemError
from bert_client.wire import FillMaskResult, LabelResult

Pair = tuple[str, str]
Input = str | Pair
MaskOutcome = FillMaskResult | ProblemError
LabelOutcome = LabelResult | ProblemError


class Options(TypedDict, total=False):
    """Keyword arguments of every task."""

    truncate: bool
    """Cut an input that is longer than the model's limit, instead of refusing it."""
    request_id: str | None
    """Sent as `X-Request-ID` with every request of this call."""


class SentimentOptions(Options, total=False):
    """Keyword arguments of `sentiment`."""

    top_k: int | None
    """Labels per input; default: all."""


class FillMaskOptions(Options, total=False):
    """Keyword arguments of `fill_mask`."""

    top_k: int | None
    """Predictions per mask; default: 5, or all of `targets`."""
    targets: Iterable[str] | None
    """Score these words only."""
