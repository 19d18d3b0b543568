"""Graphs for small batches. On a CPU, "replaying" is to compute again from the same buffers."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from model import BertForPreTraining, PackedBatch
from model.bert import BertEncoder
from model.inference.cuda_graphs import SEQUENCES, GraphedEncoder, Replay
from model.packing import SequenceBounds
from tests.conftest import tiny_config


@dataclass
class DeviceAttention:
    """Reads where sequences begin from the tensors alone, as the kernel on a GPU does."""

    queries: SequenceBounds
    keys: SequenceBounds

    def cross_attention(self, query: Tensor, key_value: Tensor) -> Tensor:
        out = torch.full_like(query, torch.nan)  # memory that nobody has written
        asking, known = self.queries.cu_seqlens.tolist(), self.keys.cu_seqlens.tolist()
        for i in range(len(known) - 1):
            q = query[asking[i] : asking[i + 1]].transpose(0, 1)
            k, v = key_value[known[i] : known[i + 1]].permute(1, 2, 0, 3)
            out[asking[i] : asking[i + 1]] = F.scaled_dot_product_attention(q, k, v).transpose(0, 1)
        return out

    def self_attention(self, qkv: Tensor) -> Tensor:
        return self.cross_attention(qkv[:, 0], qkv[:, 1:])


def again(work: Callable[[], Tensor]) -> tuple[Tensor, Replay]:
    out = work().clone()
    return out, lambda: out.copy_(work())


@pytest.fixture
def encoder(monkeypatch: pytest.MonkeyPatch) -> BertEncoder:
    monkeypatch.setattr("model.bert.attention_for", lambda queries, keys, *_: DeviceAttention(queries, keys))
    return encoder_on("cpu")


def encoder_on(device: str, dtype: torch.dtype = torch.float32, positions: int = 512) -> BertEncoder:
    network = BertForPreTraining(tiny_config(max_position_embeddings=positions))
    network.initialise(torch.Generator().manual_seed(0))
    return network.encoder.eval().to(device, dtype)


def some_batch(rng: random.Random, most: int) -> PackedBatch:
    lengths = [rng.randint(1, max(1, most // 3)) for _ in range(rng.randint(1, SEQUENCES))]
    while sum(lengths) > most or len(lengths) > SEQUENCES:
        lengths.pop()
    ids = [[rng.randrange(70) for _ in range(n)] for n in lengths or [1]]
    types = [[rng.randrange(2) for _ in row] for row in ids]
    return PackedBatch.pack(ids, types, [[rng.randrange(len(row))] for row in ids])


@torch.inference_mode()
def test_graph_computes_what_the_encoder_does(encoder: BertEncoder) -> None:
    graphed = GraphedEncoder(encoder, capture=again)
    rng = random.Random(0)
    used = set()
    for most in (1, 31, 60, 120, 250, 511) * 8:
        batch = some_batch(rng, most)
        graph = graphed._graph(batch)
        assert graph is not None
        used.add(graph.tokens)
        torch.testing.assert_close(graphed(batch), encoder(batch))
    assert used == {32, 64, 128, 256, 512}


@torch.inference_mode()
def test_batches_that_no_graph_holds_are_computed_as_ever(encoder: BertEncoder) -> None:
    graphed = GraphedEncoder(encoder, sizes=[32], capture=again)
    for lengths, reads in (([32], [[0]]), ([1] * 33, [[0]] * 33), ([5], [[0] * 33]), ([5], None)):
        batch = PackedBatch.pack([[5] * n for n in lengths], outputs=reads)
        assert graphed._graph(batch) is None
        torch.testing.assert_close(graphed(batch), encoder(batch))


@torch.inference_mode()
@pytest.mark.parametrize("trouble", ["cannot be captured", "other numbers"])
def test_where_graphs_do_not_work_the_encoder_does(
    encoder: BertEncoder, trouble: str, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(work: Callable[[], Tensor]) -> tuple[Tensor, Replay]:
        if trouble == "cannot be captured":
            raise RuntimeError(trouble)
        return work() + 1, lambda: None

    with caplog.at_level(logging.WARNING):
        graphed = GraphedEncoder(encoder, capture=broken)
    assert graphed.graphs == []
    assert trouble in caplog.text
    batch = PackedBatch.pack([[5, 6]], outputs=[[0]])
    torch.testing.assert_close(graphed(batch), encoder(batch))


@torch.inference_mode()
def test_a_network_of_few_positions_has_graphs_too(encoder: BertEncoder) -> None:
    short = encoder_on("cpu", positions=16)
    assert len(GraphedEncoder(short, capture=again).graphs) == 5


@pytest.mark.cuda
@torch.inference_mode()
def test_captured_graphs_compute_what_the_encoder_does() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device: no graph was captured")
    encoder = encoder_on("cuda", torch.bfloat16)
    graphed = GraphedEncoder(encoder)
    assert [graph.tokens for graph in graphed.graphs] == [32, 64, 128, 256, 512]
    rng = random.Random(0)
    for most in (1, 31, 60, 120, 250, 511) * 8:
        batch = some_batch(rng, most)
        assert graphed._graph(batch) is not None
        torch.testing.assert_close(graphed(batch), encoder(batch.to("cuda")), atol=3e-2, rtol=3e-2)
