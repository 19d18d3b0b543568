"""Everything that can go wrong between HTTP and the model, in the domain's words. `problems` has the statuses.

ServiceError
├── NotJSONError                 the body is not JSON
├── UnsupportedMediaTypeError    the body is not declared as JSON
├── HostNotAllowedError          the `Host` header names none of the allowed hosts
├── UnauthorizedError            no API key, or a wrong one
├── InvalidRequestError          JSON that does not fit the schema
├── InvalidInputError            a text that has no answer; wraps a `model.errors.TextError`
├── TooLargeError                body, inputs, tokens or answer beyond a limit
├── TaskNotServedError           the loaded checkpoint has no head for this
├── QueueFullError               refused before it was started
├── TooManyBytesError            refused before its body was read
├── DeadlineExceededError        too late to be of use
├── CallerGoneError              nobody is listening any more
├── UnavailableError             loading, draining or broken
└── InferenceError               the model failed on this input

Inside the service, never sent to a caller: OutOfMemoryError, BackendDiedError.
"""

from __future__ import annotations

from dataclasses import dataclass

Loc = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class FieldError:
    """One fault and where in the body it lies."""

    message: str
    loc: Loc


class ServiceError(Exception):
    """Base of every error that `app` raises on purpose. The message may be shown to the caller."""


class NotJSONError(ServiceError):
    """The body is not JSON."""


class UnsupportedMediaTypeError(ServiceError):
    """The body is not declared as JSON."""


class HostNotAllowedError(ServiceError):
    """The `Host` header names none of the allowed hosts."""


class UnauthorizedError(ServiceError):
    """API keys are configured, and none or a wrong one came. `challenge`: how one may be sent."""

    challenge = "Bearer"


class InvalidRequestError(ServiceError):
    """JSON that does not fit the schema."""

    def __init__(self, errors: list[FieldError]) -> None:
        first = errors[0]
        super().__init__(f"{'.'.join(map(str, first.loc)) or 'body'}: {first.message}")
        self.errors = errors


class InvalidInputError(ServiceError):
    """A text that has no answer (`error` is a `model.errors.TextError`), and which one it was."""

    def __init__(self, error: Exception, loc: Loc) -> None:
        super().__init__(str(error))
        self.error = error
        self.loc = loc


class TooLargeError(ServiceError):
    """Body, inputs, tokens or answer beyond a limit, so that trying again cannot help."""


class TaskNotServedError(ServiceError):
    """The loaded checkpoint has no head for this task."""


class QueueFullError(ServiceError):
    """The queue's token limit is reached, or what waits would take beyond the server's own deadline (`late`);
    the request was not started."""

    def __init__(self, retry_after: int, *, late: bool = False) -> None:
        reason = "what waits already would take beyond this request's deadline" if late else "the queue is full"
        super().__init__(f"{reason}; try again in {retry_after} s")
        self.retry_after = retry_after


class TooManyBytesError(ServiceError):
    """Too many bytes are being uploaded; the request was not started."""

    retry_after = 1

    def __init__(self) -> None:
        super().__init__(f"too many bytes are being uploaded; try again in {self.retry_after} s")


class DeadlineExceededError(ServiceError):
    """The deadline passed before the answer was there; or the one that the caller asked for would have, at the
    measured speed. Then nothing was computed, and there is a `retry_after`."""

    def __init__(self, retry_after: int | None = None) -> None:
        super().__init__(
            "the deadline passed before the answer was there"
            if retry_after is None
            else "the answer would come after the deadline, so nothing was computed; "
            f"allow more time, or try again in {retry_after} s"
        )
        self.retry_after = retry_after


class CallerGoneError(ServiceError):
    """The caller closed the connection before the answer was there."""


class UnavailableError(ServiceError):
    """The service cannot answer now. `status` is the engine's."""

    def __init__(self, status: str, retry_after: int = 5) -> None:
        super().__init__(f"the service is {status}")
        self.status = status
        self.retry_after = retry_after


class InferenceError(ServiceError):
    """The model failed on this input, and only on this one."""

    def __init__(self, reason: str = "the model failed on this input") -> None:
        super().__init__(reason)


class OutOfMemoryError(Exception):
    """A batch did not fit into memory; a smaller batch may."""


class BackendDiedError(Exception):
    """An inference process ended or hangs, so no further batch can succeed."""
