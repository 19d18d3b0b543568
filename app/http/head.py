"""Checks of a task's request head, before its body is read."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from app import errors
from app.batching.admission import Deadline
from app.http.auth import check_key
from app.http.context import RequestContext

_MAX_TIMEOUT_DIGITS = 12
"""Further digits of a timeout are ignored, because Python refuses to parse thousands of them."""


def admit(context: RequestContext, headers: Mapping[bytes, str], *, binary: bool) -> tuple[Deadline, int]:
    """Check a request head. Returns the deadline of the response, and the maximum size of the body in bytes.

    `binary`: whether the body may also be `application/octet-stream` or lack a media type.

    Raises:
        UnauthorizedError: the API key is missing or invalid.
        TooManyConnectionsError: the connection is above the limit.
        UnavailableError: the service is loading, draining or broken.
        InvalidRequestError: `X-Request-Timeout-Ms` is not a whole number above 0.
        UnsupportedMediaTypeError: the body is not declared as JSON, or is compressed.
        TooLargeError: the declared size exceeds the limit.
        QueueFullError: the queue has no room for a body of this size.
        DeadlineUnreachableError: the deadline that the caller asked for cannot be met.
    """
    service, settings = context.service, context.service.settings
    check_key(headers.get(b"authorization", ""), settings)
    if context.is_surplus:
        raise errors.TooManyConnectionsError
    service.lifecycle.check_open()
    deadline = _deadline(headers.get(b"x-request-timeout-ms"), settings.request_timeout_ms / 1000)
    _check_media_type(headers, settings.cors_origins, binary=binary)
    declared = _declared_bytes(headers.get(b"content-length", ""), settings.max_body_bytes)
    service.lifecycle.engine.admission.check_head(declared or 0, deadline)
    return deadline, settings.max_body_bytes if declared is None else declared


def _deadline(given: str | None, limit: float) -> Deadline:
    """The server's deadline, `limit` seconds from now, or the caller's own if that is sooner."""
    if given is None:
        return Deadline.after(limit)
    given = given.strip().lstrip("0")
    if not (given.isascii() and given.isdecimal()):
        message = "must be a whole number of milliseconds, 1 or more"
        raise errors.InvalidRequestError.at(message, "header", "X-Request-Timeout-Ms")
    seconds = int(given[:_MAX_TIMEOUT_DIGITS]) / 1000
    return Deadline.after(seconds, from_client=True) if seconds < limit else Deadline.after(limit)


def _check_media_type(headers: Mapping[bytes, str], origins: Collection[str], *, binary: bool) -> None:
    """Accept uncompressed JSON, and with `binary` also binary bodies.

    Browsers send a body without a media type to other sites without a preflight. So a missing type is refused, unless
    the origin is allowed.
    """
    for name, plain in ((b"content-encoding", "identity"), (b"transfer-encoding", "chunked")):
        if name in headers and headers[name].strip().lower() != plain:
            raise errors.UnsupportedMediaTypeError(
                f"send the body uncompressed, with {name.decode().title()}: {plain} or without it"
            )
    media_type = headers.get(b"content-type", "").partition(";")[0].strip().lower()
    if media_type == "application/json" or (media_type.startswith("application/") and media_type.endswith("+json")):
        return
    if not binary or media_type not in ("", "application/octet-stream"):
        raise errors.UnsupportedMediaTypeError("send JSON with the header Content-Type: application/json")
    origin = headers.get(b"origin")
    if not (origin is None or origin in origins or "*" in origins):
        raise errors.UnsupportedMediaTypeError(
            "send JSON with the header Content-Type: application/json, or list this origin in BERT_CORS_ORIGINS"
        )


def _declared_bytes(given: str, limit: int) -> int | None:
    """The `Content-Length`; None if there is none. Raises TooLargeError if it exceeds the limit."""
    declared = int(given.lstrip("0") or "0") if given.isdecimal() else None
    if declared is not None and declared > limit:
        raise errors.TooLargeError(f"the body has {declared} bytes, the limit is {limit}; send fewer or shorter inputs")
    return declared
