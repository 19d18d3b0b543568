"""Which requests may wait: bytes, room in the queue, deadlines. Pure decisions."""

from __future__ import annotations

import pytest

from app.batching.admission import Admission, AdmissionPolicy, ByteBudget, Deadline
from app.batching.fair_queue import FairQueue
from app.batching.throughput import Throughput, ThroughputPolicy
from app.errors import (
    DeadlineExceededError,
    DeadlineUnreachableError,
    QueueFullError,
    TooLargeError,
    TooManyBytesError,
)

pytestmark = pytest.mark.usefixtures("clock")  # a deadline in N seconds leaves N seconds

FAR = 10**6


def admission_of(*, queue: int = 10_000, speed: float = 1.0, policy: AdmissionPolicy | None = None) -> Admission:
    """At a speed of 1, a deadline in N seconds allows N tokens of all requests together."""
    throughput = Throughput(ThroughputPolicy(max_queue_fraction=1.0, uncalibrated_speed_factor=1.0))
    throughput.tokens_per_second = speed
    admission = Admission(throughput, FairQueue(), policy or AdmissionPolicy())
    admission.max_queue_tokens = queue
    return admission


def check(admission: Admission, tokens: int, inputs: int, queued: int, deadline: Deadline, **more: float) -> None:
    """Check a request while so many tokens are queued."""
    admission._queue.tokens = queued
    admission.check(tokens, inputs, deadline, **more)


def tokens_ahead(admission: Admission, inputs: int) -> int:
    """Tokens that are ahead of a request of so many inputs, found by the deadlines that it can meet."""
    for seconds in range(1, 20_000):
        try:
            check(admission, 1, inputs, 0, Deadline.after(seconds))
        except QueueFullError:
            continue
        return seconds - 1
    raise AssertionError


def test_byte_budget_refuses_bytes_beyond_the_limit_until_others_end() -> None:
    budget = ByteBudget(300_000)
    with budget.reserve(200_000):
        with pytest.raises(TooManyBytesError, match="too many bytes are being uploaded"), budget.reserve(100_001):
            raise AssertionError
        with budget.reserve(100_000):
            assert budget.reserved == 300_000
        assert budget.reserved == 200_000
    with budget.reserve(1_000_000):  # alone, a request may have any size
        assert budget.reserved == 1_000_000
    assert budget.reserved == 0


def test_byte_budget_is_free_again_after_an_error() -> None:
    budget = ByteBudget(100)
    with pytest.raises(ZeroDivisionError), budget.reserve(60):
        raise ZeroDivisionError
    assert budget.reserved == 0


def test_admission_counts_a_few_inputs_of_a_large_request_ahead_of_a_small_one() -> None:
    admission = admission_of()
    large, small = [10] * 100, [10]
    admission.count(large, 1)
    admission.count(small, 1)
    assert tokens_ahead(admission, 1) == 10 + 10
    assert tokens_ahead(admission, 3) == 30 + 10
    assert tokens_ahead(admission, 100) == 1000 + 10
    admission.count(large, -1)
    admission.count(small, -1)
    assert tokens_ahead(admission, 100) == 0


def test_admission_counts_the_largest_input_of_each_round() -> None:
    admission = admission_of()
    admission.count([5, 100, 5], 1)
    assert tokens_ahead(admission, 1) == 100
    assert tokens_ahead(admission, 4) == 110


def test_admission_request_that_is_being_tokenized_takes_its_rounds() -> None:
    admission = admission_of(queue=10_000)
    admission.reserved_tokens = 1000
    admission.count([*[10] * 100], 1)
    check(admission, 30, 3, 0, Deadline.after(60))  # three rounds of the other
    with pytest.raises(QueueFullError, match="deadline"):
        check(admission, 30, 3, 0, Deadline.after(59))
    with pytest.raises(QueueFullError, match="the queue is full"):
        check(admission, 10_000 - 999, 100, 0, Deadline.after(FAR))  # its room is taken
    check(admission, 10_000 - 10, 1, 0, Deadline.after(FAR))  # but for one round


def test_admission_large_request_leaves_room_for_small_ones() -> None:
    admission = admission_of(queue=1000)
    admission.count([*[10] * 100], 1)
    with pytest.raises(QueueFullError):
        check(admission, 1000, 100, 1000, Deadline.after(FAR))
    check(admission, 990, 1, 1000, Deadline.after(FAR))
    with pytest.raises(QueueFullError):
        check(admission, 991, 1, 1000, Deadline.after(FAR))


def test_admission_request_above_the_whole_queue_is_too_large() -> None:
    admission = admission_of(queue=50)
    check(admission, 50, 1, 0, Deadline.after(FAR))
    with pytest.raises(TooLargeError, match="51 tokens, the queue holds 50; send fewer inputs"):
        check(admission, 51, 1, 0, Deadline.after(FAR))


