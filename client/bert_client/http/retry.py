"""When to try again: a pure decision. Every request may be repeated, since an answer changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import httpx

_RETRIED_STATUSES = frozenset({429, 502, 503})
# After a read timeout the service may still be computing: asking again would make it slower yet.
_RETRIED_ERRORS = (httpx.NetworkError, httpx.RemoteProtocolError, httpx.ConnectTimeout)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How patient a client is."""

    attempts: int = 5
    """Of one request, the first included."""
    deadline: float = 120.0
    """Seconds from the first attempt after which nothing is repeated, and nothing that was slow is halved.
    Where a list is asked for in parts, repeating has as long again after each answer."""
    first_pause: float = 0.25
    """Seconds; each pause is twice the one before it."""
    longest_pause: float = 10.0
    """Seconds; `Retry-After` may ask for more."""

    def __post_init__(self) -> None:
        if self.attempts < 1 or min(self.deadline, self.first_pause, self.longest_pause) < 0:
            raise ValueError(f"{self} cannot be followed: one attempt at least, and no negative times")


PATIENT = RetryPolicy()


def pause_before_retry(
    policy: RetryPolicy, reply: httpx.Response | httpx.RequestError, attempt: int, elapsed: float, jitter: float
) -> float | None:
    """Seconds to wait after failed attempt number `attempt` (from 1), or None to give up.

    `jitter` in [0, 1) spreads the callers that failed together: from half of the pause to all of it, and
    after what `Retry-After` asks for.
    """
    if attempt >= policy.attempts or not _may_help(reply):
        return None
    backoff = min(policy.first_pause * 2.0 ** min(attempt - 1, 100), policy.longest_pause)
    asked = retry_after(reply.headers.get("retry-after")) if isinstance(reply, httpx.Response) else 0.0
    pause = asked + backoff * jitter if asked else backoff * (1 + jitter) / 2
    return pause if elapsed + pause < policy.deadline else None


def retry_after(header: str | None, now: datetime | None = None) -> float:
    """Seconds that a `Retry-After` asks for, as a number or as a date; 0 for none or nonsense."""
    if header is None:
        return 0.0
    if header.strip().isdecimal():
        return float(header)
    try:
        then = parsedate_to_datetime(header)
    except ValueError:
        return 0.0
    then = then.replace(tzinfo=then.tzinfo or UTC)  # "-0000" makes a naive one
    return max((then - (now or datetime.now(UTC))).total_seconds(), 0.0)


def _may_help(reply: httpx.Response | httpx.RequestError) -> bool:
    if isinstance(reply, httpx.Response):
        hurried = reply.status_code == 504 and "retry-after" in reply.headers  # nothing was computed
        return hurried or reply.status_code in _RETRIED_STATUSES
    return isinstance(reply, _RETRIED_ERRORS)
