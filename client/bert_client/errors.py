"""The errors of this package."""

from __future__ import annotations

from bert_client.wire import FieldProblem


class BertServiceError(Exception):
    """Base of the errors that the clients raise."""


class ConnectionFailedError(BertServiceError):
    """The service did not respond: refused, cut off, too slow, or an environment variable cannot be used.

    `__cause__` is the underlying error, mostly httpx's.
    """


class ProblemError(BertServiceError):
    """The service refused a request or an input, or the client cannot send an input.

    Attributes:
        status: HTTP status; None for an input that was not sent.
        code: Kind of problem, such as `queue_full`; `unexpected_answer` for an UnexpectedAnswerError.
            If a request has several invalid inputs, all their errors have the code of the first.
        detail: A sentence for people.
        request_id: Id of the request in the service's log.
        errors: Faults that have a place in the request.
    """

    def __init__(
        self,
        status: int | None,
        code: str,
        detail: str,
        request_id: str | None = None,
        errors: tuple[FieldProblem, ...] = (),
    ) -> None:
        super().__init__(status, code, detail, request_id, errors)
        self.status = status
        self.code = code
        self.detail = detail
        self.request_id = request_id
        self.errors = errors

    def __str__(self) -> str:
        index = self.input_index
        place = "" if index is None else f"input {index}: "
        status = "" if self.status is None else f"{self.status} "
        return f"{place}{self.detail} ({status}{self.code})"

    @property
    def input_index(self) -> int | None:
        """Index of the first input at fault, if it is known."""
        return _input_index(self.errors[0]) if self.errors else None

    @property
    def ended_process(self) -> bool:
        """Whether the inference process ended while it computed the request. A text of this request, or of another in
        the same batch, may end it again, so the client does not repeat the request."""
        return self.status == 500 and self.code == "inference_failed" and not self.errors

    def by_input(self) -> dict[int, ProblemError]:
        """An error for each input that is known to be at fault, by its index."""
        faults: dict[int, list[FieldProblem]] = {}
        for fault in self.errors:
            if (index := _input_index(fault)) is not None:
                faults.setdefault(index, []).append(fault)
        return {
            index: type(self)(self.status, self.code, own[0].message, self.request_id, tuple(own))
            for index, own in faults.items()
        }

    def at(self, index: int | None) -> ProblemError:
        """A copy of the problem for an input at another index; None for an input that is not in a list. An
        `ended_process` problem is unchanged, because another input may be its cause."""
        if self.ended_process:
            return self
        faults = self.errors or (FieldProblem(self.detail, ["inputs"]),)
        moved = tuple(FieldProblem(fault.message, _moved(fault.loc, index)) for fault in faults)
        return type(self)(self.status, self.code, faults[0].message, self.request_id, moved)


class UnexpectedAnswerError(ProblemError):
    """The response is not the service's: a gateway, proxy, firewall or another service sent it. The request was tried
    again like a failed connection. `status` is the response's, and `detail` shows the beginning of its content."""


class NoResponseError(ConnectionFailedError, ProblemError):
    """A request got no response, and its input may be the cause, because the service answers others. A stream yields
    it. `code` is `timeout` or `connection_broken`, and `status` is None."""


class UnauthorizedError(ProblemError):
    """An API key is needed, or the given one is wrong. With status 407, the name and password for a proxy."""


class TooLargeError(ProblemError):
    """The request has more inputs or bytes, or would have a larger response, than the service allows."""


class InvalidInputError(ProblemError):
    """An input cannot be answered: it is not a text, empty, too long, has no mask, or a target is unknown."""


class TooBusyError(ProblemError):
    """The queue was full, or too many bytes were being received, at every attempt."""


class UnavailableError(ProblemError):
    """The service was loading, draining or broken, or had too many connections, at every attempt."""


class DeadlineExceededError(ProblemError):
    """The response took too long."""


def _input_index(fault: FieldProblem) -> int | None:
    loc = fault.loc
    return loc[1] if len(loc) > 1 and loc[0] == "inputs" and isinstance(loc[1], int) else None


def _moved(loc: list[str | int], index: int | None) -> list[str | int]:
    return ["inputs", *([] if index is None else [index]), *loc[2:]] if loc[:1] == ["inputs"] else loc
