"""A request's way between HTTP and the models: reserve, tokenize, queue, answer."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from pydantic_core import to_json

from app.errors import DeadlineExceededError, TooLargeError
from app.inference.types import Answer, Kind, Query, ServedModel, Task
from app.observability.metrics import Metrics
from app.scheduling import results
from app.scheduling.byte_budget import ByteBudget
from app.scheduling.deadline import Deadline
from app.scheduling.lifecycle import Lifecycle, LoadedEncoder
from app.scheduling.results import FillMaskResult, LabelResult, TextToken
from app.scheduling.tokenization import (
    CheckCancelled,
    Input,
    Tokenize,
    characters,
    estimated_tokens,
    mask_positions,
    target_ids,
    tokenized,
)
from model.tokenizer import Encoding

Result = TypeVar("Result")

DEFAULT_TOP_K = 5


@dataclass(frozen=True, slots=True)
class EnginePolicy:
    """Size limits of the engine."""

    inline_characters: int = 8192
    """Inputs with fewer together are tokenized on the event loop, in 10 us for a sentence: handing them to a thread
    would cost the loop as much."""
    inline_answer_bytes: int = 200 * 1024
    """Larger answers are put together in a thread."""
    max_answer_bytes: int = 8 * 1024 * 1024
    """A text with 510 masks and 100 predictions each would be repeated 51,000 times."""
    max_answers_bytes: int = 128 * 1024 * 1024
    """Of all larger answers together that are being made or sent. In memory they take about three times as much."""
    prediction_bytes: int = 100
    """Of a prediction's or token's JSON, beside the text that it repeats."""
    bytes_per_token: int = 6
    """To estimate a body's tokens before it is read. More than usual, so that they are not overestimated."""
    bytes_per_input: int = 64
    """To estimate a body's inputs in the same way."""
    max_assumed_tokens: int = 512
    """A body may be one long text that will be truncated, so it never counts as more."""
    max_assumed_inputs: int = 32
    admission_headroom: float = 0.1
    """Fraction of the queue that is kept for requests which were admitted and are being read: the estimates are
    low, and a request should be refused before it is read."""
    close_patience: float = 10.0
    """Seconds that running batches have when the service closes."""


@dataclass(slots=True)
class Reply(Generic[Result]):
    """Results in the order of the inputs, and the name of the model that computed them."""

    model: str
    results: list[Result]
    tokens: int
    """Of all inputs."""
    stages: dict[str, float]
    """Where the request's time went, in seconds: `tokenize`, `queue`, `inference`."""
    is_large: bool = False
    """Whether writing the answer would block the event loop."""


@dataclass(slots=True)
class Work(Generic[Result]):
    """What one request asks, and how its numbers become its results."""

    encoder: LoadedEncoder | None
    """None if nothing is computed after tokenization, so that nothing is reserved in the queue."""
    served: ServedModel
    inputs: Sequence[Input]
    tokenize: Tokenize
    to_query: Callable[[list[Encoding]], Query]
    to_results: Callable[[Query, Sequence[Answer]], Iterable[Result]]
    answer_bytes: Callable[[Query], int]
    """Of the answer, about."""
    advice: str
    """How to get a smaller answer."""


