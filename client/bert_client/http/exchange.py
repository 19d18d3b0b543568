"""The conversation with the service, without a network: which requests to send, when to wait, how to read responses.

A flow is a generator that yields steps and receives their outcomes. So the retries, and the search for inputs that make
a request fail, are written and tested once; `BertClient` and `AsyncBertClient` only perform the steps.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx

from bert_client import errors
from bert_client.errors import ConnectionFailedError, NoResponseError, ProblemError, UnexpectedAnswerError
from bert_client.http.calls import HIDDEN_INFO, Call, Chunk, ServiceInfo, encode, read_info
from bert_client.http.retry import BROKEN, BUSY_STATUSES, Reply, RetryPolicy, pause_before_retry
from bert_client.results import Model
from bert_client.wire import FieldProblem

T = TypeVar("T")
Read = Callable[[httpx.Response], T]
"""Reads a response with status 200. Raises ValueError, KeyError or TypeError if it is not the service's."""

_ERRORS: dict[int, type[ProblemError]] = {
    401: errors.UnauthorizedError,
    407: errors.UnauthorizedError,
    413: errors.TooLargeError,
    422: errors.InvalidInputError,
    429: errors.TooBusyError,
    503: errors.UnavailableError,
    504: errors.DeadlineExceededError,
}
_ERRORS_OF_ANY_SENDER = {status: _ERRORS.get(status, ProblemError) for status in (401, 407, 504, *BUSY_STATUSES)}
"""Errors whose status means the same from the service and from a gateway."""
_CREDENTIALS = {401: "; check `api_key`", 407: "; check the name and password for the proxy"}
_MAYBE_OF_AN_INPUT = (UnexpectedAnswerError, NoResponseError)
"""Errors that one input may cause if the service is there: a gateway refuses it, or ends the connection."""
_STATUSES_OF_AN_INPUT = frozenset({400, 413, 504})
"""Statuses that one input may cause: it cannot be read, is too large, or takes too long."""
_INFO = "/info"
_MIN_UNEXPECTED_ANSWERS = 3
"""Number of unexpected answers after which the inputs of a request may be the cause."""
_PROBLEM_TYPE = "urn:bert-service:problem:"
_UNEXPECTED = "unexpected_answer"
"""Code of a response that is not the service's."""
_TIMEOUT = "timeout"
_SHOWN_CHARACTERS = 200
"""Length of the beginning of an unexpected answer in its error."""
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
    can_be_halved: bool = False
    """Whether it has several inputs. If it is too slow, it is repeated only if it has one."""
    unexpected_answers: int = _MIN_UNEXPECTED_ANSWERS
    """Number of unexpected answers after which its inputs may be the cause."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait for some seconds. The outcome is None."""

    seconds: float
    reason: str
    """Status and code of the problem, or the name of httpx's error."""


@dataclass(slots=True)
class FailureCounter:
    """Counts consecutive inputs without an answer from the service, over all requests of a list or stream, and bounds
    these requests after one was too slow. A request that ended the inference process counts as one input."""

    limit: int = 20
    """Number of failures that cannot be the fault of the inputs, so the error is raised."""
    count: int = 0
    max_inputs: int = sys.maxsize
    """Number of inputs in one request. It grows again with each answer."""


Outcome = Reply | None
"""The outcome of a step: a reply to `Send`, None after `Wait`."""
Flow = Generator[Send | Wait, Any, T]


