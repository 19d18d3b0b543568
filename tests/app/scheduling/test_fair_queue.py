"""Which input is served next: pure decisions."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from app.scheduling.deadline import Deadline
from app.scheduling.fair_queue import FairQueue, LoadBySize, QueuedRequest, Waiting, take_batch

FAR = Deadline(1e12)  # no test meets it

Requests = st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=6), min_size=1, max_size=8)


def request_of(tokens: Sequence[int], encoder: str = "a", number: int = 0) -> QueuedRequest:
    """A filled request; an item is (number, index)."""
    request = QueuedRequest(len(tokens), sum(tokens), max(tokens), FAR)
    request.fill(encoder, [(number, i) for i in range(len(tokens))], tokens)
    return request


def waiting_of(requests: Sequence[Sequence[int]]) -> Waiting:
    return OrderedDict.fromkeys(request_of(tokens, number=number) for number, tokens in enumerate(requests))


def batches_of(requests: Sequence[Sequence[int]], max_tokens: int) -> list[list[tuple[int, int]]]:
    waiting = waiting_of(requests)
    batches = []
    while waiting:
        batches.append([pending.item for pending in take_batch(waiting, max_tokens)])
    return batches


@given(Requests, st.integers(1, 100))
def test_take_batch_takes_every_item_exactly_once(requests: list[list[int]], max_tokens: int) -> None:
    taken = [item for batch in batches_of(requests, max_tokens) for item in batch]
    assert sorted(taken) == [(r, i) for r, tokens in enumerate(requests) for i in range(len(tokens))]


@given(Requests, st.integers(1, 100))
def test_take_batch_exceeds_its_tokens_only_with_a_single_item(requests: list[list[int]], max_tokens: int) -> None:
    for batch in batches_of(requests, max_tokens):
        assert batch
        assert len(batch) == 1 or sum(requests[r][i] for r, i in batch) <= max_tokens


@given(Requests, st.integers(1, 100))
def test_take_batch_keeps_the_order_of_one_request(requests: list[list[int]], max_tokens: int) -> None:
    taken = [item for batch in batches_of(requests, max_tokens) for item in batch]
    for r in range(len(requests)):
        own = [i for request, i in taken if request == r]
        assert own == sorted(own)


@given(Requests, st.integers(1, 100))
def test_take_batch_takes_no_second_item_of_a_request_before_one_of_each(
    requests: list[list[int]], max_tokens: int
) -> None:
    taken = [r for batch in batches_of(requests, max_tokens) for r, _ in batch]
    assert taken[: len(requests)] == list(range(len(requests)))


def test_take_batch_serves_a_single_request_behind_512_inputs() -> None:
    waiting = waiting_of([[10] * 512])
    take_batch(waiting, 100)
    waiting |= waiting_of([[10]])
    batch = take_batch(waiting, 100)
    assert [request.tokens for request in waiting] == [5120]  # only the large one is left
    assert len({id(pending.request) for pending in batch}) == 2


def test_take_batch_lets_no_item_overtake_a_large_one_at_the_front() -> None:
    waiting = waiting_of([[90], [90], [5]])
    assert [p.tokens for p in take_batch(waiting, 100)] == [90]
    assert [p.tokens for p in take_batch(waiting, 100)] == [90, 5]


def test_fair_queue_encoders_take_turns_and_do_not_mix() -> None:
    queue = FairQueue()
    queue.push(request_of([10, 10], "a", 1))
    queue.push(request_of([10], "b", 2))
    queue.push(request_of([10], "a", 3))
    assert queue.tokens == 40
    taken = [[pending.item for pending in queue.take(20)] for _ in range(4)]
    assert taken == [[(1, 0), (3, 0)], [(2, 0)], [(1, 1)], []]
    assert queue.tokens == 0


def test_fair_queue_withdraw_removes_what_waits() -> None:
    queue = FairQueue()
    request = request_of([10, 20])
    queue.push(request)
    queue.take(10)
    queue.withdraw(request)
    queue.withdraw(request)
    assert queue.tokens == 0
    assert not queue._by_encoder["a"], "a batch that hangs keeps no requests that have ended"
    assert queue.take(100) == []


def test_fair_queue_passes_over_withdrawn_requests() -> None:
    queue = FairQueue()
    first, second = request_of([1]), request_of([1], number=1)
    queue.push(first)
    queue.push(second)
    queue.withdraw(first)
    assert [pending.item for pending in queue.take(10)] == [(1, 0)]


def test_load_ahead_of_a_small_job_is_a_few_items_of_a_large_one() -> None:
    load = LoadBySize()
    large, small = request_of([10] * 100), request_of([10])
    load.add(large)
    load.add(small)
    assert load.tokens_ahead(1) == 10 + 10
    assert load.tokens_ahead(3) == 30 + 10
    assert load.tokens_ahead(100) == 1000 + 10
    load.remove(large)
    load.remove(small)
    assert load.tokens_ahead(100) == 0
