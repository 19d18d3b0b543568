"""The results of the clients: the service's, each with the model that computed it."""

from __future__ import annotations

from dataclasses import dataclass, field

from bert_client.wire import LabelPrediction, Mask


@dataclass(frozen=True, slots=True)
class Model:
    """A checkpoint that the service has loaded, as `/info` lists it."""

    name: str
    sha256: str | None
    """SHA-256 of its weights; None from an older service."""
    labels: list[str] | None
    """Labels of a classifier; None for other models."""
    problem_type: str | None
    """Problem type, such as `multi_label_classification`; None if the checkpoint has none."""


@dataclass(frozen=True, slots=True)
class FillMaskResult:
    """The result of a text."""

    masks: list[Mask]
    """One entry per `[MASK]`, in order."""
    tokens: int
    """Tokens that the model has read, special tokens included."""
    truncated: bool
    """Whether the text was cut to the model's limit."""
    model: str
    """The checkpoint that computed it."""
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
    model: str
    """The checkpoint that computed it."""
    unknown_tokens: int = field(default=0, kw_only=True)
    """Number of tokens that are [UNK], if most of the text is unknown: the result says little about it. Otherwise 0."""
