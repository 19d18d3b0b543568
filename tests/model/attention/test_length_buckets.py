from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from model.attention.length_buckets import PADDING_TOLERANCE, SMALL_BUCKET_TOKENS, length_buckets

lengths_of_a_batch = st.lists(st.integers(1, 512), min_size=1, max_size=80)
many_batches = settings(max_examples=100)


@given(lengths_of_a_batch)
@many_batches
def test_length_buckets_cover_every_sequence_once_in_order(lengths: list[int]) -> None:
    assert [i for bucket in length_buckets(tuple(lengths)) for i in bucket] == list(range(len(lengths)))


@given(lengths_of_a_batch)
@many_batches
def test_length_buckets_waste_little_unless_they_are_small(lengths: list[int]) -> None:
    for bucket in length_buckets(tuple(lengths)):
        own = [lengths[i] for i in bucket]
        waste = max(own) * len(own) - sum(own)
        small = sum(own[:-1]) < SMALL_BUCKET_TOKENS and waste <= SMALL_BUCKET_TOKENS
        assert waste <= PADDING_TOLERANCE * max(own) * len(own) or small


@given(lengths_of_a_batch)
@many_batches
def test_length_buckets_waste_little_of_a_sorted_batch(lengths: list[int]) -> None:
    lengths.sort()
    cells = sum(max(lengths[i] for i in bucket) * len(bucket) for bucket in length_buckets(tuple(lengths)))
    assert cells - sum(lengths) <= 0.35 * sum(lengths) + 2 * SMALL_BUCKET_TOKENS


@given(lengths_of_a_batch, st.integers(0, 512))
@many_batches
def test_length_buckets_above_a_length_hold_equal_lengths(lengths: list[int], equal_above: int) -> None:
    for bucket in length_buckets(tuple(lengths), equal_above=equal_above):
        own = {lengths[i] for i in bucket}
        assert max(own) <= equal_above or len(own) == 1


def test_length_buckets_a_long_text_does_not_pad_short_ones() -> None:
    assert length_buckets((*[20] * 20, 500)) == [range(20), range(20, 21)]


def test_length_buckets_equal_lengths_are_one_bucket() -> None:
    assert length_buckets((128,) * 50) == [range(50)]
