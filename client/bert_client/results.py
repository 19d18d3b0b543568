"""What the clients return: the service's results, each with the model that computed it."""

from __future__ import annotations

from dataclasses import dataclass

from bert_client import wire


@dataclass(frozen=True, slots=True)
class Model:
    """A checkpoint that the service has loaded, as `/info` tells."""

    name: str
    sha256: str | None
    """Of its weights; None if an older service does not tell."""
    labels: list[str] | None
    """None if it has none."""
    problem_type: str | None
    """Such as `multi_label_classification`; None if the checkpoint does not tell."""


@dataclass(frozen=True, slots=True)
class FillMaskResult(wire.FillMaskResult):
    """The answer to a text."""

    model: str
    """The checkpoint that answered."""


@dataclass(frozen=True, slots=True)
class LabelResult(wire.LabelResult):
    """The answer to a text or pair."""

    model: str
    """The checkpoint that answered."""
