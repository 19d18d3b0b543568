"""The relation loss beside a plain computation, and its graph."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from model import BertConfig, BertForPreTraining, PackedBatch
from training.pretrain.relations import BLOCK_TOKENS, RelationLoss, relation_loss

LENGTHS = (100, 3, 1, 60, 200, 20)  # three blocks; the first ends in the fourth sequence, the second in the fifth
BOUNDS = sorted({*itertools.accumulate((0, *LENGTHS)), BLOCK_TOKENS, 2 * BLOCK_TOKENS})
BATCH = PackedBatch.pack([[i % 50 for i in range(length)] for length in LENGTHS], outputs=[[0] for _ in LENGTHS])


def expected(student: Tensor, teacher: Tensor, heads: int) -> float:
    """The loss, one pair of bounds, kind of vector, relation head and token after another."""
    total = 0.0
    for (start, end), kind, head in itertools.product(itertools.pairwise(BOUNDS), range(3), range(heads)):
        own = (each[start:end].unflatten(1, (3, heads, -1))[:, kind, head] for each in (student, teacher))
        ours, theirs = ((each @ each.T / math.sqrt(each.shape[1])).softmax(-1) for each in own)
        for found, wanted in zip(ours, theirs, strict=True):
            total += (wanted * (wanted.log() - found.log())).sum().item()
    return total / (heads * sum(LENGTHS))


@pytest.mark.parametrize("heads", [1, 4])
def test_relation_loss_is_that_of_loops_over_sequences_and_heads(heads: int) -> None:
    generator = torch.Generator().manual_seed(0)
    student, teacher = (torch.randn(sum(LENGTHS), 3 * size, generator=generator) for size in (8, 20))
    loss = relation_loss(student, teacher, BATCH.position_ids, heads)
    torch.testing.assert_close(loss.item(), expected(student, teacher, heads), rtol=1e-4, atol=0)


def network(layers: int, hidden: int, heads: int) -> BertForPreTraining:
    shape = {"hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads}
    return BertForPreTraining(BertConfig(vocab_size=50, intermediate_size=hidden, hidden_dropout_prob=0.0, **shape))


@pytest.mark.parametrize("layers", [1, 3])
def test_relation_loss_reads_the_last_layers_of_both_networks_in_one_graph(layers: int) -> None:
    student, teacher, vectors = network(2, 32, 1), network(layers, 48, 6), []
    for model in (student, teacher):
        last, hidden = model.encoder.layers[-1], []
        with last.register_forward_pre_hook(lambda _, given, hidden=hidden: hidden.append(given[0])), torch.no_grad():
            model(replace(BATCH, outputs=None))
        vectors.append(last.query_key_value(hidden[0]).detach())
    relations = RelationLoss(teacher.encoder, student.encoder)
    assert relations.heads == 4, "a divisor of 32 and 48"

    def loss_of(batch: PackedBatch) -> Tensor:
        student(batch)
        return relations(batch)

    loss = loss_of(BATCH)
    torch.testing.assert_close(loss.item(), expected(*vectors, heads=4), rtol=1e-3, atol=0)
    loss.backward()
    assert all(weight.grad is None for weight in relations.parameters())
    assert student.encoder.layers[-1].query_key_value.weight.grad is not None
    assert BATCH.outputs
    bounds = (replace(each, lengths=None) for each in (BATCH.sequences, BATCH.outputs.sequences))  # as on a GPU
    batch = replace(BATCH, sequences=next(bounds), outputs=replace(BATCH.outputs, sequences=next(bounds)))
    torch.testing.assert_close(torch.compile(loss_of, backend="aot_eager", fullgraph=True)(batch), loss.detach())