def test_admission_full_queue_says_when_to_return() -> None:
    admission = admission_of(queue=50)
    admission.count([40], 1)
    with pytest.raises(QueueFullError, match="the queue is full; try again in 40 s") as raised:
        check(admission, 11, 1, 40, Deadline.after(FAR))
    assert raised.value.retry_after == 40


@pytest.mark.parametrize("seconds", [0, -1])
def test_admission_deadline_that_has_passed_is_exceeded(seconds: float) -> None:
    with pytest.raises(DeadlineExceededError) as raised:
        check(admission_of(), 1, 1, 0, Deadline.after(seconds))
    assert not isinstance(raised.value, DeadlineUnreachableError)


def test_admission_deadline_that_cannot_be_met_is_refused_as_its_owner_is_told() -> None:
    """A client's own deadline is unreachable; the server's is missed because the queue is too long."""
    admission = admission_of()
    admission.count([10], 1)
    with pytest.raises(QueueFullError, match=r"than this request's deadline allows; try again in 10 s") as late:
        check(admission, 10, 1, 0, Deadline.after(19))
    assert late.value.retry_after == 10
    with pytest.raises(DeadlineUnreachableError, match=r"allow more time, or try again in 10 s") as unreachable:
        check(admission, 10, 1, 0, Deadline.after(19, from_client=True))
    assert unreachable.value.retry_after == 10
    check(admission, 10, 1, 0, Deadline.after(20, from_client=True))


def test_admission_request_with_nothing_ahead_may_try_a_hopeless_deadline() -> None:
    check(admission_of(speed=0.001), 1000, 1, 0, Deadline.after(1, from_client=True))


def test_admission_unknown_speed_refuses_nothing_as_late() -> None:
    admission = admission_of(speed=0.0)
    admission.count([5000], 1)
    check(admission, 1000, 1, 0, Deadline.after(1))


def test_admission_keeps_headroom_in_tokens_where_others_wait() -> None:
    admission = admission_of(queue=100, speed=1000.0)
    check(admission, 100, 10, 0, Deadline.after(FAR), headroom=0.1)  # nothing waits
    admission.count([10], 1)
    check(admission, 100, 10, 0, Deadline.after(FAR), headroom=0.1)  # one is computed
    admission.count([10, 10, 10], 1)
    check(admission, 70, 7, 30, Deadline.after(FAR))
    check(admission, 60, 6, 30, Deadline.after(FAR), headroom=0.1)
    with pytest.raises(QueueFullError, match="the queue is full"):
        check(admission, 61, 6, 30, Deadline.after(FAR), headroom=0.1)


def test_admission_keeps_headroom_in_time_where_others_are_ahead() -> None:
    admission = admission_of()
    check(admission, 200, 5, 0, Deadline.after(100), headroom=0.1)  # nothing is ahead
    admission.count([*[10] * 4], 1)
    check(admission, 60, 5, 0, Deadline.after(100))
    check(admission, 50, 5, 0, Deadline.after(100), headroom=0.1)
    with pytest.raises(QueueFullError, match="deadline"):
        check(admission, 51, 5, 0, Deadline.after(100), headroom=0.1)


@pytest.mark.parametrize(
    ("body_bytes", "rounds", "tokens"),
    [
        (0, 1, 0),
        (600, 15, 100),  # 9 inputs; requests of 8 to 15 inputs count as one size
        (3000, 63, 500),
        (1_000_000, 63, 512),  # may be one long text that will be truncated
    ],
)
def test_admission_check_head_estimates_tokens_and_inputs_by_the_size_of_the_body(
    body_bytes: int, rounds: int, tokens: int
) -> None:
    admission = admission_of(policy=AdmissionPolicy(headroom=0.0))
    admission.count([*[10] * 1000], 1)
    seconds = 10 * rounds + tokens
    admission.check_head(body_bytes, Deadline.after(seconds))
    with pytest.raises(QueueFullError):
        admission.check_head(body_bytes, Deadline.after(seconds - 1))


def test_admission_check_head_does_not_take_a_long_text_for_many_when_bulk_waits() -> None:
    """Its turn comes after one input of the bulk request; what its bytes may be at worst is not its fault."""
    admission = admission_of(speed=1000.0)
    admission.count([*[52] * 300], 1)
    admission.check_head(40_000, Deadline.after(5))
    with pytest.raises(QueueFullError):
        check(admission, 512, 300, 0, Deadline.after(5))


def test_admission_check_head_keeps_headroom() -> None:
    admission = admission_of(queue=1000, policy=AdmissionPolicy(headroom=0.5))
    admission.count([500], 1)
    check(admission, 100, 1, 500, Deadline.after(FAR))
    with pytest.raises(QueueFullError, match="the queue is full"):
        admission.check_head(600, Deadline.after(FAR))


def test_admission_check_head_never_finds_a_body_too_large_for_the_queue() -> None:
    """The size is an estimate: the tokens are counted once they are known."""
    admission_of(queue=100).check_head(1_000_000, Deadline.after(FAR))
