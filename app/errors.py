"""The errors of the service. `app.http.problems` maps each to an HTTP status and a code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

Loc = tuple[str | int, ...]

MAX_FAULTS = 100
"""Invalid inputs or fields that an error names; listing ten thousand takes too long."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault in one field of a request, and the field's path."""

    message: str
    loc: Loc


class ServiceError(Exception):
    """Base of the errors of a request. Its message is sent to the caller."""


class NotJSONError(ServiceError):
    """The body is not JSON."""


class UnsupportedMediaTypeError(ServiceError):
    """The body is not declared as JSON."""


class HostNotAllowedError(ServiceError):
    """The `Host` header names none of the allowed hosts."""


class UnauthorizedError(ServiceError):
    """API keys are configured, and the request has no valid one. `challenge`: the `WWW-Authenticate` header."""

    challenge = "Bearer"


class InvalidRequestError(ServiceError):
    """The JSON does not fit the schema."""

    def __init__(self, errors: list[Fault]) -> None:
        first = errors[0]
        super().__init__(f"{'.'.join(map(str, first.loc)) or 'body'}: {first.message}")
        self.errors = errors

    @classmethod
    def at(cls, message: str, *loc: str | int) -> InvalidRequestError:
        return cls([Fault(message, loc)])


class LocatedError(ServiceError):
    """Inputs have no result. `faults`: the error and the path of each; empty if they are not known."""

    def __init__(self, message: str, faults: Sequence[tuple[Exception, Loc]] = ()) -> None:
        super().__init__(message)
        self.faults = faults

    def relocate(self, to: Callable[[Loc], Loc]) -> None:
        """Change the paths, for a request of another shape."""
        self.faults = [(error, to(loc)) for error, loc in self.faults]


class InvalidInputError(LocatedError):
    """Texts that have no result. Message, status and code are those of the first."""

    def __init__(self, faults: Sequence[tuple[Exception, Loc]]) -> None:
        """`faults`: the `model.errors.TextError` and the path of each text."""
        super().__init__(str(faults[0][0]), faults)


class TooLargeError(ServiceError):
    """Body, inputs, tokens or response exceed a limit, so repeating the request does not help."""


class TaskNotServedError(ServiceError):
    """The loaded checkpoint has no head for this task."""


class QueueFullError(ServiceError):
    """The queue is full, or (`late`) the work ahead takes longer than the server's deadline allows. The request was not
    started."""

    def __init__(self, retry_after: int, *, late: bool = False) -> None:
        reason = "the requests ahead take longer than this request's deadline allows" if late else "the queue is full"
        super().__init__(f"{reason}; try again in {retry_after} s")
        self.retry_after = retry_after


class TooManyBytesError(ServiceError):
    """The bodies of other requests leave no room for the body of this one. Nothing was computed."""

    retry_after = 1

    def __init__(self) -> None:
        super().__init__(f"too many bytes are being uploaded; try again in {self.retry_after} s")


class DeadlineExceededError(ServiceError):
    """The deadline passed before the response was ready."""

    def __init__(self, message: str = "the deadline passed; allow more time, or send fewer inputs") -> None:
        super().__init__(message)


class DeadlineUnreachableError(DeadlineExceededError):
    """The deadline that the caller asked for cannot be met at the measured speed, so nothing was computed."""

    def __init__(self, retry_after: int) -> None:
        super().__init__(
            "the answer would come after the deadline, so nothing was computed; "
            f"allow more time, or try again in {retry_after} s"
        )
        self.retry_after = retry_after


class CallerGoneError(ServiceError):
    """The caller closed the connection before the response was ready."""

    def __init__(self) -> None:
        super().__init__("the caller closed the connection")


UNAVAILABLE_STATUSES = ("loading", "reloading", "stalled", "draining", "stopped", "broken", "too_many_connections")
"""Why the service cannot answer. An accepted request gets `stopped` if draining ended before its response, and
`reloading` if its model was replaced and the model's process has ended."""


class UnavailableError(ServiceError):
    """The service cannot answer now."""

    def __init__(self, status: str, retry_after: int = 5) -> None:
        """`status`: one of `UNAVAILABLE_STATUSES`."""
        advice = "its log has the reason, and only a restart helps" if status == "broken" else "try again"
        super().__init__(f"the service is {status}; {advice}")
        self.status = status
        self.retry_after = retry_after


class TooManyConnectionsError(UnavailableError):
    """The connection of the request is above the limit."""

    def __init__(self) -> None:
        super().__init__("too_many_connections", retry_after=1)
        self.args = ("too many connections are open; close those that you do not use, and try again",)


class InferenceError(LocatedError):
    """The model failed on an input. Its request fails; other requests of the batch do not."""

    def __init__(
        self, reason: str = "the model failed on this input; the operator's log has more", index: int | None = None
    ) -> None:
        """`index`: the input's index in its request, if it is known."""
        super().__init__(reason, [] if index is None else [(InferenceError(reason), ("inputs", index))])


class ProcessDiedError(InferenceError):
    """The inference process ended while it computed a batch. Another takes its place, but all requests of the batch
    fail: an input of one of them may be the cause, and would end the next process too."""

    def __init__(self) -> None:
        super().__init__(
            "the inference process ended while it computed this request, perhaps because of another request's input; "
            "send each input of this request once more, one by one"
        )


class OutOfMemoryError(Exception):
    """A batch did not fit into memory; a smaller batch may."""


class BackendDiedError(Exception):
    """The inference processes have ended and cannot be replaced, so no further batch can succeed."""


class SettingsError(Exception):
    """A setting with an invalid value. The message names the variable."""


class FlagError(SettingsError):
    """An unknown flag, or one without a value."""
