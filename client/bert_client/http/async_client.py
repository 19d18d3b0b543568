"""The client for asyncio. `sync` has its twin; what they share is in `exchange` and `calls`."""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable
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


class AsyncBertClient:
    """`BertClient` for asyncio: the same methods, to be awaited; the streams take async iterables too."""

    def __init__(
        self,
        base_url: str = calls.DEFAULT_URL,
        *,
        api_key: str | None = None,
        timeout: float = 60.0,
        concurrency: int = 4,
        retry: RetryPolicy = PATIENT,
        transport: httpx.AsyncBaseTransport | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        check_options(base_url, timeout, concurrency)
        self._timeout = timeout
        self._concurrency = concurrency
        self._sleep = sleep
        self._exchange = Exchange(retry, time.monotonic, random.random)
        self._sizes: RequestLimits | None = None
        self._http = httpx.AsyncClient(
            base_url=base_url,
            headers=calls.authorization(api_key),
            timeout=connect_timeout(timeout),
            transport=transport,
        )

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    @overload
    async def fill_mask(self, inputs: str, **options: Unpack[FillMaskOptions]) -> FillMaskResult: ...
    @overload
    async def fill_mask(self, inputs: list[str], **options: Unpack[FillMaskOptions]) -> list[FillMaskResult]: ...
    async def fill_mask(
        self, inputs: str | list[str], **options: Unpack[FillMaskOptions]
    ) -> FillMaskResult | list[FillMaskResult]:
        """The likeliest words for each `[MASK]`."""
        return await self._answer(calls.fill_mask(**options), inputs)

    def fill_mask_stream(
        self, inputs: Iterable[str] | AsyncIterable[str], **options: Unpack[FillMaskOptions]
    ) -> AsyncIterator[FillMaskResult | ProblemError]:
        """Like `fill_mask`, for any number of texts."""
        return self._stream(calls.fill_mask(**options), inputs)

    @overload
    async def next_sentence(self, inputs: Pair, **options: Unpack[Options]) -> LabelResult: ...
    @overload
    async def next_sentence(self, inputs: list[Pair], **options: Unpack[Options]) -> list[LabelResult]: ...
    async def next_sentence(
        self, inputs: Pair | list[Pair], **options: Unpack[Options]
    ) -> LabelResult | list[LabelResult]:
        """The probability that the second text of a pair stood right after the first."""
        return await self._answer(calls.next_sentence(**options), inputs)

    def next_sentence_stream(
        self, inputs: Iterable[Pair] | AsyncIterable[Pair], **options: Unpack[Options]
    ) -> AsyncIterator[LabelResult | ProblemError]:
        """Like `next_sentence`, for any number of pairs."""
        return self._stream(calls.next_sentence(**options), inputs)

    @overload
    async def sentiment(self, inputs: str | Pair, **options: Unpack[SentimentOptions]) -> LabelResult: ...
    @overload
    async def sentiment(self, inputs: Texts, **options: Unpack[SentimentOptions]) -> list[LabelResult]: ...
    async def sentiment(
        self, inputs: str | Pair | Texts, **options: Unpack[SentimentOptions]
    ) -> LabelResult | list[LabelResult]:
        """The labels of a text, or of a review's title and body, with their probabilities."""
        return await self._answer(calls.sentiment(**options), inputs)

    def sentiment_stream(
        self, inputs: Iterable[str | Pair] | AsyncIterable[str | Pair], **options: Unpack[SentimentOptions]
    ) -> AsyncIterator[LabelResult | ProblemError]:
        """Like `sentiment`, for any number of texts."""
        return self._stream(calls.sentiment(**options), inputs)

    async def _answer(self, call: Call[T], inputs: Any) -> Any:
        if isinstance(inputs, list):
            return [result_or_raise(outcome) async for outcome in self._stream(call, inputs)]
        (outcome,) = await self._run(self._exchange.answer(call, Chunk(0, [calls.encode(inputs)])))
        return result_or_raise(outcome)

    async def _stream(
        self, call: Call[T], inputs: Iterable[Any] | AsyncIterable[Any]
    ) -> AsyncIterator[T | ProblemError]:
        window: deque[asyncio.Task[list[T | ProblemError]]] = deque()
        guard = SlowServiceGuard()
        try:
            async for chunk in self._chunks(call, inputs):
                if len(window) == self._concurrency:
                    for outcome in guard.of(await window.popleft()):
                        yield outcome
                window.append(asyncio.create_task(self._run(self._exchange.answer(call, chunk))))
            while window:
                for outcome in guard.of(await window.popleft()):
                    yield outcome
        finally:
            for task in window:
                task.cancel()
            await asyncio.gather(*window, return_exceptions=True)

    async def _chunks(self, call: Call[T], inputs: Iterable[Any] | AsyncIterable[Any]) -> AsyncIterator[Chunk]:
        splitter: Chunker | None = None
        async for given in _each(inputs):
            splitter = splitter or Chunker(await self._read_sizes(), call.parameters)
            for chunk in splitter.push(calls.encode(given)):
                yield chunk
        if splitter is not None:
            for chunk in splitter.rest():
                yield chunk

    async def _read_sizes(self) -> RequestLimits:
        if self._sizes is None:
            self._sizes = await self._run(self._exchange.sizes())
        return self._sizes

    async def _run(self, plan: Flow[T]) -> T:
        outcome: Outcome = None
        while True:
            try:
                step = plan.send(outcome)
            except StopIteration as end:
                result: T = end.value
                return result
            outcome = await self._perform(step)

    async def _perform(self, step: Send | Wait) -> Outcome:
        if isinstance(step, Wait):
            await self._sleep(step.seconds)
            return None
        try:
            return await self._http.request(
                step.method, step.path, content=step.body, headers=step.headers(self._timeout)
            )
        except httpx.RequestError as error:
            return error


async def _each(inputs: Iterable[T] | AsyncIterable[T]) -> AsyncIterator[T]:
    if isinstance(inputs, AsyncIterable):
        async for given in inputs:
            yield given
    else:
        for given in inputs:
            yield given
