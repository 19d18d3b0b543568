"""Dynamic batching on the event loop.

A batch starts the moment a process is free: without a timer and without polling. What has arrived by then shares a
forward pass; an idle service starts at once. Tensors are elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, NoReturn

from app import errors
from app.inference.types import Answer, BatchResult, Part, Query
from app.observability.metrics import Metrics
from app.scheduling.deadline import Deadline
from app.scheduling.fair_queue import FairQueue, LoadBySize, QueuedRequest, Run
from app.scheduling.throughput import Throughput

logger = logging.getLogger(__name__)

MIN_TOKENS_TO_SPLIT = 256
"""Tokens that a process may take at least, however many others are free: a forward pass has a fixed cost."""


Answers = Sequence[Sequence[Answer | Exception]]
"""Of each run of a batch, in the order of its inputs."""
Fault = tuple[int, Exception]
"""The index of an answer in its run, and the error in its place."""


@dataclass(slots=True, eq=False)
class Running:
    """A batch that is being computed."""

    began: float
    """When it was sent to the backend; of a batch that failed and is halved, when the present part was."""
    concurrent: int
    """Batches that were being computed when it began, itself included."""
    seconds: float = 0.0
    """That the inference process took for it."""
    lacked_memory: bool = False
    fitting_tokens: int = 0
    """Tokens of the largest part that fitted into memory; 0 if none did."""


class Scheduler:
    """The queue, and the batches that are being computed. All methods run on the event loop.

    `run(encoder, parts)` computes a batch: one answer per input, or in its place the exception that only this input
    gets. If it raises, the batch is halved until the failing input is alone.
    """

    def __init__(
        self,
        run: Callable[[Any, list[Part]], Awaitable[BatchResult]],
        *,
        throughput: Throughput,
        metrics: Metrics,
        on_failure: Callable[[BaseException], None] = lambda _: None,
        is_current: Callable[[Any], bool] = lambda _: True,
    ) -> None:
        """Prepare the queue; nothing is computed before `open`.

        Args:
            on_failure: called once, before any request fails, when no further batch can succeed.
            is_current: whether an encoder is one of the present backend's. A replaced one has processes of its own.
        """
        self.throughput = throughput
        self.max_queue_tokens = 0
        """Tokens that may wait ahead of a request, its own included."""
        self.reserved_tokens = 0
        """Estimated tokens of requests that are being tokenized; they count as queued."""
        self.fatal_error: BaseException | None = None
        self._run = run
        self._metrics = metrics
        self._on_failure = on_failure
        self._is_current = is_current
        self._processes = 0
        self._replaced = asyncio.Semaphore()
        """Processes of the backend that was replaced last"""
        self._queue = FairQueue()
        self._load_by_size = LoadBySize()
        self._unanswered: set[QueuedRequest] = set()
        self._running: set[Running] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._dispatch_is_due = False

    @property
    def unanswered_requests(self) -> int:
        """Requests that are accepted and not answered yet, those in compute included."""
        return len(self._unanswered)

    @property
    def queued_tokens(self) -> int:
        """Tokens that wait for a batch."""
        return self._queue.tokens

    @property
    def computing_for(self) -> float:
        """Seconds since the longest running batch began; 0 if none runs."""
        now = time.monotonic()
        return max((now - batch.began for batch in self._running), default=0.0)

    def open(self, processes: int, max_queue_tokens: int) -> None:
        """A backend was loaded: give it up to `processes` batches at the same time, and queue up to so many tokens.
        Batches of the backend that it replaces run in other processes, so they count no longer."""
        self.max_queue_tokens = max_queue_tokens
        self._replaced = asyncio.Semaphore(max(1, self._processes))
        self._processes = processes
        self._running.clear()
        self._dispatch_soon()

    def fail(self, error: BaseException) -> None:
        """Fail all requests: no further batch can succeed."""
        if self.fatal_error is not None:
            return
        self.fatal_error = error
        self._on_failure(error)  # first, so that a client that gets a 503 already sees it in /health/live
        self._fail_all("broken")

    async def aclose(self, patience: float) -> None:
        """Compute no further batch, and wait up to `patience` seconds for those that run. Waiting requests fail."""
        self._processes = 0
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=patience)
        self._fail_all("broken" if self.fatal_error is not None else "stopped")

    @contextmanager
    def reserve(self, tokens: Sequence[int], deadline: Deadline) -> Iterator[QueuedRequest]:
        """Hold room in the queue for a request that is being tokenized, given the estimated tokens of each item. The
        estimate counts as the whole queue at most; `answer` checks the true number.

        Raises:
            QueueFullError: the request does not fit now, or the server's deadline cannot be met.
            DeadlineExceededError: its deadline passed; DeadlineUnreachableError: the caller's own cannot be met.
            UnavailableError: nothing can be computed.
        """
        total = min(sum(tokens), self.max_queue_tokens)  # an estimate alone never refuses a request for good
        request = QueuedRequest(len(tokens), total, max(tokens, default=0), deadline)
        if deadline.remaining <= 0:
            self._metrics.expired()
            raise errors.DeadlineExceededError
        self.check_capacity(request.tokens, request.items, deadline)
        self._load_by_size.add(request)
        self.reserved_tokens += request.tokens
        try:
            yield request
        finally:
            self._release(request)

    def _release(self, request: QueuedRequest) -> None:
        """Take a request out of the load and of the reservations; without effect the second time."""
        self._load_by_size.remove(request)
        if not request.submitted:
            self.reserved_tokens -= request.tokens
        request.tokens = request.largest_item_tokens = 0

    async def answer(self, request: QueuedRequest, encoder: Hashable, query: Query) -> list[Answer]:
        """Turn a reservation into inputs of the queue, and wait for their answers in the order of the inputs.

        Cancelling this removes what still waits.

        Raises:
            TooLargeError: the request would not fit into an empty queue.
            QueueFullError, DeadlineExceededError, UnavailableError: see `reserve`.
            InferenceError: an input failed.
        """
        self._release(request)
        request.submitted = time.monotonic()
        self.check_capacity(sum(query.lengths), request.items, request.deadline)
        request.fill(encoder, query)
        self._load_by_size.add(request)
        future = request.future = asyncio.get_running_loop().create_future()
        self._queue.push(request)
        self._unanswered.add(request)
        self._dispatch_soon()
        try:
            await future
        except asyncio.CancelledError:
            self._queue.withdraw(request)
            raise
        finally:
            # Break the cycle future -> exception -> traceback -> this frame: after gc.freeze() it is never collected.
            request.future = None
            del future
            self._unanswered.discard(request)
        return [answer for answer in request.answers if answer is not None]

    def check_capacity(self, tokens: int, items: int, deadline: Deadline, *, headroom: float = 0.0) -> None:
        """Check that a request of so many tokens in so many items can be queued now.

        A request with nothing ahead is not refused as late, even if its deadline seems hopeless: the speed is a mean
        over both models and over the last batches, and a service that refuses everything cannot correct a speed that is
        too low.

        `headroom`: fraction of the room, in tokens and in time, that must be left where others wait.

        Raises:
            TooLargeError: it would not fit into an empty queue.
            QueueFullError, DeadlineUnreachableError, UnavailableError: see `reserve`.
        """
        if self.fatal_error is not None or not self._processes:
            raise errors.UnavailableError("broken" if self.fatal_error is not None else "stopped")
        if tokens > self.max_queue_tokens:
            raise errors.TooLargeError(
                f"the request has {tokens} tokens, the queue holds {self.max_queue_tokens}; send fewer inputs"
            )
        ahead = self._load_by_size.tokens_ahead(items)
        waiting = min(self.queued_tokens + self.reserved_tokens, ahead)  # a large request leaves room for small ones
        if waiting and waiting + tokens > self.max_queue_tokens * (1 - headroom):
            self._metrics.refused()
            raise errors.QueueFullError(self.throughput.seconds_for(waiting))
        backlog = self.throughput.max_backlog(deadline.remaining)
        if ahead and ahead + tokens > backlog * (1 - headroom):
            self.refuse_as_late(self.throughput.seconds_for(ahead), deadline)

    def refuse_as_late(self, retry_after: int, deadline: Deadline) -> NoReturn:
        """Refuse a request because what is ahead of it takes longer than its deadline allows.

        Raises:
            DeadlineUnreachableError: the deadline is the caller's own.
            QueueFullError: it is the server's.
        """
        if deadline.from_client:
            self._metrics.expired()
            raise errors.DeadlineUnreachableError(retry_after)
        self._metrics.refused()
        raise errors.QueueFullError(retry_after, late=True)

    # Batches --------------------------------------------------------------------------------------------------

    def _dispatch_soon(self) -> None:
        """Start batches after the callbacks that are due now: requests that arrived together share a batch."""
        if not self._dispatch_is_due:
            self._dispatch_is_due = True
            asyncio.get_running_loop().call_soon(self._dispatch)

    def _dispatch(self) -> None:
        self._dispatch_is_due = False
        while self.fatal_error is None and (slots := self._processes - len(self._running)) > 0:
            # No more than a share of what waits, if several processes are free for it.
            share = max(self._queue.tokens // slots, MIN_TOKENS_TO_SPLIT)
            batch = self._queue.take(min(self.throughput.batch_tokens, share))
            if not batch:
                return
            running = Running(time.monotonic(), len(self._running) + 1)
            batch = [run for run in batch if run.request.deadline.at > running.began]
            if not batch:
                continue
            if self._is_current(batch[0].request.encoder):
                self._running.add(running)
            for run in batch:
                run.request.started = min(run.request.started, running.began)
            task = asyncio.create_task(self._compute(batch, running))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _compute(self, batch: list[Run], running: Running) -> None:
        try:
            async with nullcontext() if running in self._running else self._replaced:
                answers = await self._run_isolated(batch, running)
            faults = list(map(_fault, answers))
            if running in self._running:  # else another backend has been loaded since
                self._record(batch, running, failed=any(faults))
            self._running.discard(running)
            for run, fault in zip(batch, faults, strict=True):
                if fault:
                    self._queue.withdraw(run.request)  # the request has failed as a whole
            self._dispatch()
            self._deliver(batch, answers, faults)
        except Exception as error:
            self.fail(error)
        finally:
            self._running.discard(running)

    def _record(self, batch: list[Run], running: Running, *, failed: bool) -> None:
        """What a batch has shown of the backend's speed and memory."""
        tokens = sum(run.tokens for run in batch)
        if not failed:
            concurrent = max(running.concurrent, len(self._running))
            self.throughput.record_batch(tokens, running.seconds, concurrent)
        if running.lacked_memory:
            if running.fitting_tokens:  # else smaller batches would not help
                self.throughput.record_out_of_memory(running.fitting_tokens)
            logger.warning("out of memory at %d tokens; batches are now %d", tokens, self.throughput.batch_tokens)

    async def _run_isolated(self, batch: list[Run], running: Running) -> Answers:
        """The answers to each run of a batch; if it fails, to those of its halves, so that only the failing input gets
        the error."""
        if all(run.request.future is None for run in batch):  # these requests have ended
            return [[errors.InferenceError()] * run.items for run in batch]
        items, tokens = sum(run.items for run in batch), sum(run.tokens for run in batch)
        try:
            running.began = time.monotonic()
            result = await self._run(batch[0].request.encoder, [run.part for run in batch])
            running.seconds += result.seconds
            if [len(own) for own in result.answers] != [run.items for run in batch]:
                raise RuntimeError(f"{sum(map(len, result.answers))} answers to {items} inputs")
            running.fitting_tokens = max(running.fitting_tokens, tokens)
            return result.answers
        except errors.BackendDiedError:
            raise
        except errors.ProcessDiedError:  # halves would end further processes
            logger.error("a batch of %d inputs, %d tokens, ended its inference process", items, tokens)
            return [[errors.ProcessDiedError() for _ in range(run.items)] for run in batch]
        except errors.OutOfMemoryError:
            running.lacked_memory = True
        except Exception:
            if items == 1:
                logger.exception("inference failed on one input of %d tokens", tokens)
        if items == 1:
            return [[errors.InferenceError()]]
        if len(batch) > 1:
            middle = len(batch) // 2
            first = await self._run_isolated(batch[:middle], running)
            return [*first, *await self._run_isolated(batch[middle:], running)]
        (run,) = batch
        middle = (run.start + run.stop) // 2
        (first_half,) = await self._run_isolated([run._replace(stop=middle)], running)
        (second_half,) = await self._run_isolated([run._replace(start=middle)], running)
        return [[*first_half, *second_half]]

    def _deliver(self, batch: list[Run], answers: Answers, faults: Sequence[Fault | None]) -> None:
        computed = [run for run, fault in zip(batch, faults, strict=True) if fault is None]
        if computed:
            self._metrics.batch(sum(run.items for run in computed), sum(run.tokens for run in computed))
        for run, own, fault in zip(batch, answers, faults, strict=True):
            request = run.request
            if fault is not None:
                index, error = fault
                if isinstance(error, errors.InferenceError) and not isinstance(error, errors.ProcessDiedError):
                    error.faults = [(errors.InferenceError(str(error)), ("inputs", run.start + index))]
                self._fail(request, error)
                continue
            request.answers[run.start : run.stop] = own  # type: ignore[assignment]  # none is an error
            request.unanswered -= run.items
            if not request.unanswered and request.future is not None and not request.future.done():
                request.future.set_result(None)

    def _fail(self, request: QueuedRequest, error: Exception) -> None:
        if request.future is not None and not request.future.done():
            request.future.set_exception(error)

    def _fail_all(self, status: str) -> None:
        for request in list(self._unanswered):
            self._queue.withdraw(request)
            self._fail(request, errors.UnavailableError(status))


def _fault(answers: Sequence[Answer | Exception]) -> Fault | None:
    """The first error among the answers to a run."""
    return next(((i, answer) for i, answer in enumerate(answers) if isinstance(answer, Exception)), None)
