"""The interface between the engine and the models: queries in, outputs out."""

from __future__ import annotations

import asyncio
import math
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from app.errors import BackendDiedError, InferenceError
from model.config import BertConfig
from model.inference.cpu_features import available_cpus
from model.tokenizer import Encoding, Tokenizer


class Head(StrEnum):
    """The head that a checkpoint has on top of its encoder."""

    WORDS = "words"
    NEXT_SENTENCE = "next sentence"
    LABELS = "labels"


NEXT_SENTENCE_LABELS = ("IS_NEXT", "NOT_NEXT")
"""Labels of the next-sentence head in the order of its logits (Devlin et al. 2018, section 3.1, task 2)."""


class Words(NamedTuple):
    """The words for the masks of an input: mask after mask, `top_k` words each, highest score first."""

    scores: list[float]
    token_ids: list[int]


ModelOutput = list[float] | Words
"""The model's output for an input: a score for each label, in the order of their ids; or words."""


@dataclass(slots=True, eq=False)
class Query:
    """The tokenized inputs of one request: what is computed for each, their progress, and their outputs. It asks for
    scores of labels, or, if it has masks, for words. Times are `time.monotonic()`."""

    encodings: list[Encoding]
    labels: int = 0
    """Number of labels; 0 for words."""
    logits: bool = False
    """Whether the scores of the labels are logits; otherwise, as the checkpoint's problem type defines them."""
    masks: list[tuple[int, ...]] = field(default_factory=list)
    """Words: token indices of the masks of each input, ascending."""
    top_k: int = 0
    """Words: number of predictions per mask."""
    targets: tuple[int, ...] = ()
    """Words: the only token ids to score; empty for the whole vocabulary."""
    lengths: array[int] = field(init=False)
    """Tokens of each input."""
    ends: list[int] = field(init=False)
    """Cumulative tokens, up to each input."""
    encoder: str = ""
    """Name of the encoder; only its inputs share a batch."""
    deadline: float = math.inf
    """When the caller stops waiting."""
    taken: int = 0
    """Number of inputs that wait no longer, because they are in a batch or the request has ended."""
    submitted: float = 0.0
    """When it was queued."""
    started: float = math.inf
    """When its first input was taken."""
    outputs: list[ModelOutput] = field(init=False)
    uncomputed: int = field(init=False)
    """Number of inputs without an output."""
    future: asyncio.Future[None] | None = None
    """Done when all outputs are there, or with an error. None before the query is queued, and after it has ended."""

    def __post_init__(self) -> None:
        self.lengths = array("i", map(len, self.encodings))
        self.ends = list(accumulate(self.lengths))
        self.uncomputed = len(self.lengths)
        self.outputs = [[]] * self.uncomputed

    @property
    def waiting_tokens(self) -> int:
        """Tokens of the inputs that wait."""
        return self.ends[-1] - (self.ends[self.taken - 1] if self.taken else 0)

    @property
    def has_ended(self) -> bool:
        """Whether the outputs are of no use any more."""
        return self.future is None or self.future.done() or self.deadline <= time.monotonic()


class Part(NamedTuple):
    """Inputs of a query, one after another."""

    query: Query
    start: int
    stop: int

    @property
    def inputs(self) -> int:
        return self.stop - self.start

    @property
    def tokens(self) -> int:
        ends = self.query.ends
        return ends[self.stop - 1] - (ends[self.start - 1] if self.start else 0)


@dataclass(frozen=True, slots=True)
class BatchResult:
    """The outputs of a batch, and the time that it took."""

    outputs: Sequence[list[ModelOutput] | InferenceError]
    """Outputs of each part, in the order of its inputs; or the error of one of its inputs."""
    seconds: float
    """Time that the inference process took, without the delays of the event loop."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One encoder with its heads, as the rest of the service sees it."""

    name: str
    heads: tuple[Head, ...]
    """The speed at start-up is measured with the last one."""
    config: BertConfig
    tokenizer: Tokenizer
    parameters: int
    sha256: str
    """Hash of the weight files, in hexadecimal."""

    @property
    def labels(self) -> Sequence[str]:
        """Labels of the scores that its head gives for an input, in their order."""
        return NEXT_SENTENCE_LABELS if Head.NEXT_SENTENCE in self.heads else self.config.labels


@dataclass(frozen=True, slots=True)
class BackendConfig:
    """The checkpoints that a backend loads, and how it computes."""

    pretrained: Path
    sentiment: Path
    device: str = "auto"
    dtype: str = "auto"
    threads: int = field(default_factory=available_cpus)
    logs: dict[str, Any] | None = None
    """Logging configuration of the processes, for `logging.config`."""


@dataclass(slots=True)
class BackendInfo:
    """The models that a backend has loaded. Before that, `device` and `dtype` are as configured."""

    device: str
    dtype: str
    threads: int
    models: dict[str, ServedModel] = field(default_factory=dict)
    """Models by the name of the encoder, which `Backend.run` takes."""
    processes: int = 1
    """Number of processes that compute batches at the same time."""
    in_flight: int = 1
    """Number of batches that a process takes at a time: while a GPU computes one, the next is prepared."""
    max_useful_tokens: int = 0
    """Tokens of a batch beyond which a larger one is no faster per token."""
    tokens_per_second: float = 0.0
    """Speed of large batches of short texts on the slowest model, all processes together."""


class Backend(Protocol):
    """Computes batches outside the event loop. Every method is called on the loop."""

    info: BackendInfo
    """Complete once `load` is done."""

    @property
    def slots(self) -> int:
        """Number of batches that can be computed at the same time now. It is 0 before loading, and while the weights
        are loaded again after the process that holds them has ended."""

    @property
    def computing_since(self) -> float | None:
        """`time.monotonic()` when the longest-running batch began; None if no batch is running."""

    def process_seconds(self) -> Mapping[int, tuple[float, float]]:
        """Seconds that each process has computed, and waited for a batch, by its number."""

    async def load(self, on_death: Callable[[BackendDiedError], None], on_start: Callable[[], None]) -> None:
        """Read the weights and compute something with each model.

        Args:
            on_death: called if processes end later and cannot be replaced.
            on_start: called when a process has started, so that there are more slots.

        Raises:
            CheckpointError: a directory cannot be served; the message names it.
            SettingsError: the device does not exist, or does not compute in this precision.
            BackendDiedError: a process ended while it was loading.
        """

    async def run(self, encoder: str, parts: Sequence[Part]) -> BatchResult:
        """Compute the outputs of one forward pass. There must be a slot for it.

        Raises:
            OutOfMemoryError: the batch does not fit into memory; fewer inputs may.
            ProcessDiedError: the process ended during this batch. Another one is started.
            UnavailableError: the last process ended before it got this batch.
            BackendDiedError: no further batch can succeed.
        """

    def kill_hung(self, seconds: float) -> None:
        """Kill processes that have computed one batch for longer than `seconds`; their batches raise
        ProcessDiedError."""

    async def aclose(self) -> None:
        """Kill the processes; batches that are being computed raise BackendDiedError."""
