"""CUDA graphs. On a CPU, "replaying" computes again from the same buffers."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from model import BertForPreTraining, PackedBatch
from model.bert import BertEncoder
from model.inference.cuda_graphs import GRAPH_TOKENS, GraphedEncoder, Layout, Replay
from tests.conftest import tiny_config

SIZES = (32, 64, 128, 512)


def compute_again(work: Callable[[], Tensor]) -> tuple[Tensor, Replay]:
    out = work().clone()
    return out, lambda: out.copy_(work())


def encoder_on(device: str, dtype: torch.dtype = torch.float32, positions: int = 64) -> BertEncoder:
    network = BertForPreTraining(tiny_config(max_position_embeddings=positions))
    network.initialise(torch.Generator().manual_seed(0))
    return network.encoder.eval().to(device, dtype)


@pytest.fixture
def encoder() -> BertEncoder:
    return encoder_on("cpu")


def random_batch(rng: random.Random, max_tokens: int, longest: int = 64) -> PackedBatch:
    lengths = [rng.randint(1, min(longest, max(1, max_tokens // 3))) for _ in range(rng.randint(1, 32))]
    while sum(lengths) > max_tokens:
        lengths.pop()
    ids = [[rng.randrange(70) for _ in range(n)] for n in lengths or [1]]
    types = [[rng.randrange(2) for _ in row] for row in ids]
    return PackedBatch.pack(ids, types, [[rng.randrange(len(row))] for row in ids])


@torch.inference_mode()
def test_graphed_encoder_equals_the_encoder(encoder: BertEncoder) -> None:
    graphed = GraphedEncoder(encoder, SIZES, compute_again)
    rng = random.Random(0)
    used = set()
    for max_tokens in (1, 31, 60, 120, 500) * 6:
        batch = random_batch(rng, max_tokens)
        graph = graphed.graph_for(batch)
        assert graph is not None
        used.add(graph.layout.tokens)
        torch.testing.assert_close(graphed(batch), encoder(batch))
    assert used == set(SIZES)


@torch.inference_mode()
def test_graphed_encoder_computes_a_head_in_the_graph_and_without(encoder: BertEncoder) -> None:
    def head(hidden: Tensor) -> Tensor:
        return torch.cat([hidden[:, :2], hidden[:, :2].softmax(-1)], dim=-1)

    graphed = GraphedEncoder(encoder, [64], compute_again, head)
    for tokens in (5, 66):
        batch = PackedBatch.pack([[5, 6, 7], [7] * (tokens - 3)], outputs=[[0], [1]])
        assert (graphed.graph_for(batch) is None) is (tokens > 64)
        rows = graphed(batch)
        assert rows.shape == (2, 4)
        torch.testing.assert_close(rows, head(encoder(batch)))


@torch.inference_mode()
def test_graphed_encoder_computes_batches_that_fit_no_graph(encoder: BertEncoder) -> None:
    graphed = GraphedEncoder(encoder, [32], compute_again)
    for lengths, outputs in (([32], [[0]]), ([1] * 33, [[0]] * 33), ([5], [[0] * 33]), ([5], None)):
        batch = PackedBatch.pack([[5] * n for n in lengths], outputs=outputs)
        assert graphed.graph_for(batch) is None
        torch.testing.assert_close(graphed(batch), encoder(batch))


@torch.inference_mode()
@pytest.mark.parametrize("fault", ["cannot be captured", "another result"])
def test_graphed_encoder_works_without_graphs(
    encoder: BertEncoder, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(work: Callable[[], Tensor]) -> tuple[Tensor, Replay]:
        if fault == "cannot be captured":
            raise RuntimeError(fault)
        return work() + 1, lambda: None

    with caplog.at_level(logging.WARNING):
        graphed = GraphedEncoder(encoder, SIZES, broken)
    assert graphed.graphs == []
    assert fault in caplog.text
    batch = PackedBatch.pack([[5, 6]], outputs=[[0]])
    torch.testing.assert_close(graphed(batch), encoder(batch))


@torch.inference_mode()
def test_graphed_encoder_leaves_out_graphs_that_need_too_much_memory(
    encoder: BertEncoder, caplog: pytest.LogCaptureFixture
) -> None:
    calls = 0

    def full(work: Callable[[], Tensor]) -> tuple[Tensor, Replay]:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise torch.OutOfMemoryError("full")
        return compute_again(work)

    with caplog.at_level(logging.WARNING):
        graphed = GraphedEncoder(encoder, SIZES, full)
    assert [graph.layout.tokens for graph in graphed.graphs] == [32, 64, 128]
    assert "no memory for a CUDA graph of 512 tokens" in caplog.text


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([31], 32),
        ([32], 64),
        ([255], 256),
        ([512], 544),
        ([512] * 2, 1056),
        ([512] * 3, 1568),
        ([512] * 16, 8224),
        ([512] * 32, 16_416),
        ([16] * 33, 544),
        ([15] * 35, 768),
        ([512] * 32 + [32], None),
    ],
)
def test_layout_of_the_smallest_size_that_holds_a_batch(lengths: list[int], expected: int | None) -> None:
    layouts = (Layout(size, 512) for size in GRAPH_TOKENS)
    assert next((one.tokens for one in layouts if one.holds(sum(lengths), len(lengths))), None) == expected


@pytest.mark.parametrize("tokens", [32, 256, 16_416])
@pytest.mark.parametrize("max_seqlen", [16, 512])
def test_layout_covers_all_tokens_and_outputs(tokens: int, max_seqlen: int) -> None:
    """The kernel leaves rows of no sequence unwritten, and a sequence longer than the bound is an error."""
    layout = Layout(tokens, max_seqlen)
    buffer = torch.full((sum(layout.sections),), -1)
    for count in (1, min(layout.outputs, tokens - 1)):
        layout.write(buffer, PackedBatch.pack([[7]] * count, outputs=[[0]] * count))
        batch = layout.read(buffer)
        assert batch.outputs is not None
        for bounds, rows in ((batch.sequences, tokens), (batch.outputs.sequences, layout.outputs)):
            lengths = bounds.cu_seqlens.diff()
            assert bounds.cu_seqlens[-1] == rows
            assert 0 <= lengths.min() <= lengths.max() <= bounds.max_seqlen
        assert batch.input_ids.tolist() == [7] * count + [0] * (tokens - count)
        assert batch.position_ids.max() < max_seqlen


@torch.inference_mode()
def test_graph_waits_for_the_last_copy_before_it_fills_the_buffer(encoder: BertEncoder) -> None:
    (graph,) = GraphedEncoder(encoder, [32], compute_again).graphs
    seen: list[tuple[str, int]] = []

    class Event:
        def synchronize(self) -> None:
            seen.append(("wait", int(graph._host[0])))

        def record(self) -> None:
            seen.append(("copied", int(graph._device[0])))

    graph._copied = Event()  # type: ignore[assignment]
    for token in (5, 6):
        graph(PackedBatch.pack([[token]], outputs=[[0]]))
    assert seen[1:] == [("copied", 5), ("wait", 5), ("copied", 6)]


@pytest.mark.cuda
@torch.inference_mode()
def test_captured_graphs_equal_the_encoder() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device: no graph was captured")
    encoder = encoder_on("cuda", torch.bfloat16, positions=512)
    graphed = GraphedEncoder(encoder)
    assert len(graphed.graphs) == len(GRAPH_TOKENS)
    rng = random.Random(0)
    full = [PackedBatch.pack([[5] * 512] * texts, outputs=[[0]] * texts) for texts in (1, 2, 16, 32)]
    for batch in [*full, *(random_batch(rng, n, longest=512) for n in (1, 31, 60, 120, 511, 1500, 3000) * 8)]:
        assert graphed.graph_for(batch) is not None
        expected = encoder(batch.to("cuda"))
        torch.testing.assert_close(graphed(batch), expected, atol=3e-2, rtol=3e-2)


@pytest.mark.cuda
@torch.inference_mode()
def test_captured_graph_buffer_is_not_refilled_before_it_is_copied() -> None:
    """Many calls without waiting for the GPU: each result must be that of its own batch."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device: no graph was captured")
    encoder = encoder_on("cuda", torch.bfloat16, positions=512)
    graphed = GraphedEncoder(encoder)
    batches = [random_batch(random.Random(seed), 3000, longest=512) for seed in range(64)]
    expected = [encoder(batch.to("cuda")) for batch in batches]
    results = [graphed(batch).clone() for batch in batches]
    for result, own in zip(results, expected, strict=True):
        torch.testing.assert_close(result, own, atol=3e-2, rtol=3e-2)
