"""The conversation with the service, without a network: what to send, when to wait, how to read the answer.

A flow is a generator that yields steps and receives their outcomes. So the retries, and the search for the inputs that
make a request fail, are written and tested once; `BertClient` and `AsyncBertClient` only perform the steps.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx

from bert_client import errors
from bert_client.errors import ConnectionFailedError, ProblemError, UnexpectedAnswerError
from bert_client.http.calls import CAUTIOUS_LIMITS, Call, Chunk, RequestLimits, encode, read_limits
from bert_client.http.environment import trusted_certificates
from bert_client.http.retry import CERTIFICATE_REFUSED, SLOW_ATTEMPTS, SLOW_SECONDS, RetryPolicy, pause_before_retry
from bert_client.wire import FieldProblem

T = TypeVar("T")

_ERRORS: dict[int, type[ProblemError]] = {
    401: errors.UnauthorizedError,
    413: errors.TooLargeError,
    422: errors.InvalidInputError,
    429: errors.TooBusyError,
    503: errors.UnavailableError,
    504: errors.DeadlineExceededError,
}
_STATUSES_WITHOUT_ANSWER = frozenset({200, 403, 405, 406, 418, 451, 504})
"""A firewall refuses the words of an input (200 with a page, 4xx), or an input is too slow (504)."""
_STATUSES_OF_AN_INPUT = _STATUSES_WITHOUT_ANSWER | {400, 413}
"""One input may be the reason: as above, or because the service cannot read it (400) or it is too large (413)."""

_STATUSES_OF_A_CLOSED_PATH = frozenset({403, 404})
"""Answers to `/info` if a proxy does not let it through; the client then assumes `CAUTIOUS_LIMITS`. If instead the
address is wrong, the requests with inputs fail too."""

_NOT_TLS = ("WRONG_VERSION_NUMBER", "record layer failure")
"""In OpenSSL's messages, if the answer is not TLS."""
_LIMITS_SECONDS = {True: 60.0, False: 1.0}
"""Seconds until the service is asked for its limits again, by whether it is ready. Another service may answer at its
address by then."""


