"""The whole conversation with the service, without a network: what to send, when to wait, what to make of it.

A plan is a generator that yields steps and is sent their outcomes. So retries, and the search for the inputs
that spoil a request, are written and tested once; `BertClient` and `AsyncBertClient` only perform the steps.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import httpx

from bert_client.errors import (
    ConnectionFailedError,
    DeadlineExceededError,
    InvalidInputError,
    ProblemError,
    TooBusyError,
    TooLargeError,
    UnauthorizedError,
    UnavailableError,
)
from bert_client.http.calls import Call, Chunk, RequestLimits, read_limits
from bert_client.http.retry import RetryPolicy, pause_before_retry
from bert_client.wire import FieldProblem

T = TypeVar("T")

_CLASSES: dict[int, type[ProblemError]] = {
    401: UnauthorizedError,
    413: TooLargeError,
    422: InvalidInputError,
    429: TooBusyError,
    503: UnavailableError,
    504: DeadlineExceededError,
}

_GRACE = 2.0
"""Seconds that a connection waits beyond the timeout, for the service to say that it has passed (504)."""
_LONGEST_TIMEOUT = 1_000_000.0
"""Seconds; sockets and the service's header take little more."""


@dataclass(frozen=True, slots=True)
class Send:
    """Send a request; its outcome is the response, or httpx's error."""

    method: str
    path: str
    body: bytes | None = None
    request_id: str | None = None

    def headers(self, timeout: float) -> dict[str, str]:
        """What this request says beside the client's own headers; `timeout` in seconds."""
        given = {"X-Request-Timeout-Ms": str(max(int(timeout * 1000), 1))}
        if self.body is not None:
            given["Content-Type"] = "application/json"
        if self.request_id is not None:
            given["X-Request-ID"] = self.request_id
        return given


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait; its outcome is None."""

    seconds: float


Outcome = httpx.Response | httpx.RequestError | None
Flow = Generator[Send | Wait, Outcome, T]


@dataclass(frozen=True, slots=True)
class Exchange:
    """Makes plans. `clock` tells seconds, `random` a number in [0, 1)."""

    policy: RetryPolicy
    clock: Callable[[], float]
    random: Callable[[], float]

    def sizes(self) -> Flow[RequestLimits]:
        """Ask how much one request may carry."""
        response = yield from self._send_with_retries(Send("GET", "/info"), self.clock())
        return RequestLimits.of(read_limits(response))

    def answer(self, call: Call[T], chunk: Chunk) -> Flow[list[T | ProblemError]]:
        """Results in the order of the inputs; an input that has none gets its error instead.

        Raises:
            ProblemError: it is no input's fault.
            ConnectionFailedError: nobody answered.
            UnexpectedAnswerError: the answer makes no sense.
        """
        began = heard = self.clock()  # `heard`: since then nothing but refusals came
        outcomes: dict[int, T | ProblemError] = {}
        groups = [list(range(len(chunk.inputs)))]
        while groups:
            group = groups.pop()
            inputs = [chunk.inputs[i] for i in group]
            send = Send("POST", call.path, call.body(inputs), call.request_id)
            try:
                response = yield from self._send_with_retries(send, heard)
            except ProblemError as error:
                if error.status == 504 and self.clock() - began >= self.policy.deadline:
                    raise
                guilty, rest = isolate(error, inputs)
                if error.status != 504:
                    heard = self.clock()
                outcomes |= {group[i]: error.at(chunk.first + group[i]) for i in guilty}
                groups += [[group[i] for i in indices] for indices in rest]
            else:
                heard = self.clock()
                outcomes |= zip(group, call.results(response, len(group)), strict=True)
        return [outcomes[i] for i in range(len(chunk.inputs))]

    def _send_with_retries(self, send: Send, began: float) -> Flow[httpx.Response]:
        """Send until there is an answer or the policy's patience ends."""
        attempt = 0
        while True:
            attempt += 1
            reply = yield send
            if reply is None:
                raise TypeError("a request was answered by nothing")
            if isinstance(reply, httpx.Response) and reply.is_success:
                return reply
            pause = pause_before_retry(self.policy, reply, attempt, self.clock() - began, self.random())
            if pause is None:
                _give_up(reply)
            else:
                yield Wait(pause)


@dataclass(slots=True)
class SlowServiceGuard:
    """Notices a service that is too slow for all, which is no fault of any input."""

    answered: bool = False
    """Whether one was in time"""

    def of(self, outcomes: list[T | ProblemError]) -> list[T | ProblemError]:
        """What a chunk gave.

        Raises:
            DeadlineExceededError: all of several came too late, and so did all before them.
        """
        late = [o for o in outcomes if isinstance(o, ProblemError) and o.status == 504]
        self.answered |= len(late) < len(outcomes)
        if len(late) > 1 and not self.answered:
            raise late[0]
        return outcomes


def connect_timeout(timeout: float) -> httpx.Timeout:
    """Of a connection; the service is told `timeout` itself."""
    return httpx.Timeout(timeout, read=timeout + _GRACE)


def check_options(base_url: str, timeout: float, concurrency: int) -> None:
    """Refuse what no request could be sent with.

    Raises:
        ValueError: says what to give.
    """
    if not base_url.lower().startswith(("http://", "https://")):
        raise ValueError(f"{base_url!r} is no address of a service: begin it with http:// or https://")
    if not (isinstance(timeout, int | float) and 0 < timeout <= _LONGEST_TIMEOUT):
        raise ValueError(f"timeout is {timeout!r}: give seconds, above 0 and at most {_LONGEST_TIMEOUT:,.0f}")
    if concurrency < 1:
        raise ValueError(f"concurrency is {concurrency!r}: give 1 or more")


def result_or_raise(outcome: T | ProblemError) -> T:
    """A result; an input's error is raised."""
    if isinstance(outcome, ProblemError):
        raise outcome
    return outcome


def isolate(error: ProblemError, inputs: Sequence[bytes]) -> tuple[list[int], list[list[int]]]:
    """The inputs that cannot be answered, and the groups in which to ask for the others again.

    Where the service names an input, that one and its equals are guilty. Where it only says that some input
    is too much, halves are asked until the guilty one stands alone.

    Raises:
        ProblemError: no input is at fault.
    """
    everyone = range(len(inputs))
    named = error.input_index
    if error.status == 422 and named is not None and named < len(inputs):
        guilty = [i for i in everyone if inputs[i] == inputs[named]]
        rest = [i for i in everyone if inputs[i] != inputs[named]]
        return guilty, [rest] if rest else []
    if error.status not in (400, 413, 504) and error.code != "inference_failed":
        raise error
    if len(inputs) > 1:
        middle = len(inputs) // 2
        return [], [list(everyone[:middle]), list(everyone[middle:])]
    return [0], []


def _give_up(reply: httpx.Response | httpx.RequestError) -> None:
    if isinstance(reply, httpx.Response):
        raise problem_of(reply)
    raise ConnectionFailedError(str(reply) or type(reply).__name__) from reply


def problem_of(response: httpx.Response) -> ProblemError:
    """The error that an answer stands for; a proxy's page, which is no problem document, included."""
    cls = _CLASSES.get(response.status_code, ProblemError)
    request_id = response.headers.get("x-request-id")
    try:
        body = response.json()
        faults = tuple(FieldProblem(fault["message"], list(fault["loc"])) for fault in body["errors"])
        return cls(response.status_code, body["code"], body["detail"], body["request_id"], faults)
    except (ValueError, KeyError, TypeError):
        detail = f"the answer was {response.status_code} {response.reason_phrase}".rstrip()
        return cls(response.status_code, "no_problem_document", detail, request_id)
