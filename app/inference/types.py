"""What is asked of a model, and what it answers.

The queue knows no tensors, the model knows no HTTP; this is the seam.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from app.errors import BackendDiedError
from model.config import BertConfig
from model.tokenizer import Encoding, Tokenizer


class Task(StrEnum):
    """What a caller can ask."""

    FILL_MASK = "fill-mask"
    NEXT_SENTENCE = "next-sentence"
    SENTIMENT = "sentiment"


@dataclass(frozen=True, slots=True)
class Query:
    """One input, tokenized, and what is asked about it."""

    task: Task
    encoding: Encoding
    masks: tuple[int, ...] = ()
    """Fill-mask: token indices of the masks, ascending."""
    top_k: int = 0
    """Fill-mask: predictions per mask."""
    targets: tuple[int, ...] = ()
    """Fill-mask: the only token ids to score; empty for the whole vocabulary."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Probabilities, one row per mask, highest first; or one row over the labels, in the order of their ids."""

    scores: list[list[float]]
    token_ids: list[list[int]] = field(default_factory=list)
    """Fill-mask: the token that each score belongs to."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One encoder with its heads, as the rest of the service sees it."""

    name: str
    tasks: tuple[Task, ...]
    config: BertConfig
    tokenizer: Tokenizer
    parameters: int


class Backend(Protocol):
    """A computer of batches."""

    models: dict[str, ServedModel]
    """By lane, which is what `run` is told; empty until `load` is done."""
    device: str
    dtype: str
    threads: int
    processes: int
    """So many threads may call `run` at the same time, once `load` is done."""
    most_tokens: int
    """Of a batch: more of them are computed no faster."""
    tokens_per_second: float
    """Of large batches of short texts on the slowest model, all processes together, measured by `load`; 0
    before."""

    @property
    def at_once(self) -> int:
        """How many batches had best be computed at the same time now: no more than `processes`."""
        ...

    def load(self) -> None:
        """Read the weights and compute something with each model.

        Raises:
            CheckpointError: a directory cannot be served; the message names it.
            SettingsError: there is no such device.
        """
        ...

    def run(self, lane: str, queries: Sequence[Query]) -> Sequence[Answer | Exception]:
        """Answers in the order of the queries, in one forward pass.

        Raises:
            OutOfMemoryError: fewer queries may fit.
            BackendDiedError: nothing will work any more.
        """
        ...

    def watch(self, died: Callable[[Backend, BackendDiedError], None]) -> None:
        """From now on, call `died` with this object, in some thread, if nothing will work any more."""
        ...

    def close(self) -> None:
        """Let go of what it holds outside of this process. Nothing works after that."""
        ...