class Engine:
    """Answers the tasks and `/tokenize`. Every method runs on the event loop."""

    def __init__(self, lifecycle: Lifecycle, metrics: Metrics, policy: EnginePolicy = EnginePolicy()) -> None:
        self._policy = policy
        self._metrics = metrics
        self._threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="tokenize")
        self._answers = ByteBudget(
            policy.max_answers_bytes, metrics, free=policy.inline_answer_bytes, what="bytes of answers are being sent"
        )
        self.lifecycle = lifecycle
        self.scheduler = lifecycle.scheduler

    def check_backlog(self, body_bytes: int, deadline: Deadline) -> None:
        """Raise QueueFullError, DeadlineUnreachableError or UnavailableError if a request of so many bytes has no
        chance."""
        policy = self._policy
        tokens = min(body_bytes // policy.bytes_per_token, policy.max_assumed_tokens, self.scheduler.max_queue_tokens)
        inputs = min(max(body_bytes // policy.bytes_per_input, 1), policy.max_assumed_inputs)
        self.scheduler.check_capacity(tokens, inputs, deadline, headroom=policy.admission_headroom)

    async def close(self) -> None:
        """End after the running batches; waiting requests get an error."""
        await self.lifecycle.aclose(self._policy.close_patience)
        self._threads.shutdown(wait=False, cancel_futures=True)

    # Tasks ----------------------------------------------------------------------------------------------------

    async def fill_mask(
        self,
        inputs: Sequence[str],
        *,
        deadline: Deadline,
        top_k: int | None = None,
        targets: Sequence[str] | None = None,
        truncate: bool = False,
        held: ExitStack | None = None,
    ) -> Reply[FillMaskResult]:
        """Words for each `[MASK]`. Raises errors of `app.errors`. `held`: see `labels`."""
        with self.lifecycle.encoder_for(Task.FILL_MASK) as (encoder, served):
            ids = target_ids(served, targets or ())
            wanted = min(top_k or len(ids) or DEFAULT_TOP_K, len(ids) or served.tokenizer.vocab_size)
            masks: list[tuple[int, ...]] = []

            def tokenize(text: Input) -> Encoding:
                encoding = served.tokenizer.encode(
                    str(text),
                    max_length=served.config.max_position_embeddings,
                    truncate=truncate,
                    truncation=served.config.truncation,
                )
                masks.append(mask_positions(served, encoding))
                return encoding

            return await self._answer(
                Work(
                    encoder,
                    served,
                    inputs,
                    tokenize,
                    lambda encodings: Query(Kind.WORDS, encodings, masks=masks, top_k=wanted, targets=ids),
                    lambda query, answers: results.fill_mask_results(inputs, query, answers, served.tokenizer),
                    # The text is repeated for each prediction.
                    lambda _: (
                        wanted
                        * sum(
                            (len(to_json(text)) + self._policy.prediction_bytes) * len(own)
                            for text, own in zip(inputs, masks, strict=True)
                        )
                    ),
                    "lower top_k, or send fewer masks or fewer or shorter texts",
                ),
                deadline,
                held,
            )

    async def labels(
        self,
        task: Task,
        inputs: Sequence[Input],
        *,
        deadline: Deadline,
        top_k: int | None = None,
        truncate: bool = False,
        truncation: str | None = None,
        raw_scores: bool = False,
        held: ExitStack | None = None,
    ) -> Reply[LabelResult]:
        """The labels of a text or pair, for any task that has labels. Raises errors of `app.errors`.

        `truncation`: see `Tokenizer.encode`; by default the checkpoint's own. `raw_scores`: logits as scores. `held`:
        closed once the answer is sent; until then a large answer counts against `EnginePolicy.max_answers_bytes`.
        """
        with self.lifecycle.encoder_for(task) as (encoder, served):
            labels = results.NEXT_SENTENCE_LABELS if task is Task.NEXT_SENTENCE else served.config.labels
            kind = Kind.LOGITS if raw_scores else Kind.PROBABILITIES
            encode, most = served.tokenizer.encode, served.config.max_position_embeddings
            kept = truncation or served.config.truncation

            def tokenize(given: Input) -> Encoding:
                text, text_pair = (given, None) if isinstance(given, str) else (given.text, given.text_pair)
                return encode(text, text_pair, max_length=most, truncate=truncate, truncation=kept, spans=False)

            prediction_bytes = self._policy.prediction_bytes + max(len(label.encode()) for label in labels)
            return await self._answer(
                Work(
                    encoder,
                    served,
                    inputs,
                    tokenize,
                    lambda encodings: Query(kind, encodings, len(labels)),
                    lambda query, answers: results.label_results(labels, query, answers, top_k),
                    lambda _: len(inputs) * len(labels[:top_k]) * prediction_bytes,
                    "lower top_k, or send fewer texts",
                ),
                deadline,
                held,
            )

    async def tokenize(
        self, texts: Sequence[str], *, deadline: Deadline, held: ExitStack | None = None
    ) -> Reply[list[TextToken]]:
        """The tokens of whole texts, as the sentiment model reads them. Raises errors of `app.errors`.

        Texts whose answer might exceed `EnginePolicy.max_answer_bytes`, because each character may be a token, are
        refused before they are tokenized. `held`: see `labels`.
        """
        tokens, most = (
            sum(len(text) + 2 for text in texts),
            self._policy.max_answer_bytes // self._policy.prediction_bytes,
        )
        if tokens > most:
            raise TooLargeError(
                f"the texts may have {tokens} tokens, one for each character, a request may have {most}; "
                "send fewer or shorter texts"
            )
        with self.lifecycle.encoder_for(Task.SENTIMENT) as (_, served):

            def to_results(query: Query, _: Sequence[Answer]) -> Iterator[list[TextToken]]:
                for text, encoding in zip(texts, query.encodings, strict=True):
                    yield results.text_tokens(text, encoding, served.tokenizer)

            return await self._answer(
                Work(
                    None,
                    served,
                    texts,
                    lambda text: served.tokenizer.encode(str(text)),
                    lambda encodings: Query(Kind.PROBABILITIES, encodings),
                    to_results,
                    lambda query: sum(query.lengths) * self._policy.prediction_bytes,
                    "send fewer or shorter texts",
                ),
                deadline,
                held,
            )

    # Request path ---------------------------------------------------------------------------------------------

    async def _answer(self, work: Work[Result], deadline: Deadline, held: ExitStack | None) -> Reply[Result]:
        """Turn the inputs of a parsed request into its results, or raise DeadlineExceededError at its deadline.

        `held`: what is reserved until the caller has the answer.
        """
        began = time.monotonic()
        encoder, served = work.encoder, work.served
        max_length = served.config.max_position_embeddings
        estimates = [estimated_tokens(given, max_length) if encoder else 0 for given in work.inputs]
        with ExitStack() as own, self.scheduler.reserve(estimates, deadline) as queued:
            try:
                async with asyncio.timeout(deadline.remaining):
                    query = work.to_query(await self._tokenize(work))
                    if (size := work.answer_bytes(query)) > (most := self._policy.max_answer_bytes):
                        raise TooLargeError(f"the answer would have {size} bytes, more than {most}; {work.advice}")
                    (held or own).enter_context(self._answers.reserve(size))
                    if encoder is None:
                        queued.started = time.monotonic()
                        answers: list[Answer] = []
                    else:
                        answers = await self.scheduler.answer(queued, encoder, query)
                    done = time.monotonic()

                    def to_results(check_cancelled: CheckCancelled) -> list[Result]:
                        made = []
                        for result in work.to_results(query, answers):
                            made.append(result)
                            check_cancelled()
                        return made

                    if is_large := size > self._policy.inline_answer_bytes:
                        found = await self._in_thread(to_results)
                    else:
                        found = list(work.to_results(query, answers))
            except TimeoutError:
                self._metrics.expired()
                raise DeadlineExceededError from None
            except asyncio.CancelledError:
                if math.isinf(queued.started) and not self.lifecycle.refusing:  # else the end of draining cancels
                    self._metrics.cancelled()
                raise
        submitted = queued.submitted or queued.started
        stages = {
            "tokenize": submitted - began,
            "queue": queued.started - submitted,
            "inference": done - queued.started,
        }
        return Reply(served.name, found, sum(query.lengths), stages, is_large)

    async def _tokenize(self, work: Work[Any]) -> list[Encoding]:
        """The inputs tokenized: on the event loop if that is quick, otherwise in a thread."""
        if sum(map(characters, work.inputs)) <= self._policy.inline_characters:
            return tokenized(work.inputs, work.tokenize, lambda: None)
        return await self._in_thread(partial(tokenized, work.inputs, work.tokenize))

    async def _in_thread(self, work: Callable[[CheckCancelled], Result]) -> Result:
        """Run `work` in a thread. Its argument is a function that raises once the request has ended."""
        ended = threading.Event()

        def check_cancelled() -> None:
            if ended.is_set():
                raise CancelledError

        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work, check_cancelled)
        finally:
            ended.set()
