"""The response bodies, or parts of them, that the client reads. A test compares them with `docs/openapi.json`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field


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
    """A label and its score: a probability; the number, of a regression; a logit, if raw scores were asked for."""

    label: str
    score: float


@dataclass(frozen=True, slots=True)
class FillMaskResult:
    """The result of a text."""

    masks: list[Mask]
    """One entry per `[MASK]`, in order."""
    tokens: int
    """Tokens that the model has read, special tokens included."""
    truncated: bool
    """Whether the text was cut to the model's limit."""
    unknown_tokens: int = field(default=0, kw_only=True)
    """Number of tokens that are [UNK], if most of the text is unknown: the result says little about it. Otherwise 0."""


@dataclass(frozen=True, slots=True)
class LabelResult:
    """The result of a text or pair."""

    predictions: list[LabelPrediction]
    """Most likely first."""
    tokens: int
    """Tokens that the model has read, special tokens included."""
    truncated: bool
    """Whether the text was cut to the model's limit."""
    unknown_tokens: int = field(default=0, kw_only=True)
    """Number of tokens that are [UNK], if most of the text is unknown: the result says little about it. Otherwise 0."""


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


_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")


def is_valid_request_id(request_id: str) -> bool:
    """Whether the service keeps a caller's `X-Request-ID`, because it is harmless in headers and logs."""
    return _REQUEST_ID.fullmatch(request_id) is not None
