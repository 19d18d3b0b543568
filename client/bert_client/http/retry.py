"""When to repeat a request. Every request may be repeated, because it changes nothing in the service."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import httpx

_RETRIED_STATUSES = frozenset({408, 429, 502, 503, 520, 521, 522, 523, 524, 530})
"""The service is busy or away; from 520 on, Cloudflare says so."""
_RETRIED_ERRORS = (httpx.NetworkError, httpx.RemoteProtocolError, httpx.TimeoutException)
SLOW_SECONDS = 5.0
"""A proxy's 504 after this time may mean that the answer is slow. An earlier one means that it got no connection."""
SLOW_ATTEMPTS = 3
"""After this many slow 504, the input counts as too slow and is not sent again."""
CERTIFICATE_REFUSED = "CERTIFICATE_VERIFY_FAILED"
"""In OpenSSL's messages. No other attempt would end otherwise."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and for how long a request is repeated."""

    attempts: int = 5
    """Of one request, the first included."""
    deadline: float = 120.0
    """Seconds after the first attempt until which a request is repeated, or halved if it was too slow. The parts of a
    divided request are repeated until so many seconds after the last answer."""
    first_pause: float = 0.25
    """Seconds. Each pause is twice the one before it."""
    longest_pause: float = 10.0
    """Seconds. `Retry-After` may ask for more."""

    def __post_init__(self) -> None:
        if self.attempts < 1 or min(self.deadline, self.first_pause, self.longest_pause) < 0:
            raise ValueError("invalid RetryPolicy: attempts must be at least 1, seconds not negative")


def pause_before_retry(
    policy: RetryPolicy,
    reply: httpx.Response | httpx.RequestError,
    attempt: int,
    elapsed: float,
    jitter: float,
    *,
    is_too_slow: bool = False,
) -> float | None:
    """Seconds to wait after a failed attempt, or None to give up.

    Args:
        is_too_slow: Whether a 504 of a proxy means that the request is too slow, not that the service is away.
        attempt: Number of the attempt, from 1.
        elapsed: Seconds since the first attempt.
        jitter: In [0, 1). It spreads callers that failed together: from half of the pause to all of it, and after the
            time that `Retry-After` asks for.
    """
    if attempt >= policy.attempts or not _is_retried(reply, is_too_slow=is_too_slow):
        return None
    backoff = min(policy.first_pause * 2.0 ** min(attempt - 1, 100), policy.longest_pause)
    asked = retry_after(reply.headers.get("retry-after")) if isinstance(reply, httpx.Response) else 0.0
    pause = asked + backoff * jitter if asked else backoff * (1 + jitter) / 2
    return pause if elapsed + pause < policy.deadline else None


def retry_after(header: str | None, now: datetime | None = None) -> float:
    """Seconds in a `Retry-After` header, which is a number or a date; 0 if it is absent or neither."""
    if header is None:
        return 0.0
    if header.strip().isdecimal():
        return float(header)
    try:
        then = parsedate_to_datetime(header)
    except (ValueError, OverflowError):
        return 0.0
    then = then.replace(tzinfo=then.tzinfo or UTC)  # "-0000" makes a naive one
    return max((then - (now or datetime.now(UTC))).total_seconds(), 0.0)


def _is_retried(reply: httpx.Response | httpx.RequestError, *, is_too_slow: bool) -> bool:
    if isinstance(reply, httpx.Response):
        if reply.status_code != 504:
            return reply.status_code in _RETRIED_STATUSES
        # A proxy gives 504 for a service that is away, too. The service itself gives it for one that is too slow.
        is_of_proxy = not reply.headers.get("content-type", "").startswith("application/problem+json")
        return "retry-after" in reply.headers or (is_of_proxy and not is_too_slow)
    if isinstance(reply, httpx.ProxyError):  # such as "503 Service Unavailable", the answer to CONNECT
        return str(reply).partition(" ")[0] in map(str, _RETRIED_STATUSES)
    return isinstance(reply, _RETRIED_ERRORS) and CERTIFICATE_REFUSED not in str(reply)
