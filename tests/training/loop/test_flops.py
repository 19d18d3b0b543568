"""Operations counted by formula and by PyTorch's own counter."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from model import BertForPreTraining, BertForSequenceClassification, PackedBatch
from tests.conftest import tiny_config
from training.loop.flops import classification_flops, pretraining_flops


@pytest.mark.parametrize("reads", [None, [[0, 3], [0, 1]]])
def test_pretraining_operations_are_those_that_torch_counts(reads: list[list[int]] | None) -> None:
    config = tiny_config()
    model = BertForPreTraining(config)
    lengths = [16, 16]  # attention pads to no more
    batch = PackedBatch.pack([[5] * n for n in lengths], outputs=reads)
    cls, masked = torch.tensor([0, 2 if reads else 16]), torch.tensor([1, 2, 3])
    with FlopCounterMode(display=False) as counter:
        hidden = model(batch)
        assert model.next_sentence is not None
        loss = model.masked_lm(hidden[masked]).sum() + model.next_sentence(hidden[cls]).sum()
        loss.backward()
    assert pretraining_flops(config, batch, len(masked)) == counter.get_total_flops()


def test_classification_operations_are_those_that_torch_counts() -> None:
    config = tiny_config()
    model = BertForSequenceClassification(config)
    batch = PackedBatch.pack([[5] * 16, [6] * 16, [7] * 16], outputs=[[0]] * 3)
    with FlopCounterMode(display=False) as counter:
        model(batch).sum().backward()
    assert classification_flops(config, batch) == counter.get_total_flops()
