"""Bodies of answers, as the client reads them. Of the operations and of errors, the service writes them too; those of
tasks it has in `app.scheduling.results`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal


class _Documented:
    """The OpenAPI document has the docstrings of the fields: pydantic reads this, and need not be installed here."""

    __slots__ = ()
    __pydantic_config__ = {"use_attribute_docstrings": True}  # noqa: RUF012 (pydantic looks for a dict)


@dataclass(frozen=True, slots=True)
class TokenPrediction(_Documented):
    """A token that may stand in place of a mask."""

    score: float
    """Its probability over the whole vocabulary."""
    token: int
    """Its number in the vocabulary."""
    token_str: str
    """As the vocabulary writes it. A piece that joins the word before it begins with `##`."""
    sequence: str
    """The text with this one mask replaced."""


@dataclass(frozen=True, slots=True)
class Mask(_Documented):
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
class FillMaskResult(_Documented):
    """The answer to a text."""

    masks: list[Mask]
    """One entry per `[MASK]`, in order."""
    tokens: int
    """Tokens that the model has read, special tokens included."""
    truncated: bool
    """Whether the text was cut to the model's limit."""


@dataclass(frozen=True, slots=True)
class LabelResult(_Documented):
    """The answer to a text or pair."""

    predictions: list[LabelPrediction]
    """Most likely first."""
    tokens: int
    """Tokens that the model has read, special tokens included."""
    truncated: bool
    """Whether the text was cut to the model's limit."""


Status = Literal["loading", "ready", "stalled", "draining", "broken"]


@dataclass(frozen=True, slots=True)
class Health:
    """The state of the service."""

    status: Literal["alive", "ready"]


@dataclass(frozen=True, slots=True)
class ModelInfo(_Documented):
    """One loaded checkpoint."""

    name: str
    tasks: list[str]
    """The tasks that it answers: fill-mask, next-sentence, sentiment."""
    parameters: int
    layers: int
    hidden_size: int
    heads: int
    vocab_size: int
    max_tokens: int
    """Tokens of one input, special tokens included. A longer input is refused or cut."""
    labels: list[str] | None
    """Of sentiment, in the order of their ids."""
    problem_type: str | None
    """Of sentiment, as `config.json` has it: what the scores are."""
    sha256: str
    """SHA-256 of the file `model.safetensors`; if the weights are in several files, of `*.safetensors` in the order of
    their names, one after another."""


@dataclass(frozen=True, slots=True)
class Limits(_Documented):
    """What a request may carry (beyond it, the answer is 413 or 429), and how long it may take (504)."""

    max_batch_tokens: int
    """Tokens that one forward pass computes together: set, or from the measured speed."""
    max_queue_tokens: int
    """Tokens that may wait ahead of a request, its own included, if they can be computed before the deadline."""
    max_client_batch: int
    """Inputs of one request."""
    max_body_bytes: int
    request_timeout_ms: int


@dataclass(frozen=True, slots=True)
class Info(_Documented):
    """The service and the checkpoints that it has loaded."""

    version: str
    status: Status
    device: str
    dtype: str
    threads: int
    """CPU cores that compute."""
    tokens_per_second: int
    """Of full batches: measured at start-up, later on requests. 0 while loading."""
    models: list[ModelInfo]
    """Empty during loading."""
    limits: Limits


@dataclass(frozen=True, slots=True)
class FieldProblem(_Documented):
    """A fault and its place in the body."""

    message: str
    loc: list[str | int]
    """Fields and indices from the body's root, such as `["inputs", 3]`; of a header, `["header", "…"]`."""


@dataclass(frozen=True, slots=True)
class Problem(_Documented):
    """Why a request has no answer (RFC 9457)."""

    type: str
    """A URN that ends with `code`."""
    title: str
    """The kind of problem."""
    status: int
    detail: str
    """This problem, in a sentence."""
    code: str
    """The kind of problem, for programs: `queue_full`, `text_too_long` and so on."""
    request_id: str
    """The service logs it with every error 500, and at level `debug` with every request."""
    error: str
    """The same as `detail`, for Hugging Face's clients."""
    errors: list[FieldProblem]
    """Faults that have a place in the body or the headers."""


_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")


def is_valid_request_id(request_id: str) -> bool:
    """Whether the service keeps a caller's `X-Request-ID`, because it is harmless in headers and logs."""
    return _REQUEST_ID.fullmatch(request_id) is not None
