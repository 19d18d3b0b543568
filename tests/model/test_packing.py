from __future__ import annotations

import pytest
import torch

from model import PackedBatch
from model.packing import OutputPositions, SequenceBounds, round_up_to_bucket


def outputs_of(batch: PackedBatch) -> OutputPositions:
    assert batch.outputs is not None
    return batch.outputs


# --- bounds -------------------------------------------------------------------------------------------------


def test_sequence_bounds_of_lengths() -> None:
    bounds = SequenceBounds.of([2, 9, 4])
    assert bounds.lengths == (2, 9, 4)
    assert bounds.cu_seqlens.tolist() == [0, 2, 11, 15]
    assert bounds.cu_seqlens.dtype == torch.int32  # the variable-length kernel takes no other
    assert bounds.max_seqlen == 9


def test_sequence_bounds_with_capacity_repeat_the_last_value() -> None:
    bounds = SequenceBounds.of([2, 9], capacity=5, max_seqlen=16)
    assert bounds.lengths == (2, 9)
    assert bounds.cu_seqlens.tolist() == [0, 2, 11, 11, 11, 11]
    assert bounds.max_seqlen == 16


def test_sequence_bounds_of_nothing() -> None:
    bounds = SequenceBounds.of([], capacity=2)
    assert (bounds.lengths, bounds.cu_seqlens.tolist(), bounds.max_seqlen) == ((), [0, 0, 0], 0)


def test_sequence_bounds_beyond_capacity_or_max_seqlen_are_an_error() -> None:
    with pytest.raises(ValueError, match="2 sequences exceed the capacity of 1"):
        SequenceBounds.of([2, 9], capacity=1)
    with pytest.raises(ValueError, match="a sequence of 9 rows exceeds max_seqlen 8"):
        SequenceBounds.of([2, 9], max_seqlen=8)


# --- packing ------------------------------------------------------------------------------------------------


def test_pack_lays_sequences_end_to_end() -> None:
    batch = PackedBatch.pack([[5, 6, 7], [8], [9, 10]])
    assert batch.input_ids.tolist() == [5, 6, 7, 8, 9, 10]
    assert batch.position_ids.tolist() == [0, 1, 2, 0, 0, 1]
    assert batch.token_type_ids.tolist() == [0] * 6
    assert batch.cu_seqlens.tolist() == [0, 3, 4, 6]
    assert (batch.lengths, batch.sequences.max_seqlen, batch.total_tokens) == ((3, 1, 2), 3, 6)
    assert batch.outputs is None


def test_pack_keeps_token_types() -> None:
    assert PackedBatch.pack([[5, 6], [7]], [[0, 1], [1]]).token_type_ids.tolist() == [0, 1, 1]


def test_pack_output_positions_become_rows() -> None:
    outputs = outputs_of(PackedBatch.pack([[5, 6, 7], [8, 9], [10]], outputs=[[0, 2], [], [0]]))
    assert outputs.index.tolist() == [0, 2, 5]
    assert outputs.sequences.lengths == (2, 0, 1)
    assert outputs.sequences.cu_seqlens.tolist() == [0, 2, 2, 3]


def test_pack_without_any_output() -> None:
    index = outputs_of(PackedBatch.pack([[5], [6]], outputs=[[], []])).index
    assert index.shape == (0,)
    assert index.dtype == torch.int64


@pytest.mark.parametrize("sequences", [[], [[]], [[1], []]])
def test_pack_empty_sequence_is_an_error(sequences: list[list[int]]) -> None:
    with pytest.raises(ValueError, match="none of length 0"):
        PackedBatch.pack(sequences)


def test_pack_token_types_of_another_length_are_an_error() -> None:
    with pytest.raises(ValueError, match="token_type_ids has 2 tokens, input_ids 3"):
        PackedBatch.pack([[5, 6, 7]], [[0, 0]])


