"""The rules for repeating requests. Every request may be repeated, because it changes nothing in the service."""

from __future__ import annotations

from dataclasses import dataclass

import httpx

Reply = httpx.Response | httpx.RequestError
BUSY_STATUSES = frozenset({408, 429, 503})
"""Statuses of a service that is busy, loading or draining, and of a gateway that limits the rate."""
_RETRIED_ERRORS = (httpx.NetworkError, httpx.RemoteProtocolError, httpx.TimeoutException)
BROKEN = (httpx.ReadError, httpx.WriteError, httpx.ReadTimeout, httpx.WriteTimeout, httpx.RemoteProtocolError)
"""Errors of a connection that was open: a firewall or gateway may end it because of the contents."""
_CERTIFICATE_REFUSED = "CERTIFICATE_VERIFY_FAILED"
"""Part of OpenSSL's messages after which a retry cannot succeed."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Number of attempts, and time for which a request is repeated."""

    attempts: int = 5
    """Maximum attempts of one request, the first included."""
    deadline: float = 120.0
    """Seconds after the first attempt until which a request is repeated, or halved if it was too slow. The parts of a
    divided request are repeated until this time after the last response."""
    first_pause: float = 0.25
    """Seconds of the first pause. Each pause is twice the one before it."""
    longest_pause: float = 10.0
    """Maximum seconds of a pause. `Retry-After` may ask for more."""

    def __post_init__(self) -> None:
        if self.attempts < 1 or min(self.deadline, self.first_pause, self.longest_pause) < 0:
            raise ValueError("invalid RetryPolicy: attempts must be at least 1, seconds not negative")


def pause_before_retry(
    policy: RetryPolicy, reply: Reply, attempt: int, elapsed: float, jitter: float, *, status: int | None = None
) -> float | None:
    """Seconds to wait after a failed attempt, or None to give up.

    Args:
        attempt: Number of the attempt, from 1.
        elapsed: Seconds since the first attempt.
        status: Status in the service's problem; a gateway may have changed that of the response. None for a response
            that is retried with any status, as a failed connection is.
        jitter: A number in [0, 1), which spreads callers that failed together. The pause is between half and all of its
            length, and is added to the time that `Retry-After` asks for.
    """
    if attempt >= policy.attempts or not _is_retried(reply, status):
        return None
    backoff = min(policy.first_pause * 2.0 ** min(attempt - 1, 100), policy.longest_pause)
    asked = retry_after(reply.headers.get("retry-after")) if isinstance(reply, httpx.Response) else 0.0
    pause = asked + backoff * jitter if asked else backoff * (1 + jitter) / 2
    return pause if elapsed + pause < policy.deadline else None


def retry_after(header: str | None) -> float:
    """Seconds in a `Retry-After` header; 0 if it is absent or no number."""
    return float(header) if header and header.strip().isdecimal() else 0.0


def _is_retried(reply: Reply, status: int | None) -> bool:
    if isinstance(reply, httpx.Response):
        return status is None or status in BUSY_STATUSES or (status == 504 and "retry-after" in reply.headers)
    if isinstance(reply, httpx.ProxyError):  # such as "503 Service Unavailable", the answer to CONNECT
        return str(reply).startswith("5")
    return isinstance(reply, _RETRIED_ERRORS) and _CERTIFICATE_REFUSED not in str(reply)
