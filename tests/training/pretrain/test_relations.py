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


def expected(student: Tensor, teacher: Tensor, heads: int) -> float:
    """The loss, one pair of bounds, kind of vector, relation head and token after another."""
    total = 0.0
    for (start, end), kind, head in itertools.product(itertools.pairwise(BOUNDS), range(3), range(heads)):
        relations = []
        for vectors in (student, teacher):
            own = vectors[start:end].unflatten(1, (3, heads, -1))[:, kind, head]
            relations.append((own @ own.T / math.sqrt(own.shape[1])).softmax(-1))
        for ours, theirs in zip(*relations, strict=True):
            total += (theirs * (theirs.log() - ours.log())).sum().item()
    return total / (heads * sum(LENGTHS))


@pytest.mark.parametrize("heads", [1, 4])
def test_relation_loss_is_that_of_loops_over_sequences_and_heads(heads: int) -> None:
    generator = torch.Generator().manual_seed(0)
    student, teacher = (torch.randn(sum(LENGTHS), 3 * size, generator=generator) for size in (8, 20))
    positions = torch.cat([torch.arange(length) for length in LENGTHS])
    loss = relation_loss(student, teacher, positions, heads)
    torch.testing.assert_close(loss.item(), expected(student, teacher, heads), rtol=1e-4, atol=0)


def network(layers: int, hidden: int, heads: int) -> BertForPreTraining:
    config = BertConfig(
        vocab_size=50,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=hidden,
        hidden_dropout_prob=0.0,
    )
    return BertForPreTraining(config)


@pytest.mark.parametrize("layers", [1, 3])
def test_relation_loss_reads_the_last_layers_of_both_networks(layers: int) -> None:
    student, teacher = network(2, 32, 1), network(layers, 48, 6)
    inputs = [[i % 50 for i in range(length)] for length in LENGTHS]
    batch = PackedBatch.pack(inputs, outputs=[[0] for _ in LENGTHS])
    whole = replace(batch, outputs=None)
    vectors = []
    for model in (student, teacher):
        last = model.encoder.layers[-1]
        hidden: list[Tensor] = []
        with last.register_forward_pre_hook(lambda _, given, hidden=hidden: hidden.append(given[0])), torch.no_grad():
            model(whole)
        vectors.append(last.query_key_value(hidden[0]).detach())
    relations = RelationLoss(teacher.encoder, student.encoder)
    assert relations.heads == 4, "a divisor of 32 and 48"
    student(batch)
    loss = relations(batch)
    torch.testing.assert_close(loss.item(), expected(*vectors, heads=4), rtol=1e-3, atol=0)
    loss.backward()
    assert {name for name, weight in relations.named_parameters() if weight.grad is not None} == set()
    assert student.encoder.layers[-1].query_key_value.weight.grad is not None


def test_relation_loss_is_traced_with_the_student_as_one_graph() -> None:
    student = network(2, 32, 1)
    relations = RelationLoss(network(2, 48, 6).encoder, student.encoder)

    def loss(batch: PackedBatch) -> Tensor:
        student(batch)
        return relations(batch)

    packed = PackedBatch.pack([[1] * length for length in LENGTHS], outputs=[[0] for _ in LENGTHS])
    assert packed.outputs
    bounds = (replace(each, lengths=None) for each in (packed.sequences, packed.outputs.sequences))  # as on a GPU
    batch = replace(packed, sequences=next(bounds), outputs=replace(packed.outputs, sequences=next(bounds)))
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(batch), loss(batch))
