"""Both clients, on a real port and before services that misbehave."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from math import inf, nan
from typing import Any

import httpx
import pytest

from bert_client import (
    AsyncBertClient,
    BertClient,
    ConnectionFailedError,
    DeadlineExceededError,
    FillMaskResult,
    InvalidInputError,
    LabelResult,
    Model,
    ProblemError,
    RetryPolicy,
    TooBusyError,
    TooLargeError,
    UnauthorizedError,
    UnavailableError,
)
from tests.client.echo import LIMITS, problem_document, process_ended, serve

SMALL = {"max_client_batch": 3}
INFO = {"status": "ready", "limits": LIMITS | {"max_client_batch": 2}}


class Fake:
    """A service that answers as `answer` says, and remembers what it was asked."""

    def __init__(self, answer: Callable[[httpx.Request, list[str]], httpx.Response]) -> None:
        self.answer = answer
        self.requests: list[httpx.Request] = []
        self.http = httpx.Client(transport=httpx.MockTransport(self.handle))
        self.asynchronous = httpx.AsyncClient(transport=httpx.MockTransport(self.handle))

    def handle(self, request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/info"):
            return httpx.Response(200, json=INFO)
        self.requests.append(request)
        return self.answer(request, request_inputs(request))


def request_inputs(request: httpx.Request) -> list[str]:
    inputs: list[str] = json.loads(request.content)["inputs"]
    return inputs


def ok(_: httpx.Request, inputs: list[str]) -> httpx.Response:
    results = [{"predictions": [{"label": one, "score": 1}], "tokens": 3, "truncated": False} for one in inputs]
    return httpx.Response(200, json={"model": "m", "results": results})


def label(outcome: LabelResult | ProblemError) -> str:
    assert isinstance(outcome, LabelResult), outcome
    return outcome.predictions[0].label


def test_client_one_input_gives_one_result(url: str) -> None:
    with BertClient(url) as client:
        filled = client.fill_mask("the [MASK] was good", top_k=2)
        followed = client.next_sentence(("a film", "it was good"))
        felt = client.sentiment("good")
        pair = client.sentiment(("a title", "a body"), top_k=1)
    assert [entry.sequence for entry in filled.masks[0].predictions] == ["the the was good", "the a was good"]
    assert followed.predictions[0].label == "NOT_NEXT"
    assert felt == LabelResult(felt.predictions, tokens=3, truncated=False, model="fake-sentiment")
    assert [entry.score for entry in felt.predictions] == [0.75, 0.25]
    assert len(pair.predictions) == 1


@pytest.mark.parametrize("url", [SMALL], indirect=True)
def test_client_list_of_any_length_gives_results_in_order(url: str) -> None:
    texts = [f"{'a ' * n}[MASK]" for n in range(1, 41)]
    with BertClient(url) as client:
        results = client.fill_mask(texts, targets=["good"])
        assert client.sentiment([]) == []
    assert [result.masks[0].position for result in results] == list(range(2, 42))


@pytest.mark.parametrize("url", [SMALL], indirect=True)
async def test_async_client_gives_the_same_results(url: str) -> None:
    async with AsyncBertClient(url) as client:
        one, many = await asyncio.gather(
            client.fill_mask("[MASK]"), client.fill_mask([f"{'a ' * n}[MASK]" for n in range(1, 41)])
        )
        followed = await client.next_sentence([("a", "b")] * 4)
        mixed: list[str | tuple[str, str]] = ["good", ("a", "b")]
        felt = await client.sentiment(mixed)
        streamed = [outcome async for outcome in client.next_sentence_stream([("a", "b")] * 4)]
        filled = [outcome async for outcome in client.fill_mask_stream(["[MASK]"])]
    assert isinstance(one, FillMaskResult)
    assert [result.masks[0].position for result in many] == list(range(2, 42))
    assert (len(followed), len(felt)) == (4, 2)
    assert streamed == followed
    assert filled == [one]


@pytest.mark.parametrize("url", [SMALL], indirect=True)
def test_client_stream_goes_on_after_a_wrong_input(url: str) -> None:
    with BertClient(url) as client:
        outcomes = list(client.sentiment_stream("" if n % 7 == 3 else "good" for n in range(30)))
    assert [n for n, outcome in enumerate(outcomes) if isinstance(outcome, ProblemError)] == [3, 10, 17, 24]
    error = outcomes[17]
    assert isinstance(error, InvalidInputError)
    assert (error.code, error.input_index) == ("empty_text", 17)


@pytest.mark.parametrize("url", [SMALL], indirect=True)
def test_client_list_with_a_wrong_input_raises_with_its_index(url: str) -> None:
    with BertClient(url) as client, pytest.raises(InvalidInputError) as raised:
        client.fill_mask(["[MASK]"] * 8 + ["no mask"], request_id="mine")
    error = raised.value
    assert (error.status, error.code, error.request_id) == (422, "no_mask", "mine")
    assert error.errors[0].loc == ["inputs", 8]


@pytest.mark.parametrize("url", [{"api_keys": "secret"}], indirect=True)
def test_client_api_key_is_accepted(url: str) -> None:
    with BertClient(url, api_key="secret") as client:
        assert len(client.sentiment(["good"])) == 1
    with BertClient(url) as client, pytest.raises(UnauthorizedError, match="send an API key"):
        client.sentiment("good")


def test_client_api_key_is_sent_as_utf_8() -> None:
    fake = Fake(ok)
    with BertClient(http=fake.http, api_key="clé") as client:
        client.sentiment("a")
    assert (b"Authorization", "Bearer clé".encode()) in fake.requests[0].headers.raw


def test_client_password_of_the_url_is_sent_but_not_shown() -> None:
    fake = Fake(lambda *_: httpx.Response(404))
    address = "http://user:se%40cret@bert.example/root"
    with BertClient(address, http=fake.http) as client, pytest.raises(ProblemError) as raised:
        client.sentiment("a")
    assert str(raised.value).startswith("http://bert.example/root/sentiment: ")
    assert fake.requests[0].headers["Authorization"] == "Basic dXNlcjpzZUBjcmV0"


@pytest.mark.parametrize("client", [BertClient, AsyncBertClient])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"concurrency": 0}, "concurrency is 0: give 1 or more"),
        *(({"timeout": wrong}, "timeout is .*: give seconds") for wrong in (0, -1, nan, inf, 1e10, None, "5")),
        ({"api_key": "a\n"}, "not printable"),
        ({"base_url": "localhost:8000"}, r"it must begin with http:// or https://"),
        *(({"base_url": f"http://a/{end}"}, "leave out what follows the path") for end in ("?b=c", "#b")),
        ({"base_url": "http://"}, "'http://' is not an address of a service: it names no host"),
        *(({"base_url": f"http://a:{port}"}, "a port is a number from 1 to 65535") for port in (0, 65536, 99999)),
    ],
)
def test_client_with_impossible_options_is_refused(
    client: type[BertClient | AsyncBertClient], arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        client(**arguments)


def test_client_without_a_service_raises_a_connection_error() -> None:
    pauses: list[float] = []
    with (
        BertClient("http://127.0.0.1:9", retry=RetryPolicy(attempts=3), sleep=pauses.append) as client,
        pytest.raises(ConnectionFailedError),
    ):
        client.sentiment("good")
    assert len(pauses) == 2


async def test_client_waits_for_a_late_504() -> None:
    def late(_: list[Any]) -> dict[str, Any]:
        """Say that the time is over when it is, as if from far away."""
        time.sleep(int(echo.headers[-1]["X-Request-Timeout-Ms"]) / 1000 + 0.3)
        return problem_document(504, "late", "late", {})

    once = RetryPolicy(attempts=1)
    with serve(late) as echo:
        with BertClient(echo.url, timeout=0.2, retry=once) as client, pytest.raises(DeadlineExceededError):
            await asyncio.to_thread(client.sentiment, "good")
        async with AsyncBertClient(echo.url, timeout=0.2, retry=once) as client:
            with pytest.raises(DeadlineExceededError):
                await client.sentiment("good")


def test_client_waits_as_long_as_retry_after_asks() -> None:
    body = problem_document(503, "too_many_connections", "too many connections", {})
    busy = iter([httpx.Response(status, json=body, headers={"Retry-After": "7"}) for status in (429, 503)])
    fake = Fake(lambda request, inputs: next(busy, None) or ok(request, inputs))
    pauses: list[float] = []
    with BertClient(http=fake.http, sleep=pauses.append) as client:
        assert label(client.sentiment("a", request_id="r1")) == "a"
    assert len(pauses) == 2
    assert min(pauses) >= 7
    assert {request.headers["X-Request-ID"] for request in fake.requests} == {"r1"}
    assert {request.headers["X-Request-Timeout-Ms"] for request in fake.requests} == {"60000"}


async def test_async_client_waits_as_long_as_retry_after_asks() -> None:
    busy = iter([httpx.Response(503, headers={"Retry-After": "7"})])
    fake = Fake(lambda request, inputs: next(busy, None) or ok(request, inputs))
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    async with AsyncBertClient(http=fake.asynchronous, sleep=sleep) as client:
        assert label(await client.sentiment("a")) == "a"
        fake.answer = lambda *_: httpx.Response(429, json=problem_document(429, "queue_full", "busy", {}))
        with pytest.raises(TooBusyError):
            await client.sentiment("a")
    assert len(pauses) == 1 + 4


def test_client_stream_reads_no_further_than_its_window() -> None:
    read = itertools.count()
    fake = Fake(ok)
    with BertClient(http=fake.http, concurrency=3) as client:
        stream = client.sentiment_stream(str(n) for n in read)
        assert [label(next(stream)) for _ in range(100)] == [str(n) for n in range(100)]
        assert next(read) < 100 + 2 * (3 + 2)  # chunks of 2: three on their way, one full, one begun
        assert isinstance(stream, Iterator)


async def test_async_client_stream_takes_async_iterables_in_a_window() -> None:
    read = itertools.count()

    async def texts() -> AsyncIterator[str]:
        for n in read:
            yield str(n)

    async with AsyncBertClient(http=Fake(ok).asynchronous, concurrency=3) as client:
        found = []
        async for outcome in client.sentiment_stream(texts()):
            found.append(label(outcome))
            if len(found) == 50:
                break
    assert found == [str(n) for n in range(50)]
    assert next(read) < 50 + 2 * (3 + 2)


def test_client_sends_as_many_requests_at_once_as_allowed() -> None:
    together = threading.Barrier(3, timeout=30)
    running: list[int] = []
    peak: list[int] = []

    def answer(request: httpx.Request, inputs: list[str]) -> httpx.Response:
        running.append(1)
        peak.append(len(running))
        together.wait()
        running.pop()
        return ok(request, inputs)

    with BertClient(http=Fake(answer).http, concurrency=3) as client:
        results = client.sentiment([str(n) for n in range(12)])
    assert [label(result) for result in results] == [str(n) for n in range(12)]
    assert max(peak) == 3


def test_client_stream_ends_with_an_error_that_is_no_fault_of_an_input() -> None:
    def answer(request: httpx.Request, inputs: list[str]) -> Any:
        broken = problem_document(500, "internal_error", "broken", {})
        return httpx.Response(500, json=broken) if "5" in inputs else ok(request, inputs)

    with BertClient(http=Fake(answer).http) as client:
        stream = client.sentiment_stream(map(str, range(100)))
        assert [label(next(stream)) for _ in range(4)] == ["0", "1", "2", "3"]
        with pytest.raises(ProblemError) as raised:
            next(stream)
    assert raised.value.status == 500


async def test_client_divides_a_request_whose_answer_is_too_large() -> None:
    """The service refuses answers above 8 MB before it computes them."""

    def answer(request: httpx.Request, inputs: list[str]) -> httpx.Response:
        body = problem_document(413, "too_large", "the answer has over 8 MB; send fewer inputs", {})
        is_too_large = len(inputs) > 1 or inputs == ["alone too large"]
        return httpx.Response(413, json=body) if is_too_large else ok(request, inputs)

    texts = ["a", "b", "c", "alone too large", "d"]
    with BertClient(http=Fake(answer).http) as client:
        assert [label(result) for result in client.sentiment(texts[:3])] == ["a", "b", "c"]
        outcomes = list(client.sentiment_stream(texts))
        with pytest.raises(TooLargeError, match="input 3: the answer has over 8 MB"):
            client.sentiment(texts)
    async with AsyncBertClient(http=Fake(answer).asynchronous) as asynchronous:
        streamed = [outcome async for outcome in asynchronous.sentiment_stream(texts)]
    for found in (outcomes, streamed):
        assert isinstance(found[3], TooLargeError)
        assert [label(outcome) for outcome in found[:3] + found[4:]] == ["a", "b", "c", "d"]


async def test_client_does_not_repeat_a_request_that_ended_the_inference_process() -> None:
    fake = Fake(
        lambda request, inputs: httpx.Response(500, json=process_ended()) if "b" in inputs else ok(request, inputs)
    )
    with BertClient(http=fake.http) as client:
        outcomes = list(client.sentiment_stream(["a", "b", "c", "d"]))
        assert len(fake.requests) == 2
        for given in (["a", "b"], "b"):
            with pytest.raises(ProblemError, match=r"^the inference process ended \(500 inference_failed\)$"):
                client.sentiment(given)  # type: ignore[call-overload]
        assert len(fake.requests) == 4
    async with AsyncBertClient(http=fake.asynchronous) as asynchronous:
        streamed = [outcome async for outcome in asynchronous.sentiment_stream(["a", "b", "c", "d"])]
    assert len(fake.requests) == 6
    for found in (outcomes, streamed):
        assert [isinstance(outcome, ProblemError) and outcome.ended_process for outcome in found[:2]] == [True, True]
        assert [label(outcome) for outcome in found[2:]] == ["c", "d"]


def test_client_stream_that_is_closed_repeats_no_request() -> None:
    fake = Fake(lambda request, inputs: ok(request, inputs) if "0" in inputs else httpx.Response(503))
    retry = RetryPolicy(attempts=1000, first_pause=0.05, longest_pause=0.05)
    with BertClient(http=fake.http, retry=retry) as client:
        stream = client.sentiment_stream(map(str, range(8)))
        next(stream)
        threads = [thread for thread in threading.enumerate() if thread.name.startswith("bert-client")]
        assert threads
        stream.close()  # type: ignore[attr-defined]
        for thread in threads:
            thread.join(10)
        assert not any(thread.is_alive() for thread in threads)


# --- firewalls and proxies


@pytest.mark.parametrize("status", [200, 403])
def test_client_text_that_a_firewall_refuses_gets_the_error(status: int) -> None:
    texts = ["text"] * 1000
    texts[700] = "<script>"
    with serve(lambda inputs: status if "<script>" in inputs else None) as echo, BertClient(echo.url) as client:
        outcomes = list(client.sentiment_stream(texts))
        with pytest.raises(ProblemError) as raised:
            client.sentiment(texts)
    assert [n for n, outcome in enumerate(outcomes) if isinstance(outcome, ProblemError)] == [700]
    assert (raised.value.status, raised.value.input_index) == (status, 700)


@pytest.mark.parametrize("status", [401, 407, 408, 429, 503])
def test_client_answer_of_a_gateway_that_concerns_no_text_halves_no_request(status: int) -> None:
    kinds = {408: ProblemError, 429: TooBusyError, 503: UnavailableError}
    kind, requests = kinds.get(status, UnauthorizedError), 4 if status in kinds else 1
    retry = RetryPolicy(attempts=4, first_pause=0)
    shown = f"{status}, not as bert-service: '<html>refused</html>'"
    with serve(lambda _: status) as echo, BertClient(echo.url, retry=retry) as client, pytest.raises(kind, match=shown):
        list(client.sentiment_stream(["text"] * 8))
    assert echo.paths == ["/info"] + ["/sentiment"] * requests


def test_client_stream_ends_when_a_firewall_refuses_everything_later() -> None:
    with serve() as echo, BertClient(echo.url, concurrency=2) as client:
        echo.refuse = lambda _: 403 if len(echo.paths) > 4 else None
        outcomes = client.sentiment_stream(["text"] * 2000)
        with pytest.raises(ProblemError, match="403"):
            list(outcomes)
        assert len(echo.paths) < 200


@pytest.mark.parametrize("task", ["sentiment", "classify"])
def test_clients_tell_the_model_of_a_task(url: str, task: str) -> None:
    async def ask() -> Model | None:
        async with AsyncBertClient(url) as client:
            return await client.model(task)

    with BertClient(url) as client:
        found = client.model(task)
        assert client.model("no-such-task") is None
    assert found == asyncio.run(ask())
    assert found == Model("fake-sentiment", "ff", ["NEGATIVE", "POSITIVE"], None)