@dataclass(slots=True)
class Exchange:
    """Makes the flows of a client, and keeps the contents of `/info` between them."""

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
    """Contents of `/info`; None before the first request for it."""
    info_end: float = 0.0
    """Time of the clock at which `/info` is read again."""

    def model(self, task: str) -> Flow[Model | None]:
        """The model that answers a task; None if `/info` does not list it. Waits while the models are loaded."""
        start = self.clock()
        info = yield from self.service_info()
        while not (info.models or info.is_ready) and self.clock() - start < self.policy.deadline:
            yield Wait(_INFO_SECONDS[False], "loading")
            info = yield from self.service_info()
        return info.models.get("sentiment" if task == "classify" else task)

    def service_info(self) -> Flow[ServiceInfo]:
        """The present contents of `/info`."""
        if self.info is None or self.clock() >= self.info_end:
            found = yield from self._send_with_retries(Send("GET", _INFO), read_info, self.clock())
            # A proxy may hide `/info`. If the address is wrong, the requests with inputs fail too.
            self.info = HIDDEN_INFO if isinstance(found, UnexpectedAnswerError) else result_or_raise(found)
            self.info_end = self.clock() + _INFO_SECONDS[self.info.is_ready]
        return self.info

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
        """
        start = last_answer = self.clock()
        # A single input keeps no others waiting, so it gets all attempts.
        min_answers = self.policy.attempts if failures.limit == 1 else _MIN_UNEXPECTED_ANSWERS
        outcomes: dict[int, T | ProblemError] = {
            i: given.at(chunk.first + i) for i, given in enumerate(chunk.inputs) if isinstance(given, ProblemError)
        }
        encoded = {i: given for i, given in enumerate(chunk.inputs) if isinstance(given, bytes)}
        sent, size = list(encoded), failures.max_inputs
        groups = [sent[i : i + size] for i in range(0, len(sent), size)]
        while groups:
            group = groups.pop()
            inputs = [encoded[i] for i in group]
            # A part is divided at once, because the whole request was tried several times.
            unexpected_answers = 1 if 1 < len(inputs) < len(encoded) else min_answers
            can_be_halved = len(inputs) > 1
            send = Send("POST", call.path, call.body(inputs), call.request_id, can_be_halved, unexpected_answers)
            read = functools.partial(call.results, count=len(inputs))
            found = yield from self._send_with_retries(send, read, last_answer)
            if not isinstance(found, ProblemError):
                outcomes |= zip(group, found, strict=True)
                last_answer = self.clock()
                failures.count = 0
                if len(group) >= failures.max_inputs:
                    failures.max_inputs += 1 + len(group) // 4
                continue
            if isinstance(found, errors.TooLargeError):
                self.info_end = 0.0  # the limits may have changed
            is_slow = _is_too_slow(found)
            if is_slow and can_be_halved:
                if self.clock() - last_answer >= self.policy.deadline:
                    raise found
                failures.max_inputs = min(failures.max_inputs, len(inputs) // 2)
            failed, rest = isolate(found, inputs)
            if failed and (isinstance(found, _MAYBE_OF_AN_INPUT) or is_slow or found.ended_process):
                failures.count += 1
                if failures.count >= failures.limit:
                    raise found
            if not is_slow or (failed and last_answer > start):  # others were answered, so the rest may be, too
                last_answer = self.clock()
            outcomes |= {group[i]: fault.at(chunk.first + group[i]) for i, fault in failed.items()}
            groups += [[group[i] for i in indices] for indices in rest]
        return [outcomes[i] for i in range(len(chunk.inputs))]

    def _send_with_retries(self, send: Send, read: Read[T], start: float) -> Flow[T | ProblemError]:
        """Send until there is a result, or the policy allows no other attempt; `start` is a time of the clock.

        A request that was too slow is repeated if it cannot be halved, or if the response has a `Retry-After`. An
        unexpected answer is retried like a failed connection. After a few of them, or of connections that broke after
        the request was sent, the inputs may be the cause if the service is there.

        Returns:
            The result that was read, or the problem that may be caused by the inputs.

        Raises:
            UnexpectedAnswerError: the service was not there until the policy allowed no other attempt.
            ConnectionFailedError: the service did not respond.
        """
        attempt = 0
        while True:
            attempt += 1
            reply: Reply = yield send
            found = self._read(send, reply, read)
            if not isinstance(found, ProblemError | ConnectionFailedError):
                return found
            is_slow = _is_too_slow(found)
            is_refusal = isinstance(found, ProblemError) and not isinstance(found, _MAYBE_OF_AN_INPUT)
            elapsed, jitter = self.clock() - start, self.random()
            status = getattr(found, "status", None) if is_refusal and not is_slow else None
            pause = pause_before_retry(self.policy, reply, attempt, elapsed, jitter, status=status)
            if is_slow and send.can_be_halved and "retry-after" not in getattr(reply, "headers", ()):
                pause = None
            is_last = pause is None or attempt >= send.unexpected_answers
            is_suspect = not (is_slow or is_refusal) and (is_last or attempt >= _MIN_UNEXPECTED_ANSWERS)
            if isinstance(found, ProblemError) and is_suspect and (yield from self._is_there(send, found)) and is_last:
                return found
            if pause is not None:
                has_status = isinstance(found, ProblemError) and found.status is not None
                yield Wait(pause, " ".join(map(str, found.args[:2])) if has_status else type(reply).__name__)
            elif isinstance(found, ProblemError) and (is_slow or is_refusal):
                return found
            else:
                raise found

    def _is_there(self, send: Send, answer: ProblemError | ConnectionFailedError) -> Flow[bool]:
        """Whether the service answers `/info`, or a gateway hides it.

        After an unexpected answer to `/info`, the service is away if the status is 500 or more, or if `/info` could be
        read before.

        Raises:
            UnexpectedAnswerError: the request and `/info` are not found, so there is no service at the address.
        """
        found: object = answer
        if send.path != _INFO:
            send = Send("GET", _INFO)
            found = self._read(send, (yield send), read_info)
        if isinstance(found, ProblemError) and found.code == _UNEXPECTED:
            is_hidden = self.info in (None, HIDDEN_INFO)
            if is_hidden and found is not answer and {found.status, getattr(answer, "status", None)} == {404}:
                detail = f"there is no bert-service at {self.base_url}, because {found.detail}"
                raise UnexpectedAnswerError(404, _UNEXPECTED, detail)
            return (found.status or 0) < 500 and is_hidden
        return not isinstance(found, ConnectionFailedError)

    def _read(self, send: Send, reply: Reply, read: Read[T]) -> T | ProblemError | ConnectionFailedError:
        """The result in a response, or the error."""
        if isinstance(reply, httpx.RequestError):
            return self._connection_error(reply)
        for parse in (read, problem_of) if reply.is_success else (problem_of,):
            with suppress(ValueError, KeyError, TypeError):
                return parse(reply)
        where = f" to {reply.headers['location']}" if reply.has_redirect_location else ""
        shown = " ".join(reply.text.split())[:_SHOWN_CHARACTERS]
        detail = (
            f"{self.base_url}{send.path}: responded {reply.status_code}{where}, not as bert-service: "
            f"{shown!r}{_CREDENTIALS.get(reply.status_code, '')}{self._through_proxy()}"
        )
        error = _ERRORS_OF_ANY_SENDER.get(reply.status_code, UnexpectedAnswerError)
        return error(reply.status_code, _UNEXPECTED, detail)

    def _connection_error(self, error: httpx.RequestError) -> ConnectionFailedError:
        message = f"{self.base_url}: {str(error) or type(error).__name__}{self._through_proxy()}"
        if any(reason in message for reason in _NOT_TLS):
            message += f"; the {'service' if self.base_url.startswith('https') else 'proxy'} speaks http://"
        code = _TIMEOUT if isinstance(error, httpx.TimeoutException) else "connection_broken"
        is_broken = isinstance(error, BROKEN)
        failure = NoResponseError(None, code, message) if is_broken else ConnectionFailedError(message)
        failure.__cause__ = error
        return failure

    def _through_proxy(self) -> str:
        variable = self.proxy_variable
        return f", through the proxy in {variable}; NO_PROXY lists hosts without a proxy" if variable else ""


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
    if error.status not in _STATUSES_OF_AN_INPUT and not isinstance(error, _MAYBE_OF_AN_INPUT):
        raise error
    if len(inputs) > 1:
        middle = len(inputs) // 2
        return {}, [list(indices[:middle]), list(indices[middle:])]
    return {0: error}, []


def _is_too_slow(error: ProblemError | ConnectionFailedError) -> bool:
    """Whether the size of the request, or the load, may be the cause."""
    is_timeout = isinstance(error, NoResponseError) and error.code == _TIMEOUT
    return is_timeout or isinstance(error, errors.DeadlineExceededError)


def problem_of(response: httpx.Response) -> ProblemError:
    """Read a problem document, of which a gateway may have changed the HTTP status. Raises ValueError, KeyError or
    TypeError if it is not the service's."""
    body = response.json()
    faults = tuple(FieldProblem(fault["message"], list(fault["loc"])) for fault in body["errors"])
    status = int(body["status"]) if str(body.get("type")).startswith(_PROBLEM_TYPE) else response.status_code
    if status < 400:
        raise ValueError(f"the status {status} is not that of an error")
    return _ERRORS.get(status, ProblemError)(status, body["code"], body["detail"], body["request_id"], faults)
