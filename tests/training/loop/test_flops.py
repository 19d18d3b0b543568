"""Operations by formula, compared with those that torch counts."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from model import BertForPreTraining, BertForSequenceClassification, PackedBatch
from tests.conftest import tiny_config
from training.loop.flops import classification_flops, pretraining_flops


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


def test_classification_flops_are_those_that_torch_counts() -> None:
    config = tiny_config()
    model = BertForSequenceClassification(config)
    batch = PackedBatch.pack([[5] * 16, [6] * 16, [7] * 16], outputs=[[0]] * 3)
    with FlopCounterMode(display=False) as counter:
        model(batch).sum().backward()
    assert classification_flops(config, batch) == counter.get_total_flops()
