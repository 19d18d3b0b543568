"""The client for asyncio. Its twin is `client`; the common parts are in `base`, `calls` and `exchange`."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any, Self, TypeVar, Unpack, overload

import httpx

from bert_client.errors import ProblemError
from bert_client.http import calls
from bert_client.http.base import BaseClient, open_http
from bert_client.http.calls import (
    Call,
    Chunk,
    Chunker,
    FillMaskOptions,
    Input,
    InputInList,
    LabelOutcome,
    MaskOutcome,
    Options,
    Pair,
    PairInList,
    SentimentOptions,
)
from bert_client.http.exchange import FailureCounter, Flow, Outcome, Send, Wait, result_or_raise
from bert_client.results import FillMaskResult, LabelResult, Model

T = TypeVar("T")
Inputs = Iterable[T] | AsyncIterable[T]


class AsyncBertClient(BaseClient[httpx.AsyncClient, Callable[[float], Awaitable[object]]]):
    """`BertClient` for asyncio, with the same methods as coroutines. Inputs may also be an async iterable.

    It may be used in several event loops, one after the other, and opens connections in each.
    """

    def _here(self) -> asyncio.AbstractEventLoop | None:
        with suppress(RuntimeError):
            return asyncio.get_running_loop()
        return next(reversed(self._connections), None)  # outside of loops, `is_closed` is about the last

    def _connect(self) -> httpx.AsyncClient:
        for closed in [loop for loop in list(self._connections) if loop.is_closed()]:
            del self._connections[closed]
        return open_http(httpx.AsyncClient, self._url, self._proxy)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections of this event loop. An `http` that was given stays open."""
        if http := self._release():
            await http.aclose()

    @overload
    async def fill_mask(self, inputs: str, **options: Unpack[FillMaskOptions]) -> FillMaskResult: ...  # type: ignore[overload-overlap]
    @overload
    async def fill_mask(self, inputs: Inputs[str], **options: Unpack[FillMaskOptions]) -> list[FillMaskResult]: ...
    async def fill_mask(self, inputs: Any, **options: Unpack[FillMaskOptions]) -> Any:
        """The most likely words for each `[MASK]` of a text, or of several texts."""
        return await self._answer(calls.fill_mask(**options), inputs)

    def fill_mask_stream(self, inputs: Inputs[str], **options: Unpack[FillMaskOptions]) -> AsyncIterator[MaskOutcome]:
        """Like `fill_mask`, for any number of texts."""
        return self._stream(calls.fill_mask(**options), inputs)

    @overload
    async def next_sentence(self, inputs: Pair, **options: Unpack[Options]) -> LabelResult: ...
    @overload
    async def next_sentence(self, inputs: Inputs[PairInList], **options: Unpack[Options]) -> list[LabelResult]: ...
    async def next_sentence(self, inputs: Any, **options: Unpack[Options]) -> Any:
        """The probability that the second text of a pair follows the first, for a pair or for several."""
        return await self._answer(calls.next_sentence(**options), inputs)

    def next_sentence_stream(
        self, inputs: Inputs[PairInList], **options: Unpack[Options]
    ) -> AsyncIterator[LabelOutcome]:
        """Like `next_sentence`, for any number of pairs."""
        return self._stream(calls.next_sentence(**options), inputs)

    @overload
    async def sentiment(self, inputs: Input, **options: Unpack[SentimentOptions]) -> LabelResult: ...  # type: ignore[overload-overlap]
    @overload
    async def sentiment(
        self, inputs: Inputs[InputInList], **options: Unpack[SentimentOptions]
    ) -> list[LabelResult]: ...
    async def sentiment(self, inputs: Any, **options: Unpack[SentimentOptions]) -> Any:
        """The labels of a text, or of a review's title and body, with their probabilities; or of several."""
        return await self._answer(calls.sentiment(**options), inputs)

    def sentiment_stream(
        self, inputs: Inputs[InputInList], **options: Unpack[SentimentOptions]
    ) -> AsyncIterator[LabelOutcome]:
        """Like `sentiment`, for any number of texts or pairs."""
        return self._stream(calls.sentiment(**options), inputs)

    classify, classify_stream = sentiment, sentiment_stream
    """Methods for labels of any kind, such as topics."""

    async def model(self, task: str) -> Model | None:
        """The model that answers a task, such as `fill-mask`; None if the service does not tell."""
        return await self._run(self._exchange.model(task))

    async def _answer(self, call: Call[T], inputs: Any) -> Any:
        if not calls.is_one_input(inputs, takes_pairs=call.takes_pairs):
            return [result_or_raise(outcome) async for outcome in self._stream(call, inputs)]
        return await self._run(self._exchange.answer_one(call, inputs))

    async def _stream(self, call: Call[T], inputs: Inputs[Any]) -> AsyncIterator[T | ProblemError]:
        calls.check_inputs(inputs)
        window: deque[asyncio.Task[list[T | ProblemError]]] = deque()
        failures = FailureCounter()
        try:
            async for chunk in self._chunks(call, inputs):
                while window and (chunk is None or len(window) == self._concurrency):
                    for outcome in await window.popleft():
                        yield outcome
                if chunk:
                    window.append(asyncio.create_task(self._run(self._exchange.answer(call, chunk, failures))))
        finally:
            for task in window:
                task.cancel()
            await asyncio.gather(*window, return_exceptions=True)

    async def _chunks(self, call: Call[T], inputs: Inputs[Any]) -> AsyncIterator[Chunk | None]:
        """The inputs in chunks, and None in place of `FLUSH` and at the end. An error, of `inputs` or of `/info`, is
        raised after the inputs before it are answered."""
        chunker = Chunker(call.parameters)
        try:
            async for given in inputs if isinstance(inputs, AsyncIterable) else _as_async(inputs):
                if given is calls.FLUSH:
                    for chunk in chunker.rest():
                        yield chunk
                    yield None
                    continue
                for chunk in chunker.push(calls.encode(given), await self._run(self._exchange.request_limits())):
                    yield chunk
        except Exception:
            for chunk in chunker.rest():
                yield chunk
            yield None
            raise
        for chunk in chunker.rest():
            yield chunk
        yield None

    async def _run(self, flow: Flow[T]) -> T:
        outcome: Outcome = None
        while True:
            try:
                step = flow.send(outcome)
            except StopIteration as end:
                return end.value
            outcome = await self._perform(step)

    async def _perform(self, step: Send | Wait) -> Outcome:
        if isinstance(step, Wait):
            await (self._sleep or asyncio.sleep)(step.seconds)
            return None
        try:
            return await self._http().request(**self._arguments(step))
        except httpx.RequestError as error:
            return error


async def _as_async(inputs: Iterable[T]) -> AsyncIterator[T]:
    for given in inputs:
        yield given
