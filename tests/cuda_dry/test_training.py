from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily

from model import BertConfig, BertForPreTraining, BertForSequenceClassification
from tests.cuda_dry.fake import VARLEN, CudaOnly, Graphs, as_fake, on_cuda, tensors_of
from training.examples.batches import (
    BatchShape,
    ClassificationBatch,
    LabelledExample,
    PretrainingBatch,
    collate_classification,
    collate_pretraining,
)
from training.examples.masking import Examples
from training.examples.pairs import PairKind
from training.finetune.task import ClassificationLoss
from training.loop.optimizer import make_optimizer, update_weights
from training.pretrain.task import PretrainingLoss
from training.problems.single_label import SingleLabel
from training.runtime.device import autocast, choose_precision, evaluating

CONFIG = BertConfig(
    vocab_size=100,
    hidden_size=64,
    num_hidden_layers=3,
    num_attention_heads=4,
    intermediate_size=96,
    max_position_embeddings=32,
)
SHAPE = BatchShape(tokens=256, sequences=24, masked=48, max_seqlen=32)
LENGTHS = ((32, 32, 30, 20, 20, 20, 20, 20, 20, 20, 20), (32,) * 8, (3, 4, 5), (5,) * 23)
"""Nearly full, full, nearly empty, and as many sequences as there is room for."""

Batch = PretrainingBatch | ClassificationBatch


def pretraining_batch(lengths: tuple[int, ...]) -> PretrainingBatch:
    sizes, tokens = np.array(lengths), sum(lengths)
    ends = sizes.cumsum()
    positions = np.stack([ends - sizes + 1, ends - 1], 1).ravel()
    ids, kinds = np.arange(tokens) % CONFIG.vocab_size, np.full(len(sizes), PairKind.NEXT)
    hidden = np.tile([5, 6], len(sizes))
    return collate_pretraining(Examples(ids, np.zeros(tokens, np.int64), sizes, positions, hidden, kinds), SHAPE)


def classification_batch(lengths: tuple[int, ...]) -> ClassificationBatch:
    target = np.full(2, 0.5, np.float32)
    examples = [LabelledExample(np.arange(n), np.zeros(n, np.int64), target) for n in lengths]
    return collate_classification(examples, replace(SHAPE, masked=0))


LOSSES = {
    "pretraining": (lambda: PretrainingLoss(BertForPreTraining(CONFIG)), pretraining_batch),
    "pretraining with a teacher": (
        lambda: PretrainingLoss(BertForPreTraining(CONFIG), BertForPreTraining(CONFIG).encoder),
        pretraining_batch,
    ),
    "classification": (
        lambda: ClassificationLoss(SingleLabel(("a", "b")), BertForSequenceClassification(CONFIG), 10.0),
        classification_batch,
    ),
}
stages = pytest.mark.parametrize("stage", LOSSES)


def loss_of(stage: str) -> nn.Module:
    make, _ = LOSSES[stage]
    return on_cuda(make).train()


def batches_of(stage: str, mode: FakeTensorMode) -> list[Batch]:
    """Batches on the GPU, as the loader and the training loop bring them there."""
    _, collate = LOSSES[stage]
    with unset_fake_temporarily():
        batches = [collate(lengths) for lengths in LENGTHS]
    return [as_fake(mode, batch).pin_memory().to(torch.device("cuda")) for batch in batches]


@stages
def test_loader_moves_every_tensor_to_the_gpu(stage: str, fake_cuda: FakeTensorMode) -> None:
    for batch in batches_of(stage, fake_cuda):
        assert all(tensor.is_cuda for tensor in tensors_of(batch))
        assert batch.packed.lengths is None


@stages
def test_loss_is_computed_on_the_gpu_under_autocast(stage: str, fake_cuda: FakeTensorMode) -> None:
    loss = loss_of(stage)
    for batch in batches_of(stage, fake_cuda):
        with autocast(loss, choose_precision(torch.device("cuda"))), CudaOnly() as seen:
            value, metrics = loss(batch)
        assert (value.device.type, value.dtype, value.shape) == ("cuda", torch.float32, ())
        assert value.requires_grad
        assert (metrics.device.type, metrics.dtype) == ("cuda", torch.float32)
        assert VARLEN in seen.operators


@stages
def test_loss_is_traced_as_one_graph_for_all_batches(stage: str, fake_cuda: FakeTensorMode) -> None:
    loss, backend = loss_of(stage), Graphs()
    loss.compile(backend=backend, fullgraph=True, dynamic=False)
    for batch in batches_of(stage, fake_cuda):
        with autocast(loss, torch.bfloat16):
            loss(batch)
    assert len(backend.graphs) == 1, "a batch of the same shape was traced again"
    of_the_teacher = (CONFIG.num_hidden_layers - 1) * ("teacher" in stage)
    assert backend.calls("varlen_attn") == CONFIG.num_hidden_layers + of_the_teacher
    assert not backend.tensors_on_cpu()


@stages
def test_model_evaluates_and_teaches_on_the_gpu(stage: str, fake_cuda: FakeTensorMode) -> None:
    model = loss_of(stage).model
    batch = batches_of(stage, fake_cuda)[0]
    with evaluating(model), CudaOnly() as seen:
        out = model(batch.packed).float()
    assert (out.device.type, out.dtype, out.requires_grad) == ("cuda", torch.float32, False)
    assert VARLEN in seen.operators


@stages
def test_optimizer_stays_on_the_gpu(stage: str) -> None:
    model = loss_of(stage).model
    optimizer = make_optimizer(model, 1e-3)
    with CudaOnly(), torch.no_grad():
        for _ in range(2):
            assert update_weights(model, optimizer).is_cuda
