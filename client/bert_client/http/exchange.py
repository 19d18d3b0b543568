"""The conversation with the service, without a network: which requests to send, when to wait, how to read responses.

A flow is a generator that yields steps and receives their outcomes. So the retries, and the search for inputs that make
a request fail, are written and tested once; `BertClient` and `AsyncBertClient` only perform the steps.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import httpx

from bert_client import errors
from bert_client.errors import BertServiceError, ConnectionFailedError, ProblemError, UnexpectedAnswerError
from bert_client.http.calls import HIDDEN_INFO, Call, Chunk, RequestLimits, ServiceInfo, encode, read_info
from bert_client.http.environment import trusted_certificates
from bert_client.http.retry import CERTIFICATE_REFUSED, RetryPolicy, pause_before_retry
from bert_client.results import Model
from bert_client.wire import FieldProblem

T = TypeVar("T")
Read = Callable[[httpx.Response], T]
"""Reads a response with status 200. Raises UnexpectedAnswerError if it is not the service's."""

_ERRORS: dict[int, type[ProblemError]] = {
    401: errors.UnauthorizedError,
    413: errors.TooLargeError,
    422: errors.InvalidInputError,
    429: errors.TooBusyError,
    503: errors.UnavailableError,
    504: errors.DeadlineExceededError,
}
_STATUSES_OF_AN_INPUT = frozenset({400, 413, 504})
"""Statuses that one input may cause: it cannot be read, is too large, or takes too long."""
_INFO = "/info"
_FOREIGN_CODES = ("no_problem_document", "unexpected_answer")
"""Codes of foreign responses: of a gateway, proxy or firewall, or of another service."""
_FOREIGN_ATTEMPTS = 3
"""Number of foreign responses after which the inputs of the request may be the cause."""
_SLOW_SECONDS = 5.0
"""A foreign response after this time may mean that the service takes too long for the inputs of the request."""

_NOT_TLS = ("WRONG_VERSION_NUMBER", "record layer failure")
"""Parts of OpenSSL's messages if the response is not TLS."""
_INFO_SECONDS = {True: 60.0, False: 1.0}
"""Seconds until the service is asked for `/info` again, by whether it is ready. By then another service may be at its
address."""


@dataclass(frozen=True, slots=True)
class Send:
    """Send a request. The outcome is the response, or httpx's error."""

    method: str
    path: str
    body: bytes | None = None
    request_id: str | None = None
    max_foreign_answers: int = _FOREIGN_ATTEMPTS
    """Number of foreign responses after which its inputs may be the cause."""
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
    """Wait for some seconds. The outcome is None."""

    seconds: float


@dataclass(slots=True)
class FailureCounter:
    """Counts consecutive inputs without an answer from the service, over all requests of a list or stream. A request
    that ended the inference process counts as one input."""

    limit: int = 20
    """Number of failures that cannot be the fault of the inputs, so the error is raised."""
    count: int = 0


Outcome = httpx.Response | httpx.RequestError | None
Flow = Generator[Send | Wait, Outcome, T]


