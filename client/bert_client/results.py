"""The results of the clients: the service's, each with the model that computed it."""

from __future__ import annotations

from dataclasses import dataclass

from bert_client import wire


@dataclass(frozen=True, slots=True)
class Model:
    """A checkpoint that the service has loaded, as `/info` tells."""

    name: str
    sha256: str | None
    """SHA-256 of its weights; None if an older service does not tell."""
    labels: list[str] | None
    """Labels of a classifier; None for other models."""
    problem_type: str | None
    """Problem type, such as `multi_label_classification`; None if the checkpoint does not tell."""


@dataclass(frozen=True, slots=True)
class FillMaskResult(wire.FillMaskResult):
    """The result of a text."""

    model: str
    """The checkpoint that computed it."""


@dataclass(frozen=True, slots=True)
class LabelResult(wire.LabelResult):
    """The result of a text or pair."""

    model: str
    """The checkpoint that computed it."""
