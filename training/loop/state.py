"""How far a run has come."""

from __future__ import annotations

from dataclasses import dataclass, field

from training.examples.loader import Position


@dataclass(slots=True)
class TrainState:
    """Progress of a run; with weights and optimizer, all that a bit-exact resume needs."""

    step: int = 0
    """Optimizer steps."""
    tokens: int = 0
    """Tokens trained on, special tokens and padding included."""
    micro_batches: int = 0
    """Micro-batches trained on, over all ranks."""
    seconds: float = 0.0
    """Time spent training; evaluation and checkpoints do not count."""
    warmup_tokens: int = 0
    """Tokens of the warm-up, fixed when the run starts: a larger budget does not warm it up again."""
    lanes: dict[int, Position] = field(default_factory=dict)
    """Position of each lane of the examples (training.examples.loader)."""
