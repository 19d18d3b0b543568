"""An engine: one loaded backend with its queue, its slots and its measured speed.

A batch starts the moment a process is free, without a timer and without polling. All inputs that have arrived by then
share a forward pass; an idle engine starts at once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from app import errors
from app.batching.admission import Admission, Deadline
from app.batching.fair_queue import FairQueue
from app.batching.throughput import Throughput
from app.inference.contract import Backend, BatchResult, Head, ModelOutput, Part, Query, ServedModel
from app.observability.metrics import Metrics
from app.settings import Settings

logger = logging.getLogger(__name__)

MIN_TOKENS_TO_SPLIT = 256
"""Minimum tokens that a process takes, however many others are free, because a forward pass has a fixed cost."""


class Engine:
    """Computes requests in batches with one backend. All methods run on the event loop.

    A reload makes another engine. Each request stays in the engine in which it began, so a replaced engine closes
    itself after its last request.
    """

    def __init__(
        self,
        backend: Backend,
        settings: Settings,
        metrics: Metrics,
        on_failure: Callable[[Engine, BaseException], None] = lambda *_: None,
        throughput: Throughput | None = None,
    ) -> None:
        """Prepare the queue; nothing can be computed before `load`.

        Args:
            on_failure: called once, before any request fails, when no further batch can succeed.
        """
        self.backend = backend
        self.throughput = throughput or Throughput(fixed_batch_tokens=settings.max_batch_tokens)
        self._queue = FairQueue()
        self.admission = Admission(self.throughput, self._queue)
        self.error: BaseException | None = None
        """The reason why no further batch can succeed."""
        self.is_replaced = False
        self.is_closed = False
        self._is_open = False
        """Whether requests are taken: from `load` until it fails or closes."""
        self._settings = settings
        self._metrics = metrics
        self._on_failure = on_failure
        self._on_closed: Callable[[Engine], None] = lambda _: None
        self._queries: set[Query] = set()
        """Requests that are queued or being computed."""
        self._tokenizing = 0
        """Number of requests that a thread tokenizes."""
        self._running = 0
        """Number of batches that are being computed."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._dispatch_is_due = False

    @property
    def unanswered_requests(self) -> int:
        """Requests that wait for a batch or are being computed."""
        return len(self._queries)

    @property
    def queued_tokens(self) -> int:
        """Tokens that wait for a batch."""
        return self._queue.tokens

    async def load(self) -> None:
        """Load the backend, after which requests can be computed. Raises the errors of `Backend.load`."""
        await self.backend.load(self.fail, self._dispatch_soon)
        info = self.backend.info
        self.throughput.set(info.tokens_per_second, info.processes, info.max_useful_tokens)
        derived = self.throughput.policy.queue_tokens(info.tokens_per_second, self._settings.request_timeout_ms / 1000)
        self.admission.max_queue_tokens = self._settings.max_queue_tokens or derived
        self._is_open = True

    def model_with(self, head: Head, task: str) -> tuple[str, ServedModel]:
        """The name of the encoder that has a head, and the model. Raises TaskNotServedError if none has it."""
        for name, served in self.backend.info.models.items():
            if head in served.heads:
                return name, served
        raise errors.TaskNotServedError(f"the loaded checkpoint has no head for {task}; GET /info lists the tasks")

    def fail(self, error: BaseException) -> None:
        """Fail all requests: no further batch can succeed."""
        if self.error is None and not self.is_closed:
            self.error, self._is_open = error, False
            self._on_failure(self, error)  # first, so that a client that gets a 503 already sees it in /health/live
            self._fail_all()

    def replace(self, on_closed: Callable[[Engine], None] = lambda _: None) -> None:
        """Close after this engine's last request, then call `on_closed`: another engine takes new requests."""
        self.is_replaced = True
        self._on_closed = on_closed
        self._close_if_unused()

    async def aclose(self, grace_seconds: float = 0.0) -> None:
        """Compute no further batch, and wait up to `grace_seconds` for running ones; then kill the processes. Waiting
        requests fail."""
        self._is_open = False
        if self._tasks and grace_seconds:
            await asyncio.wait(self._tasks, timeout=grace_seconds)
        self.is_closed = True
        self._fail_all()
        await self.backend.aclose()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # Requests -------------------------------------------------------------------------------------------------

    @contextmanager
    def tokenizing(self, characters: Sequence[int]) -> Iterator[None]:
        """Count a request as queued while a thread tokenizes it, given the characters of each input. A replaced engine
        is closed only after that."""
        tokens = list(map(self.admission.estimated_tokens, characters))
        self._tokenizing += 1
        self.admission.reserved_tokens += sum(tokens)
        self.admission.count(tokens, 1)
        try:
            yield
        finally:
            self._tokenizing -= 1
            self.admission.reserved_tokens -= sum(tokens)
            self.admission.count(tokens, -1)
            asyncio.get_running_loop().call_soon(self._close_if_unused)  # once the request is queued

    async def compute(self, query: Query, encoder: str, deadline: Deadline) -> list[ModelOutput]:
        """Queue the inputs of a request, and wait for their outputs, in the order of the inputs.

        The caller has to cancel this at the deadline, because late inputs are not computed.

        Raises:
            UnavailableError: nothing can be computed.
            TooLargeError, QueueFullError, DeadlineExceededError, DeadlineUnreachableError: see `Admission.check`.
            InferenceError: an input failed.
        """
        query.submitted = time.monotonic()
        if not self._is_open:
            raise self._unavailable()
        self.admission.check(query.ends[-1], len(query.lengths), deadline)
        self.admission.count(query.lengths, 1)
        query.encoder, query.deadline = encoder, deadline.at
        future = query.future = asyncio.get_running_loop().create_future()
        self._queries.add(query)
        self._queue.push(query)
        self._dispatch_soon()
        try:
            await future
        finally:
            # Break the cycle future -> exception -> traceback -> this frame: after gc.freeze() it is never collected.
            query.future = None
            del future
            self._queue.withdraw(query)
            self._queries.discard(query)
            self.admission.count(query.lengths, -1)
            if self.is_replaced:
                self._close_if_unused()
        return query.outputs

    def _unavailable(self) -> errors.UnavailableError:
        """The reason why this engine computes nothing any more."""
        if self.is_replaced:
            return errors.UnavailableError("reloading", retry_after=1)
        return errors.UnavailableError("stopped" if self.error is None else "broken")

    def _fail_all(self) -> None:
        for query in self._queries:
            self._fail(query, self._unavailable())

    def _fail(self, query: Query, error: Exception) -> None:
        """Fail a request as a whole: those of its inputs that wait are not computed."""
        self._queue.withdraw(query)
        if query.future is not None and not query.future.done():
            query.future.set_exception(error)

    def _close_if_unused(self) -> None:
        """Close a replaced engine that has no request. Every request has a deadline, so this happens within the request
        timeout."""
        if self.is_replaced and not self._queries and not self._tokenizing and not self.is_closed:
            self.is_closed = True
            task = asyncio.create_task(self.backend.aclose())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            task.add_done_callback(lambda _: self._on_closed(self))

    # Batches --------------------------------------------------------------------------------------------------

    def _dispatch_soon(self) -> None:
        """Start batches after the callbacks that are due now: requests that arrived together share a batch."""
        if not self._dispatch_is_due:
            self._dispatch_is_due = True
            asyncio.get_running_loop().call_soon(self._dispatch)

    def _dispatch(self) -> None:
        """Start a batch in each free process."""
        self._dispatch_is_due = False
        while self._is_open and (slots := self.backend.slots - self._running) > 0:
            # Split the queue evenly if several processes are free.
            share = max(self._queue.tokens // slots, MIN_TOKENS_TO_SPLIT)
            batch = self._queue.take(min(self.throughput.batch_tokens, share))
            if not batch:
                return
            self._running += 1
            task = asyncio.create_task(self._run_batch(batch, self._running))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _run_batch(self, batch: list[Part], concurrent: int) -> None:
        """Compute a batch, then start the next one. `concurrent`: number of running batches when it began, itself
        included."""
        try:
            await self._run_parts(batch, concurrent)
        except Exception as error:
            self.fail(error)
        finally:
            self._running -= 1
            self._dispatch()

    async def _run_parts(self, parts: Sequence[Part], concurrent: int) -> None:
        """Compute parts of requests, and deliver their outputs."""
        parts = [part for part in parts if not part.query.has_ended]
        if not parts:
            return
        now = time.monotonic()
        for part in parts:
            part.query.started = min(part.query.started, now)
        try:
            result = await self.backend.run(parts[0].query.encoder, parts)
        except errors.BackendDiedError:
            raise
        except (errors.ProcessDiedError, errors.UnavailableError) as error:  # halves might end further processes
            logger.error("a batch of %d requests failed: %s", len(parts), error)
            for part in parts:
                self._fail(part.query, error)
            return
        except Exception as error:
            halves = self._halves(parts, error)
        else:
            self._deliver(parts, result, concurrent)
            return
        for half in halves:  # so that only the failing input gets the error
            await self._run_parts(half, concurrent)

    def _halves(self, parts: Sequence[Part], error: Exception) -> Sequence[Sequence[Part]]:
        """The halves of a batch that failed, or of the inputs of its only part. A single input gets the error."""
        tokens = sum(part.tokens for part in parts)
        first, middle = parts[0], (parts[0].start + parts[0].stop) // 2
        if len(parts) == first.inputs == 1:
            logger.error("inference failed on one input of %d tokens", tokens, exc_info=error)
            self._fail(first.query, errors.InferenceError(index=first.start))
            return ()
        if isinstance(error, errors.OutOfMemoryError):
            self.throughput.record_out_of_memory(tokens)
            logger.warning("out of memory; batches now have at most %d tokens", self.throughput.batch_tokens)
        if len(parts) > 1:
            return parts[: len(parts) // 2], parts[len(parts) // 2 :]
        return [first._replace(stop=middle)], [first._replace(start=middle)]

    def _deliver(self, parts: Sequence[Part], result: BatchResult, concurrent: int) -> None:
        """Deliver the outputs of parts that were computed together, and update the estimated speed and the metrics."""
        inputs = tokens = 0
        for part, outputs in zip(parts, result.outputs, strict=True):
            inputs, tokens = inputs + part.inputs, tokens + part.tokens
            query = part.query
            if isinstance(outputs, errors.InferenceError):
                self._fail(query, outputs)
                continue
            query.outputs[part.start : part.stop] = outputs
            query.uncomputed -= part.inputs
            if not query.uncomputed and query.future is not None and not query.future.done():
                query.future.set_result(None)
        self.throughput.record_batch(tokens, result.seconds, max(concurrent, self._running))
        self._metrics.batch(inputs, tokens)