@dataclass(slots=True)
class Exchange:
    """Makes flows."""

    policy: RetryPolicy
    clock: Callable[[], float]
    """Time in seconds, such as `time.monotonic`."""
    random: Callable[[], float]
    """A random number in [0, 1)."""
    base_url: str = ""
    """Address for messages."""
    proxy_variable: str | None = None
    """The environment variable that names the proxy in use, for messages."""

    info: ServiceInfo | None = None
    """Contents of `/info`; None before the first request for it, and when the limits may have changed."""
    is_known: bool = False
    """Whether at least one response was the service's."""
    info_end: float = 0.0
    """Time of the clock at which `/info` is read again."""

    def request_limits(self) -> Flow[RequestLimits]:
        """The present limits of one request."""
        info = yield from self._service_info()
        return info.limits

    def model(self, task: str) -> Flow[Model | None]:
        """The model that answers a task; None if the service does not tell. Waits while the models are loaded."""
        start = self.clock()
        info = yield from self._service_info()
        while not (info.models or info.is_ready) and self.clock() - start < self.policy.deadline:
            yield Wait(_INFO_SECONDS[False])
            info = yield from self._service_info()
        return info.models.get("sentiment" if task == "classify" else task)

    def _service_info(self) -> Flow[ServiceInfo]:
        info = self.info  # `answer` may set it to None in another thread
        if info is None or self.clock() >= self.info_end:
            found = yield from self._send_with_retries(Send("GET", _INFO), read_info, self.clock())
            if isinstance(found, ProblemError):
                if not _is_foreign(found):
                    raise found
                # A proxy may hide `/info`. If the address is wrong, the requests with inputs fail too.
                found = replace(info or HIDDEN_INFO, is_ready=True)
            info = found
            self.info, self.info_end = info, self.clock() + _INFO_SECONDS[info.is_ready]
        return info

    def answer_one(self, call: Call[T], given: object) -> Flow[T]:
        """Ask for the result of an input that is not in a list. Raises the input's error, and the errors of
        `answer`."""
        (outcome,) = yield from self.answer(call, Chunk(0, [encode(given)]), FailureCounter(limit=1))
        return result_or_raise(outcome.at(None) if isinstance(outcome, ProblemError) else outcome)

    def answer(self, call: Call[T], chunk: Chunk, failures: FailureCounter) -> Flow[list[T | ProblemError]]:
        """Ask for the results of a chunk. Returns one per input, in order; an input without an answer has its error.

        Raises:
            ProblemError: the cause is not a single input.
            ConnectionFailedError: the service did not respond.
            UnexpectedAnswerError: the responses are not this service's.
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
            is_whole = len(inputs) == len(encoded)
            send = Send(
                "POST",
                call.path,
                call.body(inputs),
                call.request_id,
                # The whole request was tried several times before it is divided.
                max_foreign_answers=_FOREIGN_ATTEMPTS if is_whole or (len(inputs) == 1 and self.is_known) else 1,
                is_divisible=len(inputs) > 1,
            )
            read = functools.partial(call.results, count=len(inputs))
            results = yield from self._send_with_retries(send, read, last_answer)
            if not isinstance(results, ProblemError):
                outcomes |= zip(group, results, strict=True)
                last_answer = self.clock()
                failures.count = 0
                continue
            problem = results
            if problem.status == 413:
                self.info = None
            if problem.status == 504 and self.clock() - start >= self.policy.deadline:
                raise problem
            failed, rest = isolate(problem, inputs)
            if failed and (_is_foreign(problem) or problem.status == 504 or problem.ended_process):
                failures.count += 1
                if failures.count >= failures.limit or not (self.is_known or groups or rest):
                    raise _raised(problem)
            if problem.status != 504:
                last_answer = self.clock()
            outcomes |= {group[i]: fault.at(chunk.first + group[i]) for i, fault in failed.items()}
            groups += [[group[i] for i in indices] for indices in rest]
        return [outcomes[i] for i in range(len(chunk.inputs))]

    def _send_with_retries(self, send: Send, read: Read[T], start: float) -> Flow[T | ProblemError]:
        """Send until there is a result, or the policy allows no other attempt; `start` is a time of the clock.

        A foreign response is retried like that of a busy service. After a few attempts, the inputs may be its cause if
        the service answers other requests, or if it never has answered.

        Returns:
            The result that was read, or the problem that may be caused by the inputs.

        Raises:
            ProblemError: a foreign response, also to a request without inputs, until the policy allows no other
                attempt.
            ConnectionFailedError: the service did not respond.
        """
        attempt = 0
        while True:
            attempt += 1
            sent = self.clock()
            reply = yield send
            assert reply is not None, "the outcome of Send is a response or an error"
            found = None if isinstance(reply, httpx.RequestError) else self._read(reply, read)
            is_foreign = isinstance(found, ProblemError) and _is_foreign(found)
            self.is_known |= found is not None and not is_foreign
            if found is not None and not isinstance(found, ProblemError):
                return found
            is_slow = send.is_divisible and self.clock() - sent >= _SLOW_SECONDS
            enough = attempt >= min(1 if is_slow else send.max_foreign_answers, self.policy.attempts)
            if found and is_foreign and enough and (yield from self._answers_otherwise(send, found)):
                return found
            elapsed, jitter = self.clock() - start, self.random()
            pause = pause_before_retry(self.policy, reply, attempt, elapsed, jitter, is_ours=not is_foreign)
            if pause is not None:
                yield Wait(pause)
            elif isinstance(reply, httpx.RequestError):
                raise self._connection_error(reply) from reply
            elif found and not is_foreign:
                return found
            elif found:
                raise _raised(found)

    def _read(self, response: httpx.Response, read: Read[T]) -> T | ProblemError:
        if not response.is_success:
            return problem_of(response, self._through_proxy())
        try:
            return read(response)
        except UnexpectedAnswerError as error:
            problem = ProblemError(200, "unexpected_answer", str(error))
            problem.__cause__ = error
            return problem

    def _answers_otherwise(self, send: Send, problem: ProblemError) -> Flow[bool]:
        """Whether the service answers a request without inputs.

        This is assumed if a proxy hides `/info`. It is also assumed until a response was the service's, because a job
        at a wrong address does not wait. But a gateway's status above 500 means that the service is unavailable.
        """
        if not self.is_known and (problem.status or 0) > 500:
            return False
        if send.path == _INFO or not self.is_known or self.info == HIDDEN_INFO:
            return True
        reply = yield Send("GET", _INFO)
        with suppress(UnexpectedAnswerError):
            return isinstance(reply, httpx.Response) and bool(read_info(reply))
        return False

    def _connection_error(self, error: httpx.RequestError) -> ConnectionFailedError:
        message = f"{self.base_url}: {str(error) or type(error).__name__}{self._through_proxy()}"
        if CERTIFICATE_REFUSED in message and (named := trusted_certificates()):
            message += f"; the trusted certificates are those of {'='.join(named)}"
        if any(reason in message for reason in _NOT_TLS):
            message += f"; the {'service' if self.base_url.startswith('https') else 'proxy'} speaks http://"
        return ConnectionFailedError(message)

    def _through_proxy(self) -> str:
        variable = self.proxy_variable
        return f", through the proxy in {variable}; NO_PROXY lists hosts without a proxy" if variable else ""


def _is_foreign(problem: ProblemError) -> bool:
    return problem.code in _FOREIGN_CODES


def _raised(error: BertServiceError) -> BaseException:
    """The error to raise. For a response with status 200 that is not the service's, it is an UnexpectedAnswerError."""
    cause = error.__cause__
    return cause if isinstance(cause, UnexpectedAnswerError) else error


def result_or_raise(outcome: T | ProblemError) -> T:
    """Return a result; raise an error."""
    if isinstance(outcome, ProblemError):
        raise outcome
    return outcome


def isolate(error: ProblemError, inputs: Sequence[bytes]) -> tuple[dict[int, ProblemError], list[list[int]]]:
    """Errors by index, for inputs that cannot be answered, and groups of indices to ask for again.

    If the service names inputs, these and equal inputs cannot be answered. If it only says that some input is at fault,
    the request is halved until that input is alone. A request that ended the inference process is not repeated, because
    its parts could end it again: all its inputs get the error.

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
    if error.status not in _STATUSES_OF_AN_INPUT and not _is_foreign(error):
        raise error
    if len(inputs) > 1:
        middle = len(inputs) // 2
        return {}, [list(indices[:middle]), list(indices[middle:])]
    return {0: error}, []


def problem_of(response: httpx.Response, note: str = "") -> ProblemError:
    """The error of a response. A proxy's page is not a problem document; its error says so, followed by the note."""
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
