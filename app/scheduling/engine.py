"""The way of a request between HTTP and the batcher: admit, tokenize, queue, answer."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

from pydantic_core import to_json

from app.errors import (
    BackendDiedError,
    DeadlineExceededError,
    InferenceError,
    InvalidInputError,
    Loc,
    TaskNotServedError,
    TooLargeError,
    UnavailableError,
)
from app.inference.types import Answer, Backend, Query, ServedModel, Task
from app.observability.metrics import Metrics
from app.scheduling import results
from app.scheduling.scheduler import DynamicBatcher, Job
from app.scheduling.tokenization import TextPair
from app.settings import Settings, SettingsError
from bert_client.wire import FillMaskResult, LabelResult, Status
from model.errors import BertError, EmptyTextError, NoMaskError, TextError
from model.tokenizer import Encoding

logger = logging.getLogger(__name__)

Result = TypeVar("Result")
Input = str | TextPair
Check = Callable[[], None]
"""Called between the parts of a long work, to end it with an exception once nobody waits for it."""

DEFAULT_TOP_K = 5
# A short text is tokenized in 30 us, less than a hand-over to a thread costs.
_INLINE_CHARACTERS = 4096
# No model reads such a text whole, and its room in the queue says little of what it takes to count its tokens.
# So these have a thread of their own, and others do not wait behind them.
_GIANT_CHARACTERS = 65_536
# Characters per token, on the safe side; only for the room that a text is given before it is tokenized.
_CHARACTERS_PER_TOKEN = 4
# Of a body, on the other safe side; and what may be a single text that will be cut counts no more than that.
_BYTES_PER_TOKEN, _BYTES_PER_INPUT, _SURE_TOKENS, _SURE_INPUTS = 6, 64, 512, 32
# Of the queue's room, kept for what has been let in and is not tokenized yet: the estimates above are low, and
# nobody shall be refused only after having been read and parsed.
_SPARE = 0.1
# A text of 510 masks with 100 predictions each would be repeated 51,000 times.
_MAX_ANSWER_BYTES = 32 * 1024 * 1024
# Of a prediction, beside the text that it repeats.
_PREDICTION_BYTES = 100
# A larger answer is put together in a thread: others wait for it while it is written as JSON, and no longer.
_INLINE_BYTES = 200 * 1024

# How long a batch may take, in seconds, where that leaves it enough tokens: who comes meanwhile waits for it.
_BATCH_SECONDS = 0.1
# Fewer tokens keep no processor busy. Steps are small: where the next one was half as large, an overload that
# slowed the machine a little halved the batches, and they stayed slower.
_FEWEST_TOKENS, _STEP_TOKENS = 1024, 256
# A batch that takes longer hangs, however short the deadlines are.
_STALLED_SECONDS = 5.0
_LOOK_SECONDS, _LONGEST_LOOK_SECONDS = 0.1, 1.0
# Loading that takes longer hangs, and would hold up what ends a batch that hangs.
_LONGEST_RELOAD_SECONDS = 600.0
# Of the time until its deadline, what a request may spend in the queue: the speed may fall meanwhile.
_WAIT_SHARE = 0.6


def token_budget(tokens_per_second: float, most: int) -> int:
    """Tokens of a batch, from the measured speed; 0 if that is not known.

    >>> token_budget(52_000, most=16_384)
    5120
    >>> token_budget(52_000, most=2048)
    2048
    """
    fitting = int(tokens_per_second * _BATCH_SECONDS) // _STEP_TOKENS * _STEP_TOKENS
    return max(min(fitting, most), _FEWEST_TOKENS)


@dataclass(frozen=True, slots=True)
class Timings:
    """Where a request's time went, in seconds."""

    tokenize: float
    queue: float
    inference: float


@dataclass(frozen=True, slots=True)
class Lane:
    """One encoder. It computes what was tokenized for it, also if another has taken its place meanwhile."""

    backend: Backend
    name: str

    def run(self, queries: Sequence[Query]) -> Sequence[Answer | Exception]:
        """See `Backend.run`."""
        return self.backend.run(self.name, queries)


@dataclass(frozen=True, slots=True)
class Reply(Generic[Result]):
    """Results in the order of the inputs, and who computed them."""

    model: str
    results: list[Result]
    timings: Timings


