"""An engine: one loaded backend with its queue, its slots and its measured speed.

A batch starts the moment a process is free, without a timer and without polling. All inputs that have arrived by then
share a forward pass; an idle engine starts at once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from app import errors
from app.batching.admission import Admission
from app.batching.deadline import Deadline
from app.batching.fair_queue import FairQueue, QueuedRequest, Run
from app.batching.throughput import Throughput
from app.inference.contract import Backend, Head, ModelOutput, Query, ServedModel
from app.observability.metrics import Metrics
from app.settings import Settings

logger = logging.getLogger(__name__)

MIN_TOKENS_TO_SPLIT = 256
"""Minimum tokens that a process takes, however many others are free, because a forward pass has a fixed cost."""


Outputs = Sequence[Sequence[ModelOutput | Exception]]
"""The outputs of each run of a batch, in the order of its inputs."""
Fault = tuple[int, Exception]
"""The index of an output in its run, and the error in its place."""


@dataclass(slots=True, eq=False)
class RunningBatch:
    """A batch that is being computed."""

    concurrent: int
    """Number of batches that were being computed when it began, itself included."""
    seconds: float = 0.0
    """Time that the inference process took for it."""
    lacked_memory: bool = False
    fitting_tokens: int = 0
    """Tokens of the largest part that fitted into memory; 0 if none did."""


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
        self.admission = Admission(self.throughput)
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
        self._queue = FairQueue()
        self._requests: set[QueuedRequest] = set()
        """Requests that are reserved and not released."""
        self._running: set[RunningBatch] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._dispatch_is_due = False

    @property
    def unanswered_requests(self) -> int:
        """Requests that wait for a batch or are being computed."""
        return sum(request.future is not None for request in self._requests)

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

    async def aclose(self, patience: float = 0.0) -> None:
        """Compute no further batch, and wait up to `patience` seconds for running ones; then kill the processes.
        Waiting requests fail."""
        self._is_open = False
        if self._tasks and patience:
            await asyncio.wait(self._tasks, timeout=patience)
        self.is_closed = True
        self._fail_all()
        await self.backend.aclose()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # Requests -------------------------------------------------------------------------------------------------

    def reserve(self, tokens: Sequence[int], deadline: Deadline) -> QueuedRequest:
        """Reserve room in the queue while a request is tokenized, until `release`, given the estimated tokens of each
        input.

        The estimate counts as the whole queue at most; `compute` checks the true number.

        Raises:
            UnavailableError: nothing can be computed.
            QueueFullError, DeadlineExceededError, DeadlineUnreachableError: see `Admission.check`.
        """
        total = min(sum(tokens), self.admission.max_queue_tokens)  # an estimate alone never refuses a request for good
        request = QueuedRequest(len(tokens), total, max(tokens, default=0), deadline)
        self._check(total, len(tokens), deadline)
        self.admission.add(request)
        self._requests.add(request)
        return request

    def release(self, request: QueuedRequest) -> None:
        """End a request, with or without outputs. Its waiting inputs are not computed."""
        self.admission.remove(request)
        if request.waiting_tokens:
            self._queue.withdraw(request)
        self._requests.discard(request)
        self._close_if_unused()

    async def compute(self, request: QueuedRequest, encoder: str, query: Query) -> list[ModelOutput]:
        """Queue the inputs of a reservation, and wait for their outputs, in the order of the inputs.

        The caller has to cancel this at the deadline, because late inputs are not computed.

        Raises:
            TooLargeError: the request would not fit into an empty queue.
            UnavailableError, QueueFullError, DeadlineExceededError, DeadlineUnreachableError: see `reserve`.
            InferenceError: an input failed.
        """
        self.admission.remove(request)  # the estimate; the true number is added below
        request.submitted = time.monotonic()
        self._check(sum(query.lengths), request.items, request.deadline)
        request.fill(encoder, query)
        self.admission.add(request)
        future = request.future = asyncio.get_running_loop().create_future()
        self._queue.push(request)
        self._dispatch_soon()
        try:
            await future
        finally:
            # Break the cycle future -> exception -> traceback -> this frame: after gc.freeze() it is never collected.
            request.future = None
            del future
        return request.outputs  # type: ignore[return-value]  # none is None any more

    def check_head(self, body_bytes: int, deadline: Deadline) -> None:
        """Check that a request with a body of this size has a chance. Raises the errors of `reserve`."""
        self._check_open()
        self.admission.check_head(body_bytes, self._queue.tokens, deadline)

    def _check(self, tokens: int, inputs: int, deadline: Deadline) -> None:
        self._check_open()
        self.admission.check(tokens, inputs, self._queue.tokens, deadline)

    def _check_open(self) -> None:
        if not self._is_open:
            raise self._unavailable()

    def _unavailable(self) -> errors.UnavailableError:
        """The reason why this engine computes nothing any more."""
        if self.is_replaced:
            return errors.UnavailableError("reloading", retry_after=1)
        return errors.UnavailableError("stopped" if self.error is None else "broken")

    def _fail_all(self) -> None:
        for request in self._requests:
            if request.waiting_tokens:
                self._queue.withdraw(request)
            self._fail(request, self._unavailable())

    def _fail(self, request: QueuedRequest, error: Exception) -> None:
        if request.future is not None and not request.future.done():
            request.future.set_exception(error)

    def _close_if_unused(self) -> None:
        """Close a replaced engine that has no request. Every request has a deadline, so this happens within the request
        timeout."""
        if self.is_replaced and not self._requests and not self.is_closed:
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
        """Start a batch in each free process. Inputs wait in the queue until then, so that those whose requests have
        ended meanwhile are not computed."""
        self._dispatch_is_due = False
        while self._is_open and (slots := self.backend.slots - len(self._running)) > 0:
            # Split the queue evenly if several processes are free.
            share = max(self._queue.tokens // slots, MIN_TOKENS_TO_SPLIT)
            batch = self._queue.take(min(self.throughput.batch_tokens, share))
            if not batch:
                return
            now = time.monotonic()
            batch = [run for run in batch if run.request.deadline.at > now]
            if not batch:
                continue
            running = RunningBatch(len(self._running) + 1)
            self._running.add(running)
            for run in batch:
                run.request.started = min(run.request.started, now)
            task = asyncio.create_task(self._compute(batch, running))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _compute(self, batch: list[Run], running: RunningBatch) -> None:
        try:
            outputs = await self._run_isolated(batch, running)
            faults = list(map(_fault, outputs))
            self._record(batch, running, failed=any(faults))
            self._running.discard(running)
            for run, fault in zip(batch, faults, strict=True):
                if fault:
                    self._queue.withdraw(run.request)  # the request has failed as a whole
            self._dispatch()  # before delivering the outputs, so that the process does not wait
            self._deliver(batch, outputs, faults)
        except Exception as error:
            self.fail(error)
        finally:
            self._running.discard(running)

    def _record(self, batch: list[Run], running: RunningBatch, *, failed: bool) -> None:
        """Update the estimates of the backend's speed and memory from a batch."""
        tokens = sum(run.tokens for run in batch)
        if not failed:
            concurrent = max(running.concurrent, len(self._running))
            self.throughput.record_batch(tokens, running.seconds, concurrent)
        if running.lacked_memory:
            if running.fitting_tokens:  # else smaller batches would not help
                self.throughput.record_out_of_memory(running.fitting_tokens)
            logger.warning("out of memory at %d tokens; batches are now %d", tokens, self.throughput.batch_tokens)

    async def _run_isolated(self, batch: list[Run], running: RunningBatch) -> Outputs:
        """The outputs of each run of a batch. If the batch fails, its halves are computed, so that only the failing
        input gets the error."""
        if all(run.request.future is None for run in batch):  # these requests have ended
            return [[errors.InferenceError()] * run.items for run in batch]
        items, tokens = sum(run.items for run in batch), sum(run.tokens for run in batch)
        try:
            result = await self.backend.run(batch[0].request.encoder, [run.part for run in batch])
            running.seconds += result.seconds
            if [len(own) for own in result.outputs] != [run.items for run in batch]:
                raise RuntimeError(f"{sum(map(len, result.outputs))} outputs of {items} inputs")
            running.fitting_tokens = max(running.fitting_tokens, tokens)
            return result.outputs
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

    def _deliver(self, batch: list[Run], outputs: Outputs, faults: Sequence[Fault | None]) -> None:
        computed = [run for run, fault in zip(batch, faults, strict=True) if fault is None]
        if computed:
            self._metrics.batch(sum(run.items for run in computed), sum(run.tokens for run in computed))
        for run, own, fault in zip(batch, outputs, faults, strict=True):
            request = run.request
            if fault is not None:
                index, error = fault
                if isinstance(error, errors.InferenceError) and not isinstance(error, errors.ProcessDiedError):
                    error.faults = [(errors.InferenceError(str(error)), ("inputs", run.start + index))]
                self._fail(request, error)
                continue
            request.outputs[run.start : run.stop] = own  # type: ignore[assignment]  # none is an error
            request.uncomputed -= run.items
            if not request.uncomputed and request.future is not None and not request.future.done():
                request.future.set_result(None)


def _fault(outputs: Sequence[ModelOutput | Exception]) -> Fault | None:
    """The first error among the outputs of a run."""
    return next(((i, output) for i, output in enumerate(outputs) if isinstance(output, Exception)), None)
