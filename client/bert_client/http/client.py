"""The client for ordinary code. `aio` has its twin; what they share is in `exchange` and `calls`."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack, overload

import httpx

from bert_client.errors import ProblemError
from bert_client.http import calls
from bert_client.http.calls import (
    Call,
    Chunk,
    Chunker,
    FillMaskOptions,
    Options,
    Pair,
    RequestLimits,
    SentimentOptions,
    Texts,
)
from bert_client.http.exchange import (
    Exchange,
    Flow,
    Outcome,
    Send,
    SlowServiceGuard,
    Wait,
    check_options,
    connect_timeout,
    result_or_raise,
)
from bert_client.http.retry import PATIENT, RetryPolicy
from bert_client.wire import FillMaskResult, LabelResult

T = TypeVar("T")


class BertClient:
    """Asks a running service. May be shared by threads; close it, or use it in a `with` statement.

    A string (or a tuple of two, where texts come in pairs) gives one result, a list gives a list in the same
    order. A long list travels in several requests, `concurrency` of them at once, each as large as the service
    allows. The `_stream` methods do the same for any iterable in bounded memory, and go on after an input that
    cannot be answered: in place of its result stands its `ProblemError`.

    Errors are those of `bert_client.errors`. `timeout` is for one request, in seconds; `retry` says how
    patiently refused and failed ones are repeated.

    Raises:
        ValueError: nothing could be sent with these arguments; says what to give.
        httpx.InvalidURL: `base_url` is none.
    """

    def __init__(
        self,
        base_url: str = calls.DEFAULT_URL,
        *,
        api_key: str | None = None,
        timeout: float = 60.0,
        concurrency: int = 4,
        retry: RetryPolicy = PATIENT,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        check_options(base_url, timeout, concurrency)
        self._timeout = timeout
        self._concurrency = concurrency
        self._sleep = sleep
        self._exchange = Exchange(retry, time.monotonic, random.random)
        self._sizes: RequestLimits | None = None
        self._http = httpx.Client(
            base_url=base_url,
            headers=calls.authorization(api_key),
            timeout=connect_timeout(timeout),
            transport=transport,
        )

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @overload
    def fill_mask(self, inputs: str, **options: Unpack[FillMaskOptions]) -> FillMaskResult: ...
    @overload
    def fill_mask(self, inputs: list[str], **options: Unpack[FillMaskOptions]) -> list[FillMaskResult]: ...
    def fill_mask(
        self, inputs: str | list[str], **options: Unpack[FillMaskOptions]
    ) -> FillMaskResult | list[FillMaskResult]:
        """The likeliest words for each `[MASK]`."""
        return self._answer(calls.fill_mask(**options), inputs)

    def fill_mask_stream(
        self, inputs: Iterable[str], **options: Unpack[FillMaskOptions]
    ) -> Iterator[FillMaskResult | ProblemError]:
        """Like `fill_mask`, for any number of texts."""
        return self._stream(calls.fill_mask(**options), inputs)

    @overload
    def next_sentence(self, inputs: Pair, **options: Unpack[Options]) -> LabelResult: ...
    @overload
    def next_sentence(self, inputs: list[Pair], **options: Unpack[Options]) -> list[LabelResult]: ...
    def next_sentence(self, inputs: Pair | list[Pair], **options: Unpack[Options]) -> LabelResult | list[LabelResult]:
        """The probability that the second text of a pair stood right after the first."""
        return self._answer(calls.next_sentence(**options), inputs)

    def next_sentence_stream(
        self, inputs: Iterable[Pair], **options: Unpack[Options]
    ) -> Iterator[LabelResult | ProblemError]:
        """Like `next_sentence`, for any number of pairs."""
        return self._stream(calls.next_sentence(**options), inputs)

    @overload
    def sentiment(self, inputs: str | Pair, **options: Unpack[SentimentOptions]) -> LabelResult: ...
    @overload
    def sentiment(self, inputs: Texts, **options: Unpack[SentimentOptions]) -> list[LabelResult]: ...
    def sentiment(
        self, inputs: str | Pair | Texts, **options: Unpack[SentimentOptions]
    ) -> LabelResult | list[LabelResult]:
        """The labels of a text, or of a review's title and body, with their probabilities."""
        return self._answer(calls.sentiment(**options), inputs)

    def sentiment_stream(
        self, inputs: Iterable[str | Pair], **options: Unpack[SentimentOptions]
    ) -> Iterator[LabelResult | ProblemError]:
        """Like `sentiment`, for any number of texts."""
        return self._stream(calls.sentiment(**options), inputs)

    def _answer(self, call: Call[T], inputs: Any) -> Any:
        if isinstance(inputs, list):
            return [result_or_raise(outcome) for outcome in self._stream(call, inputs)]
        (outcome,) = self._run(self._exchange.answer(call, Chunk(0, [calls.encode(inputs)])))
        return result_or_raise(outcome)

    def _stream(self, call: Call[T], inputs: Iterable[Any]) -> Iterator[T | ProblemError]:
        pool = ThreadPoolExecutor(self._concurrency, "bert-client")
        window: deque[Future[list[T | ProblemError]]] = deque()
        guard = SlowServiceGuard()
        try:
            for chunk in self._chunks(call, inputs):
                if len(window) == self._concurrency:
                    yield from guard.of(window.popleft().result())
                window.append(pool.submit(self._run, self._exchange.answer(call, chunk)))
            while window:
                yield from guard.of(window.popleft().result())
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _chunks(self, call: Call[T], inputs: Iterable[Any]) -> Iterator[Chunk]:
        splitter: Chunker | None = None
        for given in inputs:
            splitter = splitter or Chunker(self._read_sizes(), call.parameters)
            yield from splitter.push(calls.encode(given))
        if splitter is not None:
            yield from splitter.rest()

    def _read_sizes(self) -> RequestLimits:
        if self._sizes is None:
            self._sizes = self._run(self._exchange.sizes())
        return self._sizes

    def _run(self, plan: Flow[T]) -> T:
        outcome: Outcome = None
        while True:
            try:
                step = plan.send(outcome)
            except StopIteration as end:
                result: T = end.value
                return result
            outcome = self._perform(step)

    def _perform(self, step: Send | Wait) -> Outcome:
        if isinstance(step, Wait):
            self._sleep(step.seconds)
            return None
        try:
            return self._http.request(step.method, step.path, content=step.body, headers=step.headers(self._timeout))
        except httpx.RequestError as error:
            return error