@dataclass(frozen=True, slots=True)
class Send:
    """Send a request. The outcome is the response, or httpx's error."""

    method: str
    path: str
    body: bytes | None = None
    request_id: str | None = None
    is_divisible: bool = False
    """Whether it has several inputs."""

    def arguments(self, timeout: float) -> dict[str, Any]:
        """Arguments of httpx's `request`; `timeout` in seconds."""
        headers = {"X-Request-Timeout-Ms": str(max(int(timeout * 1000), 1))}
        if self.body is not None:
            headers["Content-Type"] = "application/json"
        if self.request_id is not None:
            headers["X-Request-ID"] = self.request_id
        return {"method": self.method, "url": self.path, "content": self.body, "headers": headers}


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait. The outcome is None."""

    seconds: float


@dataclass(slots=True)
class FailureCounter:
    """Counts the inputs in a row that got no answer from the service, over all requests of a list or stream. A request
    that ended the inference process counts as one."""

    limit: int = 20
    """So many are not the fault of the inputs: the error is raised."""
    count: int = 0


Outcome = httpx.Response | httpx.RequestError | None
Flow = Generator[Send | Wait, Outcome, T]


@dataclass(slots=True)
class Exchange:
    """Makes flows."""

    policy: RetryPolicy
    clock: Callable[[], float]
    """Seconds, as `time.monotonic` gives them."""
    random: Callable[[], float]
    """A number in [0, 1)."""
    base_url: str = ""
    """For messages."""
    proxy_variable: str | None = None
    """The variable of the environment that names the proxy in use, for messages."""

    limits: RequestLimits | None = None
    """How much one request may carry; None until the service was asked, and if they may have changed."""
    limits_end: float = 0.0
    """When the service is asked again: a time of the clock."""

    def request_limits(self) -> Flow[RequestLimits]:
        """How much one request may carry now."""
        limits = self.limits  # `answer` may set it to None in another thread
        if limits is None or self.clock() >= self.limits_end:
            try:
                answer = yield from self._send_with_retries(Send("GET", "/info"), self.clock())
                limits, is_ready = read_limits(answer)
            except ProblemError as error:
                if error.status not in _STATUSES_OF_A_CLOSED_PATH:
                    raise
                limits, is_ready = CAUTIOUS_LIMITS, True
            self.limits, self.limits_end = limits, self.clock() + _LIMITS_SECONDS[is_ready]
        return limits

    def answer_one(self, call: Call[T], given: object) -> Flow[T]:
        """Ask for the result of an input that is not in a list. Raises what `answer` raises, and its error."""
        (outcome,) = yield from self.answer(call, Chunk(0, [encode(given)]), FailureCounter(limit=1))
        return result_or_raise(outcome.at(None) if isinstance(outcome, ProblemError) else outcome)

    def answer(self, call: Call[T], chunk: Chunk, failures: FailureCounter) -> Flow[list[T | ProblemError]]:
        """Ask for the results of a chunk. Returns one per input, in order; its error for an input that has none.

        Raises:
            ProblemError: the reason is not a single input.
            ConnectionFailedError: the service gave no answer.
            UnexpectedAnswerError: the answers are not those of this service.
        """
        start = last_answer = self.clock()
        outcomes: dict[int, T | ProblemError] = {
            i: given.at(chunk.first + i) for i, given in enumerate(chunk.inputs) if isinstance(given, ProblemError)
        }
        encoded = {i: given for i, given in enumerate(chunk.inputs) if isinstance(given, bytes)}
        groups = [list(encoded)] if encoded else []
        while groups:
            group = groups.pop()
            inputs = [encoded[i] for i in group]
            send = Send("POST", call.path, call.body(inputs), call.request_id, is_divisible=len(inputs) > 1)
            try:
                response = yield from self._send_with_retries(send, last_answer)
                outcomes |= zip(group, call.results(response, len(group)), strict=True)
            except (ProblemError, UnexpectedAnswerError) as error:
                problem = (
                    error if isinstance(error, ProblemError) else ProblemError(200, "unexpected_answer", str(error))
                )
                if problem.status == 413:
                    self.limits = None
                if problem.status == 504 and self.clock() - start >= self.policy.deadline:
                    raise
                failed, rest = isolate(problem, inputs)
                if failed and (problem.status in _STATUSES_WITHOUT_ANSWER or problem.ended_process):
                    failures.count += 1
                    if failures.count >= failures.limit:
                        raise
                if problem.status != 504:
                    last_answer = self.clock()
                outcomes |= {group[i]: fault.at(chunk.first + group[i]) for i, fault in failed.items()}
                groups += [[group[i] for i in indices] for indices in rest]
            else:
                last_answer = self.clock()
                failures.count = 0
        return [outcomes[i] for i in range(len(chunk.inputs))]

    def _send_with_retries(self, send: Send, start: float) -> Flow[httpx.Response]:
        """Send until there is an answer, or the policy allows no other attempt; `start` is a time of the clock."""
        attempt = slow = 0
        while True:
            attempt += 1
            sent = self.clock()
            reply = yield send
            assert reply is not None, "the outcome of Send is a response or an error"
            if isinstance(reply, httpx.Response) and reply.is_success:
                return reply
            now, jitter = self.clock(), self.random()
            slow += isinstance(reply, httpx.Response) and reply.status_code == 504 and now - sent >= SLOW_SECONDS
            too_slow = send.is_divisible or slow >= SLOW_ATTEMPTS
            pause = pause_before_retry(self.policy, reply, attempt, now - start, jitter, is_too_slow=too_slow)
            if pause is not None:
                yield Wait(pause)
            elif isinstance(reply, httpx.Response):
                raise problem_of(reply, self._through_proxy())
            else:
                message = f"{self.base_url}: {str(reply) or type(reply).__name__}{self._through_proxy()}"
                if CERTIFICATE_REFUSED in message and (named := trusted_certificates()):
                    message += f"; the trusted certificates are those of {'='.join(named)}"
                if any(reason in message for reason in _NOT_TLS):
                    message += f"; the {'service' if self.base_url.startswith('https') else 'proxy'} speaks http://"
                raise ConnectionFailedError(message) from reply

    def _through_proxy(self) -> str:
        variable = self.proxy_variable
        return f", through the proxy in {variable}; NO_PROXY lists hosts without a proxy" if variable else ""


def result_or_raise(outcome: T | ProblemError) -> T:
    """Returns a result; raises an error."""
    if isinstance(outcome, ProblemError):
        raise outcome
    return outcome


def isolate(error: ProblemError, inputs: Sequence[bytes]) -> tuple[dict[int, ProblemError], list[list[int]]]:
    """Errors of the inputs that cannot be answered, by index, and groups of indices in which to ask for the others
    again.

    If the service names inputs, these and their equals cannot be answered. If it only says that some input is at
    fault, the request is halved until that input is alone. A request that ended the inference process is not repeated,
    because its parts could end it again: all its inputs get the error.

    Raises:
        ProblemError: no input is at fault.
    """
    indices = range(len(inputs))
    faults = {inputs[i]: fault for i, fault in error.by_input().items() if i < len(inputs)}
    if faults:
        rest = [i for i in indices if inputs[i] not in faults]
        return {i: faults[inputs[i]] for i in indices if inputs[i] in faults}, [rest] if rest else []
    if error.ended_process:
        return dict.fromkeys(indices, error), []
    if error.status not in _STATUSES_OF_AN_INPUT:
        raise error
    if len(inputs) > 1:
        middle = len(inputs) // 2
        return {}, [list(indices[:middle]), list(indices[middle:])]
    return {0: error}, []


def problem_of(response: httpx.Response, note: str = "") -> ProblemError:
    """The error of an answer. A proxy's page is not a problem document: its error says so, followed by the note."""
    error = _ERRORS.get(response.status_code, ProblemError)
    request_id = response.headers.get("x-request-id")
    try:
        body = response.json()
        faults = tuple(FieldProblem(fault["message"], list(fault["loc"])) for fault in body["errors"])
        code, detail, request_id = body["code"], body["detail"], body["request_id"]
    except (ValueError, KeyError, TypeError):
        code, faults = "no_problem_document", ()
        detail = f"the answer was {response.status_code} {response.reason_phrase}".rstrip() + note
    if response.status_code == 404 and code != "task_not_served":
        detail = f"{response.url}: {detail}; give the address of the service's root"
    if response.has_redirect_location:
        detail += f", to {response.headers['location']}; give the address of the service's root there"
    return error(response.status_code, code, detail, request_id, faults)
