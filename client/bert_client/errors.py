"""Every error of this package.

TableError                       a file cannot be read as a table
BertServiceError
├── ConnectionFailedError        no answer: refused, cut off or too slow
├── UnexpectedAnswerError        an answer that this service does not give
└── ProblemError                 the service refused, with its reason
    ├── UnauthorizedError        401: an API key is needed
    ├── TooLargeError            413: more than one request may carry
    ├── InvalidInputError        422: well-formed but meaningless
    ├── TooBusyError             429: the queue was full at every attempt
    ├── UnavailableError         503: loading, draining or broken at every attempt
    └── DeadlineExceededError    504: the answer took too long
"""

from __future__ import annotations

from bert_client.wire import FieldProblem


class TableError(Exception):
    """A file cannot be read as a table. The message names the file, the place in it and what to do."""


class BertServiceError(Exception):
    """Base of every error that a client raises on purpose."""


class ConnectionFailedError(BertServiceError):
    """There is no answer: refused, cut off, too slow, or a variable of the environment cannot be used.

    `__cause__` is the error behind it, mostly httpx's.
    """


class UnexpectedAnswerError(BertServiceError):
    """An answer that this service does not give; perhaps the URL is another's."""


class ProblemError(BertServiceError):
    """The service said no. The fields are those of the problem document."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        request_id: str | None = None,
        errors: tuple[FieldProblem, ...] = (),
    ) -> None:
        super().__init__(f"{detail} ({status} {code})")
        self.status = status
        self.code = code
        self.detail = detail
        self.request_id = request_id
        self.errors = errors

    @property
    def input_index(self) -> int | None:
        """Which of the inputs is at fault, if the service told."""
        loc = self.errors[0].loc if self.errors else ()
        return loc[1] if len(loc) > 1 and loc[0] == "inputs" and isinstance(loc[1], int) else None

    def at(self, index: int) -> ProblemError:
        """The same problem, as that of the input at `index`."""
        faults = self.errors or (FieldProblem(self.detail, ["inputs"]),)
        moved = tuple(FieldProblem(fault.message, _moved(fault.loc, index)) for fault in faults)
        return type(self)(self.status, self.code, self.detail, self.request_id, moved)


class UnauthorizedError(ProblemError):
    """An API key is needed, or this one is wrong."""


class TooLargeError(ProblemError):
    """More than the service takes at once."""


class InvalidInputError(ProblemError):
    """Well-formed but meaningless: an empty text, no mask, too long, an unknown target."""


class TooBusyError(ProblemError):
    """The queue was full at every attempt."""


class UnavailableError(ProblemError):
    """Loading, draining or broken at every attempt."""


class DeadlineExceededError(ProblemError):
    """The answer took too long."""


def _moved(loc: list[str | int], index: int) -> list[str | int]:
    return ["inputs", index, *loc[2:]] if loc[:1] == ["inputs"] else loc
