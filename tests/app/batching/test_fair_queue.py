"""Which inputs are served next: pure decisions."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from app.batching.fair_queue import FairQueue
from app.inference.contract import Part, Query
from model import Encoding

Requests = st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=6), min_size=1, max_size=8)


def request_of(tokens: Sequence[int], encoder: str = "a") -> Query:
    encodings = [Encoding(array("i", [5] * length), length, [], truncated=False) for length in tokens]
    return Query(encodings, 2, encoder=encoder)


def waiting_of(requests: Sequence[Query]) -> FairQueue:
    waiting = FairQueue()
    for request in requests:
        waiting.push(request)
    return waiting


def items_of(batch: Sequence[Part], requests: Sequence[Query]) -> list[tuple[int, int]]:
    """Its inputs: the numbers of the request and of the input."""
    return [(requests.index(part.query), i) for part in batch for i in range(part.start, part.stop)]


def batches_of(sizes: Sequence[Sequence[int]], max_tokens: int) -> list[list[tuple[int, int]]]:
    requests = list(map(request_of, sizes))
    waiting = waiting_of(requests)
    batches = []
    while waiting.tokens:
        batches.append(items_of(waiting.take(max_tokens), requests))
    return batches


@given(Requests, st.integers(1, 100))
def test_fair_queue_takes_every_input_exactly_once(requests: list[list[int]], max_tokens: int) -> None:
    taken = [item for batch in batches_of(requests, max_tokens) for item in batch]
    assert sorted(taken) == [(r, i) for r, tokens in enumerate(requests) for i in range(len(tokens))]


@given(Requests, st.integers(1, 100))
def test_fair_queue_exceeds_its_tokens_only_with_a_single_input(requests: list[list[int]], max_tokens: int) -> None:
    for batch in batches_of(requests, max_tokens):
        assert batch
        assert len(batch) == 1 or sum(requests[r][i] for r, i in batch) <= max_tokens


@given(Requests, st.integers(1, 100))
def test_fair_queue_keeps_the_order_of_one_request(requests: list[list[int]], max_tokens: int) -> None:
    taken = [item for batch in batches_of(requests, max_tokens) for item in batch]
    for r in range(len(requests)):
        own = [i for request, i in taken if request == r]
        assert own == sorted(own)


@given(Requests)
def test_fair_queue_sizes_take_turns_by_the_number_of_their_requests(requests: list[list[int]]) -> None:
    """After a round, each size has given as many inputs as it has requests."""
    sizes = [len(tokens).bit_length() for tokens in requests]
    if len(set(sizes)) == 1:
        return
    (taken,) = batches_of(requests, 10_000)
    round_of = [sizes[r] for r, _ in taken[: len(requests)]]
    assert sorted(round_of) == sorted(sizes)


def test_fair_queue_single_request_behind_512_inputs_is_in_the_next_batch() -> None:
    large, single = request_of([10] * 512), request_of([10])
    waiting = waiting_of([large])
    waiting.take(100)
    waiting.push(single)
    assert {part.query for part in waiting.take(100)} == {large, single}
    assert large.taken == 10 + 9


def test_fair_queue_requests_of_one_size_end_one_after_another() -> None:
    """If each gave an input in turn, all would end with the last batch, and then nothing would be there to compute."""
    requests = [request_of([10] * 8) for _ in range(4)]
    waiting = waiting_of(requests)
    ended = []
    while waiting.tokens:
        waiting.take(100)
        ended.append(sum(request.taken == 8 for request in requests))
    assert ended == [1, 2, 3, 4]


def test_fair_queue_no_input_overtakes_a_large_one_at_the_front() -> None:
    assert batches_of([[90], [90], [5]], 100) == [[(0, 0)], [(1, 0), (2, 0)]]


def test_fair_queue_encoders_take_turns_and_do_not_mix() -> None:
    queue = FairQueue()
    requests = [request_of([10, 10], "a"), request_of([10], "b"), request_of([10], "a")]
    for request in requests:
        queue.push(request)
    assert queue.tokens == 40
    taken = [items_of(queue.take(20), requests) for _ in range(4)]
    assert taken == [[(0, 0), (2, 0)], [(1, 0)], [(0, 1)], []]
    assert queue.tokens == 0


def test_fair_queue_withdraw_removes_what_waits() -> None:
    queue = FairQueue()
    request = request_of([10, 20])
    queue.push(request)
    queue.take(10)
    queue.withdraw(request)
    queue.withdraw(request)
    assert queue.tokens == 0
    assert not request.encodings, "a batch that hangs keeps no texts of requests that have ended"
    assert queue.take(100) == []


def test_fair_queue_passes_over_withdrawn_requests() -> None:
    queue = FairQueue()
    first, second = request_of([1]), request_of([1])
    queue.push(first)
    queue.push(second)
    queue.withdraw(first)
    assert queue.take(10) == [Part(second, 0, 1)]
