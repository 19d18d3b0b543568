"""The client for asyncio. Its twin is `client`; the common parts are in `base`, `calls` and `exchange`."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, Self, TypeVar, Unpack, overload

import httpx

from bert_client.errors import ProblemError
from bert_client.http import calls
from bert_client.http.base import BaseClient, open_http
from bert_client.http.calls import Call, Chunk, Chunker, FillMaskOptions, Input, InputInList, Pair, PairInList
from bert_client.http.exchange import FailureCounter, Flow, Outcome, Send, Wait, result_or_raise
from bert_client.results import FillMaskResult, LabelResult, Model

T = TypeVar("T")
AnyIterable = Iterable[T] | AsyncIterable[T]
Inputs = AnyIterable[InputInList]
Pairs = AnyIterable[PairInList]


class AsyncBertClient(BaseClient[httpx.AsyncClient, Callable[[float], Awaitable[object]]]):
    """`BertClient` for asyncio, with the same methods as coroutines. Inputs may also be an async iterable.

    It may be used in several event loops, one after the other, and opens connections in each.
    """

    _here = staticmethod(asyncio.get_running_loop)

    def _connect(self) -> httpx.AsyncClient:
        for closed in [loop for loop in list(self._connections) if loop.is_closed()]:
            del self._connections[closed]
        return open_http(httpx.AsyncClient, self._url)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the client, and its connections of this event loop. An `http` that was given stays open."""
        self._is_closed = True
        if http := self._connections.pop(self._here(), None):
            await http.aclose()

    @overload
    async def fill_mask(  # type: ignore[overload-overlap]
        self, inputs: str, **options: Unpack[FillMaskOptions]
    ) -> FillMaskResult: ...
    @overload
    async def fill_mask(self, inputs: AnyIterable[str], **options: Unpack[FillMaskOptions]) -> list[FillMaskResult]: ...
    async def fill_mask(
        self,
        inputs: str | AnyIterable[str],
        *,
        top_k: int | None = None,
        targets: Iterable[str] | None = None,
        truncate: bool = False,
        request_id: str | None = None,
    ) -> FillMaskResult | list[FillMaskResult]:
        """Compute the most likely words for each `[MASK]` of a text, or of several texts.

        Args:
            inputs: A text with one or more `[MASK]`, or an iterable (also async) of such texts.
            top_k: Number of words per mask; by default 5, or all of `targets`.
            targets: The only words to score.
            truncate: Whether to cut an input that is longer than the model's limit, instead of refusing it.
            request_id: Id that is sent as `X-Request-ID` with every request of this call.

        Returns:
            A result for one text; for several, a list of results in order. `result.masks[0].predictions[0]` is the most
            likely word of the first mask, with `token_str`, `score` and the filled text `sequence`.

        Raises:
            ProblemError: An input has no answer, or the service has refused. Its subclass tells the kind, and
                `input_index` the input.
            ConnectionFailedError: The service did not respond.
            TypeError, ValueError: An argument has a wrong type or value.
        """
        return await self._answer(calls.fill_mask(top_k, targets, truncate, request_id), inputs)

    def fill_mask_stream(
        self,
        inputs: AnyIterable[str],
        *,
        top_k: int | None = None,
        targets: Iterable[str] | None = None,
        truncate: bool = False,
        request_id: str | None = None,
    ) -> AsyncIterator[FillMaskResult | ProblemError]:
        """Like `fill_mask`, for any number of texts, in bounded memory.

        Args:
            inputs: An iterable (also async) of texts.
            top_k, targets, truncate, request_id: As for `fill_mask`.

        Returns:
            An async iterator of results in order. An input without an answer has its `ProblemError` in
            place of a result.

        Raises:
            ProblemError: No input is the cause, or 20 in a row have no answer.
            ConnectionFailedError: The service did not respond.
            TypeError, ValueError: An argument has a wrong type or value.
        """
        return self._stream(calls.fill_mask(top_k, targets, truncate, request_id), inputs)

    @overload
    async def next_sentence(
        self, inputs: Pair, *, truncate: bool = ..., request_id: str | None = ...
    ) -> LabelResult: ...
    @overload
    async def next_sentence(
        self, inputs: Pairs, *, truncate: bool = ..., request_id: str | None = ...
    ) -> list[LabelResult]: ...
    async def next_sentence(
        self, inputs: Pair | Pairs, *, truncate: bool = False, request_id: str | None = None
    ) -> LabelResult | list[LabelResult]:
        """Compute the probability that the second text of a pair follows the first, for a pair or for several.

        Args:
            inputs: A tuple of two texts, or an iterable (also async) of pairs, each a tuple or list of two texts.
            truncate: Whether to cut an input that is longer than the model's limit, instead of refusing it.
            request_id: Id that is sent as `X-Request-ID` with every request of this call.

        Returns:
            A result for one pair; for several, a list of results in order. `result.predictions[0]` has the more likely
            `label`, `IS_NEXT` or `NOT_NEXT`, and its `score`.

        Raises:
            ProblemError: An input has no answer, or the service has refused. Its subclass tells the kind, and
                `input_index` the input.
            ConnectionFailedError: The service did not respond.
            TypeError, ValueError: An argument has a wrong type or value.
        """
        return await self._answer(calls.next_sentence(truncate, request_id), inputs)

    def next_sentence_stream(
        self, inputs: Pairs, *, truncate: bool = False, request_id: str | None = None
    ) -> AsyncIterator[LabelResult | ProblemError]:
        """Like `next_sentence`, for any number of pairs, in bounded memory.

        Args:
            inputs: An iterable (also async) of pairs.
            truncate, request_id: As for `next_sentence`.

        Returns:
            An async iterator of results in order. An input without an answer has its `ProblemError` in
            place of a result.

        Raises:
            ProblemError: No input is the cause, or 20 in a row have no answer.
            ConnectionFailedError: The service did not respond.
            TypeError, ValueError: An argument has a wrong type or value.
        """
        return self._stream(calls.next_sentence(truncate, request_id), inputs)

    @overload
    async def sentiment(  # type: ignore[overload-overlap]
        self, inputs: Input, *, top_k: int | None = ..., truncate: bool = ..., request_id: str | None = ...
    ) -> LabelResult: ...
    @overload
    async def sentiment(
        self, inputs: Inputs, *, top_k: int | None = ..., truncate: bool = ..., request_id: str | None = ...
    ) -> list[LabelResult]: ...
    async def sentiment(
        self, inputs: Input | Inputs, *, top_k: int | None = None, truncate: bool = False, request_id: str | None = None
    ) -> LabelResult | list[LabelResult]:
        """Compute the labels of a text or pair with their probabilities, or those of several.

        `classify` is the same method, for a model with labels of any kind, such as topics.

        Args:
            inputs: A text, or a tuple of two texts such as the title and the body of a review; or
                an iterable (also async) of texts and pairs.
            top_k: Number of labels per input; by default all.
            truncate: Whether to cut an input that is longer than the model's limit, instead of refusing it.
            request_id: Id that is sent as `X-Request-ID` with every request of this call.

        Returns:
            A result for one input; for several, a list of results in order. `result.predictions[0]` has the most likely
            `label`, such as `POSITIVE`, and its `score`.

        Raises:
            ProblemError: An input has no answer, or the service has refused. Its subclass tells the kind, and
                `input_index` the input.
            ConnectionFailedError: The service did not respond.
            TypeError, ValueError: An argument has a wrong type or value.
        """
        return await self._answer(calls.sentiment(top_k, truncate, request_id), inputs)

    def sentiment_stream(
        self, inputs: Inputs, *, top_k: int | None = None, truncate: bool = False, request_id: str | None = None
    ) -> AsyncIterator[LabelResult | ProblemError]:
        """Like `sentiment`, for any number of texts and pairs, in bounded memory.

        Args:
            inputs: An iterable (also async) of texts and pairs.
            top_k, truncate, request_id: As for `sentiment`.

        Returns:
            An async iterator of results in order. An input without an answer has its `ProblemError` in
            place of a result.

        Raises:
            ProblemError: No input is the cause, or 20 in a row have no answer.
            ConnectionFailedError: The service did not respond.
            TypeError, ValueError: An argument has a wrong type or value.
        """
        return self._stream(calls.sentiment(top_k, truncate, request_id), inputs)

    classify, classify_stream = sentiment, sentiment_stream

    async def model(self, task: str) -> Model | None:
        """The model that answers a task, such as `fill-mask`; None if `/info` does not list it."""
        return await self._run(self._exchange.model(task))

    async def _answer(self, call: Call[T], inputs: Any) -> Any:
        if not calls.is_one_input(inputs, takes_pairs=call.takes_pairs):
            return [result_or_raise(outcome) async for outcome in self._stream(call, inputs)]
        return await self._run(self._exchange.answer_one(call, inputs))

    async def _stream(self, call: Call[T], inputs: AnyIterable[Any]) -> AsyncIterator[T | ProblemError]:
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

    async def _chunks(self, call: Call[T], inputs: AnyIterable[Any]) -> AsyncIterator[Chunk | None]:
        """The chunks of a `Chunker`. An error, of `inputs` or of `/info`, is raised after the inputs before it are
        answered."""
        chunker = Chunker(call.parameters)
        try:
            async for given in inputs if isinstance(inputs, AsyncIterable) else _as_async(inputs):
                info = await self._run(self._exchange.service_info())
                for chunk in chunker.push(given, info.limits):
                    yield chunk
        except Exception:
            for chunk in chunker.flush():
                yield chunk
            raise
        for chunk in chunker.flush():
            yield chunk

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
