from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from model import PackedBatch
from model.packing import SequenceBounds, round_up_to_bucket


def test_sequences_lie_end_to_end() -> None:
    batch = PackedBatch.pack([[5, 6, 7], [8], [9, 10]])
    assert batch.input_ids.tolist() == [5, 6, 7, 8, 9, 10]
    assert batch.position_ids.tolist() == [0, 1, 2, 0, 0, 1]
    assert batch.token_type_ids.tolist() == [0] * 6
    assert batch.cu_seqlens.tolist() == [0, 3, 4, 6]
    assert batch.cu_seqlens.dtype == torch.int32  # what the variable-length kernel takes
    assert (batch.lengths, batch.max_seqlen, batch.total_tokens) == ((3, 1, 2), 3, 6)
    assert batch.outputs is None


def test_segments_are_kept() -> None:
    assert PackedBatch.pack([[5, 6], [7]], [[0, 1], [1]]).token_type_ids.tolist() == [0, 1, 1]


def test_reads_become_rows_of_the_ribbon() -> None:
    batch = PackedBatch.pack([[5, 6, 7], [8, 9], [10]], outputs=[[0, 2], [], [0]])
    assert batch.outputs is not None
    assert batch.outputs.index.tolist() == [0, 2, 5]
    assert batch.outputs.sequences.lengths == (2, 0, 1)
    assert batch.outputs.sequences.cu_seqlens.tolist() == [0, 2, 2, 3]


def test_nothing_at_all_may_be_read() -> None:
    batch = PackedBatch.pack([[5], [6]], outputs=[[], []])
    assert batch.outputs is not None
    assert batch.outputs.index.shape == (0,)
    assert batch.outputs.index.dtype == torch.int64


@pytest.mark.parametrize("sequences", [[], [[]], [[1], []]])
def test_empty_sequences_are_refused(sequences: list[list[int]]) -> None:
    with pytest.raises(ValueError, match="none of length 0"):
        PackedBatch.pack(sequences)


def test_segments_of_another_length_are_refused() -> None:
    with pytest.raises(ValueError, match="token_type_ids has 2 tokens, input_ids 3"):
        PackedBatch.pack([[5, 6, 7]], [[0, 0]])


@pytest.mark.parametrize("reads", [[[3], [0]], [[-1], [0]], [[0], [0, 1]]])
def test_reads_outside_their_own_sequence_are_refused(reads: list[list[int]]) -> None:
    with pytest.raises(ValueError, match="exceed a sequence of"):
        PackedBatch.pack([[5, 6, 7], [8]], outputs=reads)


def test_reads_for_another_number_of_sequences_are_refused() -> None:
    with pytest.raises(ValueError, match="shorter"):
        PackedBatch.pack([[5], [6]], outputs=[[0]])


def test_moving_a_batch_moves_every_tensor() -> None:
    batch = PackedBatch.pack([[5, 6], [7]], outputs=[[0], [0]]).to("meta")
    assert batch.outputs is not None
    tensors = [batch.input_ids, batch.position_ids, batch.token_type_ids, batch.cu_seqlens]
    tensors += [batch.outputs.index, batch.outputs.sequences.cu_seqlens]
    assert {tensor.device.type for tensor in tensors} == {"meta"}
    assert batch.lengths == (2, 1)  # stay on the host


@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=8), min_size=1, max_size=8))
@settings(max_examples=50, deadline=None, derandomize=True)
def test_cumulative_lengths_cut_the_ribbon_into_its_sequences(sequences: list[list[int]]) -> None:
    batch = PackedBatch.pack(sequences)
    ends = batch.cu_seqlens.tolist()
    pieces = [batch.input_ids[a:b].tolist() for a, b in pairwise(ends)]
    assert pieces == sequences


def test_segments_know_their_longest() -> None:
    assert SequenceBounds.of([2, 9, 4]).max_seqlen == 9


@pytest.mark.parametrize("lengths", [[1], [64], [30, 41], [7] * 40, [512] * 8, [3, 509, 500]])
@pytest.mark.parametrize("read", [True, False])
def test_rounding_up_adds_padding_in_sequences_of_its_own(lengths: list[int], read: bool) -> None:
    batch = PackedBatch.pack([[5] * n for n in lengths], outputs=[[0]] * len(lengths) if read else None)
    rounded = batch.pad_with_dummy_sequence()
    assert rounded.total_tokens == round_up_to_bucket(sum(lengths)) == sum(rounded.lengths)
    assert rounded.lengths[: len(lengths)] == batch.lengths
    assert min(rounded.lengths) > 0
    assert rounded.max_seqlen == batch.max_seqlen
    assert rounded.input_ids.tolist() == [5] * sum(lengths) + [0] * (rounded.total_tokens - sum(lengths))
    assert (rounded.position_ids == PackedBatch.pack([[5] * n for n in rounded.lengths]).position_ids).all()
    if batch.outputs is None or rounded.outputs is None:
        assert batch.outputs is rounded.outputs is None
        return
    assert rounded.outputs.index[: len(lengths)].tolist() == batch.outputs.index.tolist()
    assert sum(rounded.outputs.sequences.lengths) == len(rounded.outputs.index)
    if rounded is not batch:
        assert len(rounded.outputs.index) == round_up_to_bucket(len(lengths))
        assert (rounded.input_ids[rounded.outputs.index[len(lengths) :]] == 0).all()


@pytest.mark.parametrize("lengths", [[1], [3], [64], [30, 41], [7] * 40, [512] * 8])
@pytest.mark.parametrize("read", [True, False])
def test_filling_up_adds_rows_and_reads_of_no_sequence(lengths: list[int], read: bool) -> None:
    batch = PackedBatch.pack([[5] * n for n in lengths], outputs=[[0]] * len(lengths) if read else None)
    filled, total = batch.pad_to_bucket(), sum(lengths)
    assert filled.sequences == batch.sequences
    assert filled.total_tokens == round_up_to_bucket(total)
    assert len(filled.position_ids) == len(filled.token_type_ids) == filled.total_tokens
    assert filled.input_ids.tolist() == [5] * total + [0] * (filled.total_tokens - total)
    if batch.outputs is None or filled.outputs is None:
        assert batch.outputs is filled.outputs is None
        return
    assert filled.outputs.sequences == batch.outputs.sequences
    assert filled.outputs.index[: len(lengths)].tolist() == batch.outputs.index.tolist()
    assert len(filled.outputs.index) == round_up_to_bucket(len(lengths))
    assert filled.outputs.index.max() < filled.total_tokens


def test_rounded_numbers_are_few() -> None:
    assert len({round_up_to_bucket(n) for n in range(1, 4097)}) < 80
