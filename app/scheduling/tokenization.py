"""Inputs of callers into queries of a model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TextPair:
    """Two texts that are read together."""

    text: str
    """The first text; of a review, its title."""
    text_pair: str
    """The second text; of a review, its body."""
