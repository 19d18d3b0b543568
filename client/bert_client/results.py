"""What the clients return: the service's results, each with the model that computed it."""

from __future__ import annotations

from dataclasses import dataclass

from bert_client import wire


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
