"""The interface between the engine and the models: queries in, outputs out."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from app.errors import BackendDiedError
from model.config import BertConfig
from model.inference.cpu_features import available_cpus
from model.tokenizer import Encoding, Tokenizer


class Head(StrEnum):
    """The head that a checkpoint has on top of its encoder."""

    WORDS = "words"
    NEXT_SENTENCE = "next sentence"
    LABELS = "labels"


class Kind(IntEnum):
    """The kind of output that is computed for an input."""

    PROBABILITIES = 0
    """Scores of the labels, as the checkpoint's problem type defines them."""
    LOGITS = 1
    """Logits of the labels."""
    WORDS = 2
    """The most probable words at each mask."""


@dataclass(slots=True, eq=False)
class Query:
    """The tokenized inputs of one request, and the kind of output that each needs."""

    kind: Kind
    encodings: list[Encoding]
    labels: int = 0
    """Number of labels; 0 for words."""
    masks: list[tuple[int, ...]] = field(default_factory=list)
    """Words: token indices of the masks of each input, ascending."""
    top_k: int = 0
    """Words: number of predictions per mask."""
    targets: tuple[int, ...] = ()
    """Words: the only token ids to score; empty for the whole vocabulary."""
    lengths: array[int] = field(init=False)
    """Tokens of each input."""

    def __post_init__(self) -> None:
        self.lengths = array("i", map(len, self.encodings))


class Part(NamedTuple):
    """Inputs of a query, one after another."""

    query: Query
    start: int
    stop: int

    @property
    def inputs(self) -> int:
        """Number of inputs."""
        return self.stop - self.start


class Words(NamedTuple):
    """The words for the masks of an input: mask after mask, `top_k` words each, highest score first."""

    scores: list[float]
    token_ids: list[int]


ModelOutput = list[float] | Words
"""The model's output for an input: a score for each label, in the order of their ids; or words."""


@dataclass(frozen=True, slots=True)
class BatchResult:
    """The outputs of a batch, and the time that it took."""

    outputs: Sequence[Sequence[ModelOutput | Exception]]
    """Outputs of each part, in the order of its inputs. An exception in place of an output concerns only that input."""
    seconds: float
    """Time that the inference process took, without the delays of the event loop."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One encoder with its heads, as the rest of the service sees it."""

    name: str
    heads: tuple[Head, ...]
    config: BertConfig
    tokenizer: Tokenizer
    parameters: int
    sha256: str
    """Hash of the weight files, in hexadecimal."""


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
        """`time.monotonic()` when a process got the batch that has been computed the longest; None if there is
        none."""

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
            BackendDiedError: no further batch can succeed.
        """

    def kill_hung(self, seconds: float) -> None:
        """Kill processes that have computed one batch for longer than `seconds`; their batches raise
        ProcessDiedError."""

    async def aclose(self) -> None:
        """Kill the processes; batches that are being computed raise BackendDiedError."""
