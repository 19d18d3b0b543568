"""Response bodies: the service writes them, the client reads them.

Plain dataclasses, nothing is validated twice; the standard library only, since the client needs no more.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

# Read by pydantic, which need not be installed here: the docstrings below stand in the OpenAPI document.
_DOCUMENTED = {"use_attribute_docstrings": True}


@dataclass(frozen=True, slots=True)
class TokenPrediction:
    """One token that may stand for a mask."""

    __pydantic_config__ = _DOCUMENTED

    score: float
    """Its probability over the whole vocabulary."""
    token: int
    """Its number in the vocabulary."""
    token_str: str
    """As the vocabulary writes it; `##` begins a piece that joins the word before it."""
    sequence: str
    """The text with this one mask replaced."""


@dataclass(frozen=True, slots=True)
class Mask:
    """One mask of a text and what may stand there, likeliest first."""

    __pydantic_config__ = _DOCUMENTED

    position: int
    """Index of its token; [CLS] has 0."""
    predictions: list[TokenPrediction]


@dataclass(frozen=True, slots=True)
class LabelPrediction:
    """One label and its score: a probability, or for a regression the number."""

    label: str
    score: float


@dataclass(frozen=True, slots=True)
class FillMaskResult:
    """The answer to one text."""

    __pydantic_config__ = _DOCUMENTED

    masks: list[Mask]
    """One entry per `[MASK]`, in order."""
    tokens: int
    """Tokens that were read, special tokens included."""
    truncated: bool
    """Whether the text was cut to the model's limit."""


@dataclass(frozen=True, slots=True)
class LabelResult:
    """The answer to one text or pair."""

    __pydantic_config__ = _DOCUMENTED

    predictions: list[LabelPrediction]
    """Likeliest first."""
    tokens: int
    """Tokens that were read, special tokens included."""
    truncated: bool
    """Whether the text was cut to the model's limit."""


@dataclass(frozen=True, slots=True)
class FillMaskResponse:
    """One result per input, in the order of the inputs."""

    __pydantic_config__ = _DOCUMENTED

    model: str
    """The checkpoint that answered."""
    results: list[FillMaskResult]


@dataclass(frozen=True, slots=True)
class LabelResponse:
    """One result per input, in the order of the inputs."""

    __pydantic_config__ = _DOCUMENTED

    model: str
    """The checkpoint that answered."""
    results: list[LabelResult]


Status = Literal["loading", "ready", "stalled", "draining", "broken"]


@dataclass(frozen=True, slots=True)
class Health:
    """How the service is."""

    status: Literal["alive", "ready"]


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """One loaded checkpoint."""

    __pydantic_config__ = _DOCUMENTED

    name: str
    tasks: list[str]
    """Of fill-mask, next-sentence and sentiment, those that it answers."""
    parameters: int
    layers: int
    hidden_size: int
    heads: int
    vocab_size: int
    max_tokens: int
    """Tokens of one input, special tokens included; a longer one is refused or cut."""
    labels: list[str] | None
    """Of sentiment, in the order of their ids."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a request may ask, beyond which the answer is 413 or 429; and how long it may take, else 504."""

    __pydantic_config__ = _DOCUMENTED

    max_batch_tokens: int
    """Tokens that one forward pass computes together: set, or from the measured speed."""
    max_queue_tokens: int
    """Tokens that may wait, of all requests, if they can be computed before the deadline."""
    max_client_batch: int
    """Inputs of one request."""
    max_body_bytes: int
    request_timeout_ms: int


@dataclass(frozen=True, slots=True)
class Info:
    """The service and what it has loaded."""

    __pydantic_config__ = _DOCUMENTED

    version: str
    status: Status
    device: str
    dtype: str
    threads: int
    """CPU cores that compute."""
    tokens_per_second: int
    """Of full batches: measured at start-up, then by what is asked. 0 while loading."""
    models: list[ModelInfo]
    """Empty while they are loading."""
    limits: Limits


@dataclass(frozen=True, slots=True)
class FieldProblem:
    """One fault and where in the body it lies."""

    __pydantic_config__ = _DOCUMENTED

    message: str
    loc: list[str | int]
    """Fields and indices from the body's root, as in `["inputs", 3]`; or of a header, `["header", "…"]`."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Why there is no answer (RFC 9457)."""

    __pydantic_config__ = _DOCUMENTED

    type: str
    """A URN that ends with `code`."""
    title: str
    """What sort of problem this is."""
    status: int
    detail: str
    """This very problem, in a sentence."""
    code: str
    """The sort of problem for programs, such as `queue_full` or `text_too_long`."""
    request_id: str
    """In the service's log it stands with every error 500, and at the level `debug` with every request."""
    error: str
    """The same as `detail`; Hugging Face's clients read it."""
    errors: list[FieldProblem]
    """Faults that have a place in the body."""


_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")


def is_valid_request_id(request_id: str) -> bool:
    """Whether the service keeps a caller's `X-Request-ID`: it is harmless in headers and logs."""
    return _REQUEST_ID.fullmatch(request_id) is not None
