"""The decision to try again."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from bert_client import RetryPolicy
from bert_client.http.retry import pause_before_retry, retry_after

POLICY = RetryPolicy(attempts=4, deadline=10, first_pause=1, longest_pause=3)


def pause(reply: Any, attempt: int = 1, elapsed: float = 0, jitter: float = 0.5) -> float | None:
    answer = httpx.Response(reply[0], headers=reply[1]) if isinstance(reply, tuple) else reply
    return pause_before_retry(POLICY, answer, attempt, elapsed, jitter, status=getattr(answer, "status_code", None))


@pytest.mark.parametrize(
    "reply",
    [
        (408, {}),
        (429, {}),
        (503, {}),
        (504, {"retry-after": "0"}),
        httpx.ConnectError(""),
        httpx.ReadError(""),
        httpx.RemoteProtocolError(""),
        httpx.ReadTimeout(""),
        httpx.WriteTimeout(""),
        httpx.PoolTimeout(""),
        httpx.ProxyError("503 Service Unavailable"),
    ],
)
def test_pause_before_retry_temporary_failures_are_retried(reply: Any) -> None:
    assert pause(reply) == 0.75


@pytest.mark.parametrize(
    "reply",
    [
        *((status, {}) for status in (400, 401, 413, 422, 500, 526)),
        (504, {"content-type": "application/problem+json"}),
        httpx.ProxyError("407 Proxy Authentication Required"),
        httpx.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed"),
    ],
)
def test_pause_before_retry_lasting_failures_are_not_retried(reply: Any) -> None:
    assert pause(reply) is None


@pytest.mark.parametrize("status", [200, 302, 400, 403, 413, 500, 502, 504, 526])
def test_pause_before_retry_answer_that_is_not_the_services_is_retried(status: int) -> None:
    assert pause_before_retry(POLICY, httpx.Response(status), 1, 0, 0.5) == 0.75


def test_pause_before_retry_doubles_up_to_a_limit_with_jitter() -> None:
    assert [pause((503, {}), attempt, jitter=0) for attempt in (1, 2, 3)] == [0.5, 1, 1.5]
    assert [pause((503, {}), attempt, jitter=1) for attempt in (1, 2, 3)] == [1, 2, 3]


def test_pause_before_retry_attempts_are_bounded() -> None:
    assert pause((503, {}), attempt=4) is None


def test_pause_before_retry_is_finite_after_thousands_of_attempts() -> None:
    patient = RetryPolicy(attempts=9000, deadline=1e9)
    assert pause_before_retry(patient, httpx.Response(503), 5000, elapsed=0, jitter=0) == 5


def test_pause_before_retry_ends_before_the_deadline() -> None:
    assert pause((503, {}), elapsed=9.5) is None
    assert pause((429, {"Retry-After": "11"})) is None


def test_pause_before_retry_is_at_least_retry_after() -> None:
    assert pause((429, {"Retry-After": "7"}), jitter=0) == 7
    assert pause((429, {"Retry-After": "7"}), jitter=0.5) == 7.5


@pytest.mark.parametrize(("header", "seconds"), [(None, 0), ("3", 3), ("Wed, 21 Oct 2026 07:28:30 GMT", 0), ("-5", 0)])
def test_retry_after_is_a_number_of_seconds(header: str | None, seconds: float) -> None:
    assert retry_after(header) == seconds


@pytest.mark.parametrize("fields", [{"attempts": 0}, {"deadline": -1}, {"first_pause": -1}])
def test_retry_policy_that_is_impossible_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="invalid RetryPolicy: attempts must be at least 1"):
        RetryPolicy(**fields)
