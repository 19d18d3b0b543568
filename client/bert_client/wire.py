"""The response bodies, or parts of them, that the client reads. A test compares them with `docs/openapi.json`."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TokenPrediction:
    """A token that may stand in place of a mask."""

    score: float
    """Its probability over the whole vocabulary."""
    token: int
    """Its index in the vocabulary."""
    token_str: str
    """Spelling in the vocabulary. A piece that joins the word before it begins with `##`."""
    sequence: str
    """The text with this one mask replaced."""


@dataclass(frozen=True, slots=True)
class Mask:
    """A mask of a text, and its predictions, most likely first."""

    position: int
    """Index of its token; [CLS] has 0."""
    predictions: list[TokenPrediction]


@dataclass(frozen=True, slots=True)
class LabelPrediction:
    """A label and its score: a probability, the number of a regression, or a logit if raw scores were requested."""

    label: str
    score: float


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a request: on its size (beyond it, the response is 413 or 429), and on its time (504)."""

    max_batch_tokens: int
    """Tokens of one forward pass: as set, or derived from the measured speed."""
    max_queue_tokens: int
    """Tokens that may wait ahead of a request, its own included, if they can be computed before the deadline."""
    max_client_batch: int
    """Maximum number of inputs in one request."""
    max_body_bytes: int
    request_timeout_ms: int


@dataclass(frozen=True, slots=True)
class FieldProblem:
    """A fault and its place in the body."""

    message: str
    loc: list[str | int]
    """Fields and indices from the body's root, such as `["inputs", 3]`; of a header, `["header", "…"]`."""


REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")
"""Request ids that the service takes from a caller, because they are harmless in headers and logs."""
