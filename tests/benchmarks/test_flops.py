"""Operations by formula, compared with those that torch counts."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.flops import matmul_peak, pretraining_flops
from model import BertForPreTraining, PackedBatch
from tests.conftest import tiny_config


@pytest.mark.parametrize("outputs", [None, [[0, 3], [0, 1]]])
def test_pretraining_flops_are_those_that_torch_counts(outputs: list[list[int]] | None) -> None:
    config = tiny_config()
    model = BertForPreTraining(config)
    lengths = [16, 16]  # attention pads to no more
    batch = PackedBatch.pack([[5] * n for n in lengths], outputs=outputs)
    cls, masked = torch.tensor([0, 2 if outputs else 16]), torch.tensor([1, 2, 3])
    with FlopCounterMode(display=False) as counter:
        hidden = model(batch)
        assert model.next_sentence is not None
        loss = model.masked_lm(hidden[masked]).sum() + model.next_sentence(hidden[cls]).sum()
        loss.backward()
    assert pretraining_flops(config, batch, len(masked)) == counter.get_total_flops()


def test_matmul_peak_is_a_speed() -> None:
    assert 1e8 < matmul_peak(torch.device("cpu"), torch.float32, seconds=0) < 1e14
