"""Backends for tests: one without tensors, whose gate the test holds, and one in a thread of this process."""

from __future__ import annotations

import asyncio
import threading
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from app.errors import BackendDiedError, ProcessDiedError
from app.inference.contract import BackendConfig, BackendInfo, BatchResult, Part, Query, ServedModel
from app.inference.frames import read_batch, read_scores, write_batch, write_scores
from app.inference.torch_backend import TorchBackend
from model import Encoding

PATIENCE = 120  # seconds; only a hung test waits so long


class Asked(NamedTuple):
    """An input of a batch."""

    query: Query
    encoding: Encoding


def computed(backend: TorchBackend, encoder: str, parts: Sequence[Part]) -> BatchResult:
    """The outputs of a batch, by the way that it takes to an inference process and back."""
    began = time.perf_counter()
    batch = read_batch(bytearray(write_batch(list(backend.info.models).index(encoder), parts)))
    return read_scores(parts, write_scores(time.perf_counter() - began, backend.launch(batch)()))


@dataclass(eq=False)
class FakeBackend:
    """Answers at once while `gate` is open. `fault` says what happens to an input."""

    models: dict[str, ServedModel]
    fault: Callable[[Asked], BaseException | None] = lambda _: None
    load_error: BaseException | None = None
    closed: bool = False
    slots: int = 1
    computing_since: float | None = None
    killed_hung: bool = False
    batches: list[list[Asked]] = field(default_factory=list)
    gate: threading.Event = field(default_factory=threading.Event)
    may_load: threading.Event = field(default_factory=threading.Event)
    entered: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    """Released each time a batch has arrived, before it waits at the gate."""

    @property
    def info(self) -> BackendInfo:
        return BackendInfo("cpu", "float32", 1, self.models, max_useful_tokens=16_384)

    async def load(self, on_death: Callable[[BackendDiedError], None], on_start: Callable[[], None]) -> None:
        self.on_death, self.on_start = on_death, on_start
        await self._wait(self.may_load)
        if self.load_error is not None:
            raise self.load_error

    async def run(self, encoder: str, parts: Sequence[Part]) -> BatchResult:
        self.computing_since = began = time.monotonic()
        batch = [Asked(query, encoding) for query, start, stop in parts for encoding in query.encodings[start:stop]]
        self.batches.append(batch)
        self.entered.release()
        try:
            await self._wait(self.gate)
        finally:
            self.computing_since = None
        for asked in batch:
            if (error := self.fault(asked)) is not None:
                raise error
        labels = len(self.models[encoder].labels)
        scores = b"".join(_scores(part, labels) for part in parts)
        return read_scores(parts, write_scores(time.monotonic() - began, scores))

    def kill_hung(self, seconds: float) -> None:
        self.killed_hung = True

    def process_seconds(self) -> Mapping[int, tuple[float, float]]:
        return {0: (1.5, 2.5)}

    async def aclose(self) -> None:
        self.closed = True

    async def has_entered(self) -> None:
        """Wait until one more batch is at the gate."""
        assert await asyncio.to_thread(self.entered.acquire, timeout=PATIENCE)

    async def _wait(self, event: threading.Event) -> None:
        """Until the event, or until this backend is closed, as a killed process would."""
        end = time.monotonic() + PATIENCE
        while not event.is_set():
            assert time.monotonic() < end
            if self.killed_hung:
                self.killed_hung = False
                raise ProcessDiedError
            if self.closed:
                raise BackendDiedError("killed")
            await asyncio.sleep(0.002)


class ThreadBackend:
    """`TorchBackend` in a thread of this process, for tests of the models' own answers."""

    def __init__(self, config: BackendConfig) -> None:
        self._backend = TorchBackend(config)
        self.slots, self.computing_since = 1, None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    async def load(self, on_death: Callable[[BackendDiedError], None], on_start: Callable[[], None]) -> None:
        await asyncio.to_thread(self._backend.load)

    async def run(self, encoder: str, parts: Sequence[Part]) -> BatchResult:
        return await asyncio.to_thread(computed, self._backend, encoder, parts)

    def kill_hung(self, seconds: float) -> None:
        pass

    def process_seconds(self) -> Mapping[int, tuple[float, float]]:
        return {}

    async def aclose(self) -> None:
        pass


def _scores(part: Part, labels: int) -> bytes:
    """The reply of an inference process: `labels` scores of each input, as many as the head has."""
    query = part.query
    if not query.masks:
        return array("f", [0.25, 0.75, *[0.0] * labels][:labels] * part.inputs).tobytes()
    chosen = list(query.targets or range(5, 76))[: query.top_k]
    scores = [1 / (rank + 2) for rank in range(len(chosen))]
    masks = sum(map(len, query.masks[part.start : part.stop]))
    return array("f", scores * masks).tobytes() + array("i", chosen * masks).tobytes()
