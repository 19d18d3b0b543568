"""The synchronous client. Its twin is `async_client`; the common parts are in `base`, `calls` and `exchange`."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, Future
from typing import Any, Self, TypeVar, Unpack, overload

import httpx

from bert_client.errors import ProblemError
from bert_client.http import calls
from bert_client.http.base import BaseClient, open_http
from bert_client.http.calls import Call, Chunk, Chunker, FillMaskOptions, Input, InputInList, Pair, PairInList
from bert_client.http.exchange import FailureCounter, Flow, Outcome, Send, Wait, result_or_raise
from bert_client.results import FillMaskResult, LabelResult, Model

T = TypeVar("T")
Inputs = Iterable[InputInList]
Pairs = Iterable[PairInList]


class BertClient(BaseClient[httpx.Client, Callable[[float], object]]):
    """Asks a running service. Close it, or use it in a `with` statement. Threads and forked processes may share it.

    One input, a string or a tuple of two strings, gives one result. Any other iterable of inputs (a list, a generator,
    a pandas Series, a numpy array) gives a list of results in the same order; a pair in it may also be a list of two
    strings. A long list is sent in several requests, `concurrency` of them at once, each as large as the service
    allows. The `_stream` methods do the same in bounded memory, and continue after an input that has no answer: they
    yield its `ProblemError` in place of a result.

    The methods raise the errors of `bert_client.errors`. An input that is neither a string nor a pair of strings, such
    as None or NaN, is an `InvalidInputError`.
    """

    _here = staticmethod(os.getpid)

    def _connect(self) -> httpx.Client:
        return open_http(httpx.Client, self._url)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the client, and its connections of this process. An `http` that was given stays open."""
        self._is_closed = True
        if http := self._connections.pop(self._here(), None):
            http.close()

    @overload
    def fill_mask(  # type: ignore[overload-overlap]
        self, inputs: str, **options: Unpack[FillMaskOptions]
    ) -> FillMaskResult: ...
    @overload
    def fill_mask(self, inputs: Iterable[str], **options: Unpack[FillMaskOptions]) -> list[FillMaskResult]: ...
    def fill_mask(
        self,
        inputs: str | Iterable[str],
        *,
        top_k: int | None = None,
        targets: Iterable[str] | None = None,
        truncate: bool = False,
        request_id: str | None = None,
    ) -> FillMaskResult | list[FillMaskResult]:
        """Compute the most likely words for each `[MASK]` of a text, or of several texts.

        Args:
            inputs: A text with one or more `[MASK]`, or an iterable of such texts.
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
        return self._answer(calls.fill_mask(top_k, targets, truncate, request_id), inputs)

    def fill_mask_stream(
        self,
        inputs: Iterable[str],
        *,
        top_k: int | None = None,
        targets: Iterable[str] | None = None,
        truncate: bool = False,
        request_id: str | None = None,
    ) -> Iterator[FillMaskResult | ProblemError]:
        """Like `fill_mask`, for any number of texts, in bounded memory.

        Args:
            inputs: An iterable of texts.
            top_k, targets, truncate, request_id: As for `fill_mask`.

        Returns:
            An iterator of results in order. An input without an answer has its `ProblemError` in
            place of a result.

        Raises:
            ProblemError: No input is the cause, or 20 in a row have no answer.
            ConnectionFailedError: The service did not respond.
            TypeError, ValueError: An argument has a wrong type or value.
        """
        return self._stream(calls.fill_mask(top_k, targets, truncate, request_id), inputs)

    @overload
    def next_sentence(self, inputs: Pair, *, truncate: bool = ..., request_id: str | None = ...) -> LabelResult: ...
    @overload
    def next_sentence(
        self, inputs: Pairs, *, truncate: bool = ..., request_id: str | None = ...
    ) -> list[LabelResult]: ...
    def next_sentence(
        self, inputs: Pair | Pairs, *, truncate: bool = False, request_id: str | None = None
    ) -> LabelResult | list[LabelResult]:
        """Compute the probability that the second text of a pair follows the first, for a pair or for several.

        Args:
            inputs: A tuple of two texts, or an iterable of pairs, each a tuple or list of two texts.
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
        return self._answer(calls.next_sentence(truncate, request_id), inputs)

    def next_sentence_stream(
        self, inputs: Pairs, *, truncate: bool = False, request_id: str | None = None
    ) -> Iterator[LabelResult | ProblemError]:
        """Like `next_sentence`, for any number of pairs, in bounded memory.

        Args:
            inputs: An iterable of pairs.
            truncate, request_id: As for `next_sentence`.

        Returns:
            An iterator of results in order. An input without an answer has its `ProblemError` in
            place of a result.

        Raises:
            ProblemError: No input is the cause, or 20 in a row have no answer.
            ConnectionFailedError: The service did not respond.
            TypeError, ValueError: An argument has a wrong type or value.
        """
        return self._stream(calls.next_sentence(truncate, request_id), inputs)

    @overload
    def sentiment(  # type: ignore[overload-overlap]
        self, inputs: Input, *, top_k: int | None = ..., truncate: bool = ..., request_id: str | None = ...
    ) -> LabelResult: ...
    @overload
    def sentiment(
        self, inputs: Inputs, *, top_k: int | None = ..., truncate: bool = ..., request_id: str | None = ...
    ) -> list[LabelResult]: ...
    def sentiment(
        self, inputs: Input | Inputs, *, top_k: int | None = None, truncate: bool = False, request_id: str | None = None
    ) -> LabelResult | list[LabelResult]:
        """Compute the labels of a text or pair with their probabilities, or those of several.

        `classify` is the same method, for a model with labels of any kind, such as topics.

        Args:
            inputs: A text, or a tuple of two texts such as the title and the body of a review; or
                an iterable of texts and pairs.
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
        return self._answer(calls.sentiment(top_k, truncate, request_id), inputs)

    def sentiment_stream(
        self, inputs: Inputs, *, top_k: int | None = None, truncate: bool = False, request_id: str | None = None
    ) -> Iterator[LabelResult | ProblemError]:
        """Like `sentiment`, for any number of texts and pairs, in bounded memory.

        Args:
            inputs: An iterable of texts and pairs.
            top_k, truncate, request_id: As for `sentiment`.

        Returns:
            An iterator of results in order. An input without an answer has its `ProblemError` in
            place of a result.

        Raises:
            ProblemError: No input is the cause, or 20 in a row have no answer.
            ConnectionFailedError: The service did not respond.
            TypeError, ValueError: An argument has a wrong type or value.
        """
        return self._stream(calls.sentiment(top_k, truncate, request_id), inputs)

    classify, classify_stream = sentiment, sentiment_stream

    def model(self, task: str) -> Model | None:
        """The model that answers a task, such as `fill-mask`; None if `/info` does not list it."""
        return self._run(self._exchange.model(task))

    def _answer(self, call: Call[T], inputs: Any) -> Any:
        if not calls.is_one_input(inputs, takes_pairs=call.takes_pairs):
            return [result_or_raise(outcome) for outcome in self._stream(call, inputs)]
        return self._run(self._exchange.answer_one(call, inputs))

    def _stream(self, call: Call[T], inputs: Iterable[Any]) -> Iterator[T | ProblemError]:
        calls.check_inputs(inputs)
        ended = threading.Event()
        window: deque[Future[list[T | ProblemError]]] = deque()
        failures = FailureCounter()
        try:
            for chunk in self._chunks(call, inputs):
                while window and (chunk is None or len(window) == self._concurrency):
                    yield from window.popleft().result()
                if chunk:
                    window.append(self._run_in_thread(self._exchange.answer(call, chunk, failures), ended))
        finally:
            ended.set()

    def _chunks(self, call: Call[T], inputs: Iterable[Any]) -> Iterator[Chunk | None]:
        """The chunks of a `Chunker`. An error, of `inputs` or of `/info`, is raised after the inputs before it are
        answered."""
        chunker = Chunker(call.parameters)
        try:
            for given in inputs:
                info = self._run(self._exchange.service_info())
                yield from chunker.push(given, info.limits)
        except Exception:
            yield from chunker.flush()
            raise
        yield from chunker.flush()

    def _run_in_thread(self, flow: Flow[T], ended: threading.Event) -> Future[T]:
        """Run a flow in a thread that does not keep the program from ending."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(self._run(flow, ended))
            except BaseException as error:  # `result` raises it
                future.set_exception(error)

        threading.Thread(target=run, name="bert-client", daemon=True).start()
        return future

    def _run(self, flow: Flow[T], ended: threading.Event | None = None) -> T:
        """Perform the steps of a flow. Raises CancelledError once `ended` is set, because its result is no longer
        wanted."""
        outcome: Outcome = None
        while True:
            try:
                step = flow.send(outcome)
            except StopIteration as end:
                return end.value
            if ended and ended.is_set():
                raise CancelledError
            outcome = self._perform(step, ended)

    def _perform(self, step: Send | Wait, ended: threading.Event | None) -> Outcome:
        if isinstance(step, Wait):
            (self._sleep or (ended.wait if ended else time.sleep))(step.seconds)
            return None
        try:
            return self._http().request(**self._arguments(step))
        except httpx.RequestError as error:
            return error