@pytest.mark.parametrize("outputs", [[[3], [0]], [[-1], [0]], [[0], [0, 1]]])
def test_pack_output_position_outside_its_sequence_is_an_error(outputs: list[list[int]]) -> None:
    with pytest.raises(ValueError, match="exceed a sequence of"):
        PackedBatch.pack([[5, 6, 7], [8]], outputs=outputs)


def test_pack_outputs_for_another_number_of_sequences_are_an_error() -> None:
    with pytest.raises(ValueError, match="shorter"):
        PackedBatch.pack([[5], [6]], outputs=[[0]])


def test_batch_to_moves_every_tensor() -> None:
    batch = PackedBatch.pack([[5, 6], [7]], outputs=[[0], [0]]).to("meta")
    outputs = outputs_of(batch)
    tensors = [batch.input_ids, batch.position_ids, batch.token_type_ids, batch.cu_seqlens]
    tensors += [outputs.index, outputs.sequences.cu_seqlens]
    assert {tensor.device.type for tensor in tensors} == {"meta"}
    assert batch.lengths == (2, 1)  # kept on the host


# --- padding to buckets -------------------------------------------------------------------------------------

batches = pytest.mark.parametrize("lengths", [[1], [3], [64], [30, 41], [7] * 40, [512] * 8, [3, 509, 500]])
with_outputs = pytest.mark.parametrize("with_outputs", [True, False])


def batch_of(lengths: list[int], with_outputs: bool) -> PackedBatch:
    return PackedBatch.pack([[5] * n for n in lengths], outputs=[[0]] * len(lengths) if with_outputs else None)


def test_pad_to_bucket_keeps_a_batch_of_constant_shape() -> None:
    """A bucket of tokens and of outputs, room for more sequences."""
    batch = batch_of([20, 44], with_outputs=False)
    sequences = SequenceBounds.of([20, 44], capacity=4, max_seqlen=50)
    outputs = OutputPositions(torch.tensor([0, 1, 2, 20, 21, 22, 23, 24]), SequenceBounds.of([3, 5], capacity=4))
    batch = PackedBatch(batch.input_ids, batch.position_ids, batch.token_type_ids, sequences, outputs)
    padded = batch.pad_to_bucket()
    assert padded.sequences is sequences
    assert padded.outputs is not None
    assert padded.outputs.sequences is outputs.sequences
    assert torch.equal(padded.outputs.index, outputs.index)


@batches
@with_outputs
def test_pad_to_bucket_adds_rows_and_outputs_of_no_sequence(lengths: list[int], with_outputs: bool) -> None:
    batch = batch_of(lengths, with_outputs)
    padded, total = batch.pad_to_bucket(), sum(lengths)
    assert padded.sequences == batch.sequences
    assert padded.total_tokens == round_up_to_bucket(total)
    assert len(padded.position_ids) == len(padded.token_type_ids) == padded.total_tokens
    assert padded.input_ids.tolist() == [5] * total + [0] * (padded.total_tokens - total)
    if not with_outputs:
        assert padded.outputs is None
        return
    outputs = outputs_of(padded)
    assert outputs.sequences == outputs_of(batch).sequences
    assert outputs.index[: len(lengths)].tolist() == outputs_of(batch).index.tolist()
    assert len(outputs.index) == round_up_to_bucket(len(lengths))
    assert outputs.index.max() < padded.total_tokens


def test_round_up_to_bucket_gives_few_numbers() -> None:
    assert len({round_up_to_bucket(n) for n in range(1, 4097)}) < 80
    assert all(n <= round_up_to_bucket(n) for n in range(1, 4097))


def test_with_outputs_without_lengths_on_the_host_is_an_error() -> None:
    bounds = SequenceBounds(None, torch.tensor([0, 3], dtype=torch.int32), 3)
    batch = PackedBatch(*torch.zeros(3, 3, dtype=torch.int64).unbind(), bounds)
    with pytest.raises(ValueError, match="no lengths on the host"):
        batch.with_outputs([[0]])