class Engine:
    """Answers the three tasks. Every method runs on the event loop; deadlines are `time.monotonic()`."""

    def __init__(self, make_backend: Callable[[], Backend], settings: Settings, metrics: Metrics) -> None:
        self.backend = make_backend()
        self.failure: BaseException | None = None
        """Why the models could not be loaded, or why an inference process or thread died."""
        self.loaded = False
        """Whether the models have ever computed something."""
        self.refusing = False
        """Whether new requests are turned away."""
        self.startup_finished = asyncio.Event()
        """Set once the models are loaded, or cannot be."""
        self._draining = False
        self._closing = False
        self._stalled_for: float | None = None
        """Seconds that `publish_state` has seen of it; None while it is not."""
        self._looked = time.monotonic()
        self._coming: Backend | None = None
        """What is being loaded to take the other's place."""
        self._ending: set[asyncio.Task[None]] = set()
        """Each looks after what a reload has replaced."""
        self._make_backend = make_backend
        self._reloading = asyncio.Lock()
        self._settings = settings
        self._metrics = metrics
        self._pool = ThreadPoolExecutor(max_workers=2, thread_name_prefix="tokenize")
        self._giants = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tokenize-giant")
        self.batcher: DynamicBatcher[Query, Answer] = DynamicBatcher(
            self._run,
            budget=lambda speed: settings.max_batch_tokens or token_budget(speed, self.backend.most_tokens),
            max_queue_tokens=settings.max_queue_tokens,
            observer=metrics,
            at_once=lambda: self.backend.at_once,
            wait_share=_WAIT_SHARE,
        )

    # Life -----------------------------------------------------------------------------------------------------

    @property
    def status(self) -> Status:
        """How the service is, in a word."""
        if self.failure is not None:
            return "broken"
        if self._draining:
            return "draining"
        if self.batcher.computing_for > self._stalled_after:
            return "stalled"
        return "ready" if self.loaded else "loading"

    @property
    def _stalled_after(self) -> float:
        """Seconds of a batch"""
        return max(self._settings.request_timeout_ms / 1000, _STALLED_SECONDS)

    @property
    def alive(self) -> bool:
        """False once an inference process or thread is dead: only a restart helps."""
        return self.failure is None

    @property
    def is_hung(self) -> bool:
        """Whether a batch has taken so long that nobody has waited for it for as long again; unless what is
        being loaded will take its place."""
        return self._coming is None and (self._stalled_for or 0.0) > self._stalled_after

    async def kill_hung_backend(self) -> None:
        """End an inference process that hangs: the service is broken then, and another may take its place."""
        logger.error("a batch does not end: the inference process is ended")
        self.batcher.abort(BackendDiedError("the inference process hung, and was ended"))
        for backend in (self.backend, *(backend for backend, _ in self._computing())):
            await asyncio.to_thread(backend.close)

    def _computing(self) -> list[tuple[Backend, float]]:
        """What computes each batch under way, and for how many seconds."""
        return [(lane.backend, seconds) for lane, seconds in self.batcher.computing() if isinstance(lane, Lane)]

    def publish_state(self) -> None:
        """To the metrics and the log; from time to time, since nothing happens when a batch does not end."""
        status, now = self.status, time.monotonic()
        passed = min(now - self._looked, _LONGEST_LOOK_SECONDS)  # or all were stopped
        self._looked = now
        if status == "stalled":
            if self._stalled_for is None:
                logger.error("stalled: a batch has been computed for %.0f s", self.batcher.computing_for)
            self._stalled_for = (self._stalled_for or 0.0) + passed
        elif self._stalled_for is not None:
            logger.info("no longer stalled: %s", status)
            self._stalled_for = None
        self._metrics.ready(ready=status == "ready")
        self._metrics.queue(self.batcher.queued_requests, self.batcher.queued_tokens)

    def check_open(self) -> None:
        """Whether a new request may come in; one that has may still be on its way through when this changes.

        Raises:
            UnavailableError: loading, draining or broken.
        """
        if self.failure is not None or not self.loaded or self.refusing:
            raise UnavailableError(self.status)

    def check_backlog(self, body_bytes: int, deadline: float) -> None:
        """Whether a request of so many bytes has a chance, before they are read and parsed.

        Raises:
            QueueFullError: too much is waiting.
        """
        tokens = min(body_bytes // _BYTES_PER_TOKEN, _SURE_TOKENS, self._settings.max_queue_tokens)
        inputs = min(max(body_bytes // _BYTES_PER_INPUT, 1), _SURE_INPUTS)
        self.batcher.check_room(tokens, inputs, deadline, spare=_SPARE)

    def start(self) -> None:
        """Load the models in an inference thread; `settled` is set when that has succeeded or failed."""
        self.batcher.start(self._load, self._on_ready, self._on_death)

    def drain(self) -> None:
        """Say that the service will end soon; requests are still accepted."""
        self._draining = True

    def refuse(self) -> None:
        """Accept no more requests; those that were accepted are answered."""
        self._draining = self.refusing = True

    async def reload(self) -> bool:
        """Load the checkpoints anew beside the old ones, which go on answering; requests that come after that
        are answered by the new ones. If these cannot be served, all stays as it is. Returns whether they can.
        """
        await self.startup_finished.wait()
        async with self._reloading:
            backend = self._coming = self._make_backend()
            try:
                self.check_open()
                await self._load_in_time(backend)
                self.check_open()
            except Exception as error:
                await asyncio.to_thread(backend.close)
                if self._closing:
                    logger.info("not reloaded: the service ends")
                    return False
                self._metrics.reloaded(ok=False)
                expected = isinstance(error, BertError | SettingsError | UnavailableError | BackendDiedError)
                logger.error("not reloaded: %s", error, exc_info=None if expected else error)
                return False
            finally:
                self._coming = None
            replaced, self.backend = self.backend, backend
            self._stalled_for = None  # if a batch hangs, it is one of those replaced
            backend.watch(self._lost)
            self.batcher.calibrated(backend.tokens_per_second)
            self._metrics.reloaded(ok=True)
            logger.info("reloaded: %s", ", ".join(served.name for served in backend.models.values()))
            ending = asyncio.create_task(self._end_if_stalled(weakref.ref(replaced)))
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)
            return True

    async def _load_in_time(self, backend: Backend) -> None:
        try:
            async with asyncio.timeout(_LONGEST_RELOAD_SECONDS):
                await asyncio.to_thread(backend.load)
        except TimeoutError:
            raise BackendDiedError(f"loading has not ended in {_LONGEST_RELOAD_SECONDS:g} s") from None

    async def _end_if_stalled(self, replaced: weakref.ref[Backend]) -> None:
        """A backend ends when nobody holds it any more; a batch that hangs in it would hold it for ever, and a
        thread with it, which the new one needs. It may still have batches that wait."""
        while (backend := replaced()) is not None:
            if any(busy is backend and age > self._stalled_after for busy, age in self._computing()):
                logger.error("what was replaced hangs, and is ended")
                await asyncio.to_thread(backend.close)
                return
            del backend
            await asyncio.sleep(_LOOK_SECONDS)

    async def close(self) -> None:
        """Stop each inference thread after its batch; whoever still waits gets an error."""
        self._closing = True
        self.refuse()
        for ending in self._ending:
            ending.cancel()
        if self._coming is not None:
            await asyncio.to_thread(self._coming.close)
        if not self.loaded:
            await asyncio.to_thread(self.backend.close)  # nobody waits for what is being loaded
        await self.batcher.close(patience=10)
        await asyncio.to_thread(self.backend.close)
        for pool in (self._pool, self._giants):
            pool.shutdown(wait=False, cancel_futures=True)

    def _load(self) -> int:
        """In the first inference thread; how many there are to be."""
        self.backend.load()
        self.backend.watch(self._lost)
        return self.backend.processes

    def _lost(self, backend: Backend, error: BackendDiedError) -> None:
        """A backend died, perhaps while no batch is under way: health is to tell."""
        if self.backend is backend and not self._closing:  # another may have taken its place
            self.batcher.abort(error)

    def _run(self, lane: Lane, queries: Sequence[Query]) -> Sequence[Answer | Exception]:
        """In an inference thread."""
        try:
            return lane.run(queries)
        except BackendDiedError as error:
            if lane.backend is self.backend:
                raise
            logger.error("what was replaced has not answered all: %s", error)
            return [InferenceError("the model that was to answer has been replaced, and ended")] * len(queries)

    def _on_ready(self) -> None:
        self.batcher.calibrated(self.backend.tokens_per_second)
        self.loaded = True
        self.startup_finished.set()

    def _on_death(self) -> None:
        if self._closing and isinstance(self.batcher.error, BackendDiedError):
            self.startup_finished.set()
            return
        self.failure = self.batcher.error
        self.startup_finished.set()
        if not isinstance(self.failure, BertError | SettingsError):  # those explain themselves
            logger.critical("an inference thread died", exc_info=self.failure)

    # Tasks ----------------------------------------------------------------------------------------------------

    async def fill_mask(
        self,
        inputs: Sequence[str],
        *,
        deadline: float,
        top_k: int | None = None,
        targets: Sequence[str] | None = None,
        truncate: bool = False,
    ) -> Reply[FillMaskResult]:
        """Words for each `[MASK]`. Raises errors of `app.errors`."""
        lane, served = self._serving(Task.FILL_MASK)
        target_ids = _target_ids(served, targets or ())
        wanted = min(top_k or len(target_ids), len(target_ids)) if target_ids else top_k or DEFAULT_TOP_K

        def read(text: Input, between: Check) -> Query:
            encoding = _encode(served, text, truncate, between, spans=True)
            return _mask_query(served, encoding, wanted, target_ids)

        def shape(text: Input, query: Query, answer: Answer) -> FillMaskResult:
            return results.fill_mask_result(str(text), query, answer, served.tokenizer)

        def measure(queries: Sequence[Query]) -> int:
            size = sum(
                (len(to_json(text)) + _PREDICTION_BYTES) * len(query.masks) * wanted  # escapes make it longer
                for text, query in zip(inputs, queries, strict=True)
            )
            if size > _MAX_ANSWER_BYTES:
                raise TooLargeError(
                    f"the answer would have {size} bytes, more than {_MAX_ANSWER_BYTES}; lower top_k, or send "
                    "fewer masks or shorter texts"
                )
            return size

        return await self._answer(lane, served, inputs, read, shape, deadline, measure)

    async def next_sentence(
        self, inputs: Sequence[TextPair], *, deadline: float, truncate: bool = False
    ) -> Reply[LabelResult]:
        """Whether the second text of a pair follows the first. Raises errors of `app.errors`."""
        return await self._labels(Task.NEXT_SENTENCE, inputs, deadline, truncate, None)

    async def sentiment(
        self, inputs: Sequence[Input], *, deadline: float, top_k: int | None = None, truncate: bool = False
    ) -> Reply[LabelResult]:
        """The labels of a text or pair. Raises errors of `app.errors`."""
        return await self._labels(Task.SENTIMENT, inputs, deadline, truncate, top_k)

    async def _labels(
        self, task: Task, inputs: Sequence[Input], deadline: float, truncate: bool, top_k: int | None
    ) -> Reply[LabelResult]:
        lane, served = self._serving(task)
        labels = results.NEXT_SENTENCE_LABELS if task is Task.NEXT_SENTENCE else served.config.labels

        def read(given: Input, between: Check) -> Query:
            return Query(task, _encode(served, given, truncate, between, spans=False))

        def shape(_: Input, query: Query, answer: Answer) -> LabelResult:
            return results.label_result(labels, query, answer, top_k)

        return await self._answer(lane, served, inputs, read, shape, deadline)

    # The way --------------------------------------------------------------------------------------------------

    def _serving(self, task: Task) -> tuple[Lane, ServedModel]:
        if self.failure is not None or not self.loaded:
            raise UnavailableError(self.status)
        for name, served in self.backend.models.items():
            if task in served.tasks:
                return Lane(self.backend, name), served
        raise TaskNotServedError(f"the loaded checkpoint has no head for {task}")

    async def _answer(
        self,
        lane: Lane,
        served: ServedModel,
        inputs: Sequence[Input],
        read: Callable[[Input, Check], Query],
        shape: Callable[[Input, Query, Answer], Result],
        deadline: float,
        measure: Callable[[Sequence[Query]], int] = lambda _: 0,
    ) -> Reply[Result]:
        began = time.monotonic()
        queries = await self._tokenize(inputs, read, served.config.max_position_embeddings, deadline)
        size = measure(queries)
        job = Job[Query, Answer].of(lane, queries, [len(query.encoding) for query in queries], deadline)
        given = await self.batcher.answer(job)
        done = time.monotonic()
        timings = Timings(job.submitted - began, job.started - job.submitted, done - job.started)

        def shaped(between: Check) -> list[Result]:
            results = []
            for row in zip(inputs, queries, given, strict=True):
                results.append(shape(*row))
                between()
            return results

        if size <= _INLINE_BYTES:
            return Reply(served.name, shaped(lambda: None), timings)
        return Reply(served.name, await self._in_thread(self._pool, shaped, deadline), timings)

    async def _tokenize(
        self, inputs: Sequence[Input], read: Callable[[Input, Check], Query], max_length: int, deadline: float
    ) -> list[Query]:
        """Inputs into queries: here if that is quick, else in a thread while the room they need is held."""
        sizes = [_characters(given) for given in inputs]
        costs = [min(size // _CHARACTERS_PER_TOKEN, max_length) for size in sizes]
        room = min(sum(costs), self._settings.max_queue_tokens)  # an estimate alone never refuses a request for good
        self.batcher.check_room(room, len(costs), deadline)
        if sum(sizes) <= _INLINE_CHARACTERS:
            return _read_all(inputs, read, lambda: None)
        pool = self._giants if max(sizes) > _GIANT_CHARACTERS else self._pool
        try:
            with self.batcher.reserved(costs):
                return await self._in_thread(pool, lambda between: _read_all(inputs, read, between), deadline)
        except asyncio.CancelledError:
            self._metrics.cancelled()
            raise

    async def _in_thread(self, pool: ThreadPoolExecutor, work: Callable[[Check], Result], deadline: float) -> Result:
        """What `work` returns. Now and then it calls what it is given, which ends it once nobody waits."""
        left = threading.Event()

        def between() -> None:
            if left.is_set():
                raise CancelledError

        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                return await asyncio.get_running_loop().run_in_executor(pool, work, between)
        except TimeoutError:
            self._metrics.expired()
            raise DeadlineExceededError from None
        finally:
            left.set()


def _read_all(inputs: Sequence[Input], read: Callable[[Input, Check], Query], between: Check) -> list[Query]:
    queries = []
    for i, given in enumerate(inputs):
        try:
            queries.append(read(given, between))
            between()
        except TextError as error:
            half = (error.half,) if isinstance(error, EmptyTextError) and error.half else ()
            raise InvalidInputError(error, ("inputs", i, *half)) from error
    return queries


def _characters(given: Input) -> int:
    return len(given) if isinstance(given, str) else len(given.text) + len(given.text_pair)


def _encode(served: ServedModel, given: Input, truncate: bool, between: Check, *, spans: bool) -> Encoding:
    text, text_pair = (given, None) if isinstance(given, str) else (given.text, given.text_pair)
    config = served.config
    return served.tokenizer.encode(
        text,
        text_pair,
        max_length=config.max_position_embeddings,
        truncate=truncate,
        truncation=config.truncation,
        spans=spans,
        check_cancelled=between,
    )


def _mask_query(served: ServedModel, encoding: Encoding, top_k: int, targets: tuple[int, ...]) -> Query:
    mask_id = served.tokenizer.mask_id
    if encoding.masks_lost:
        raise NoMaskError("a [MASK] lies beyond the model's limit and was lost by truncation")
    masks = tuple(i for i, token_id in enumerate(encoding.input_ids) if token_id == mask_id)
    if not masks:
        raise NoMaskError("the text holds no [MASK]")
    return Query(Task.FILL_MASK, encoding, masks, top_k, targets)


def _target_ids(served: ServedModel, targets: Sequence[str]) -> tuple[int, ...]:
    """Token ids in the caller's order, each once: "Good" and "good" may be the same token."""
    ids: dict[int, Loc] = {}
    for i, word in enumerate(targets):
        loc: Loc = ("parameters", "targets", i)
        try:
            ids.setdefault(served.tokenizer.target_id(word), loc)
        except TextError as error:
            raise InvalidInputError(error, loc) from error
    return tuple(ids)
