"""Everything that can go wrong between a caller and the service.

BertServiceError
├── ConnectionFailedError        nobody answered: refused, cut off or too slow
├── UnexpectedAnswerError        somebody answered, but not this service
└── ProblemError                 the service said no, and why
    ├── UnauthorizedError        401: an API key is needed
    ├── TooLargeError            413: more than the service takes at once
    ├── InvalidInputError        422: well-formed but meaningless
    ├── TooBusyError             429: the queue was full at every attempt
    ├── UnavailableError         503: loading, draining or broken at every attempt
    └── DeadlineExceededError    504: the answer took too long
"""

from __future__ import annotations

import httpx

from app.errors import FieldError, Loc


class BertServiceError(Exception):
    """Base of every error that a client raises on purpose."""


class ConnectionFailedError(BertServiceError):
    """Nobody answered; `__cause__` is httpx's error."""


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
        errors: tuple[FieldError, ...] = (),
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
        faults = self.errors or (FieldError(self.detail, ("inputs",)),)
        moved = tuple(FieldError(fault.message, _moved(fault.loc, index)) for fault in faults)
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


_CLASSES: dict[int, type[ProblemError]] = {
    401: UnauthorizedError,
    413: TooLargeError,
    422: InvalidInputError,
    429: TooBusyError,
    503: UnavailableError,
    504: DeadlineExceededError,
}


def problem_of(response: httpx.Response) -> ProblemError:
    """The error that an answer stands for; a proxy's page, which is no problem document, included."""
    cls = _CLASSES.get(response.status_code, ProblemError)
    request_id = response.headers.get("x-request-id")
    try:
        body = response.json()
        faults = tuple(FieldError(fault["message"], tuple(fault["loc"])) for fault in body["errors"])
        return cls(response.status_code, body["code"], body["detail"], body["request_id"], faults)
    except (ValueError, KeyError, TypeError):
        detail = f"the answer was {response.status_code} {response.reason_phrase}".rstrip()
        return cls(response.status_code, "no_problem_document", detail, request_id)


def _moved(loc: Loc, index: int) -> Loc:
    return ("inputs", index, *loc[2:]) if loc[:1] == ("inputs",) else loc
