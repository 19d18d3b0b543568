"""Small batches on a GPU as captured graphs: one launch instead of one for each of a hundred kernels.

A graph replays the kernels it saw, on the same memory and with the same shapes. So there is one for each of a
few sizes; a batch is copied into the smallest that holds it, and what is left over is a sequence of padding.
Where sequences begin is read on the device (`VarlenAttention`), so any lengths will do.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from model.bert import BertEncoder
from model.packing import OutputPositions, PackedBatch, SequenceBounds

logger = logging.getLogger(__name__)

SIZES = (32, 64, 128, 256, 512)
"""Tokens of each graph; from some hundred tokens on, a GPU is busy for longer than launches take."""
SEQUENCES = 32
"""Sequences that a graph has room for, and reads"""
_TOLERANCE = 3e-2

Replay = Callable[[], None]
Capture = Callable[[Callable[[], Tensor]], tuple[Tensor, Replay]]


class GraphedEncoder:
    """An encoder on a GPU, called with batches on the host. Where there is no graph for a batch, it is computed
    as ever."""

    def __init__(
        self, encoder: BertEncoder, sizes: Sequence[int] = SIZES, capture: Capture | None = None
    ) -> None:
        self.encoder = encoder
        self.device = encoder.embeddings.norm.weight.device
        self.graphs: list[_Graph] = []
        try:
            capture = capture or capture_cuda()
            self.graphs = [_Graph.make(encoder, size, capture, self.device) for size in sorted(sizes)]
            self._check()
        except RuntimeError as error:  # a driver or a kernel that cannot be captured: slower is better than not
            logger.warning("no CUDA graphs: %s", error)
            self.graphs = []

    def __call__(self, batch: PackedBatch) -> Tensor:
        """Final hidden states of the reads, valid until the next call: (num_reads, hidden)"""
        graph = self._graph(batch)
        return self.encoder(batch.to(self.device, non_blocking=True)) if graph is None else graph(batch)

    def _graph(self, batch: PackedBatch) -> _Graph | None:
        """The smallest that holds the batch and a token of padding."""
        if batch.outputs is None or max(len(batch.cu_seqlens) - 1, len(batch.outputs.index)) > SEQUENCES:
            return None
        return next((graph for graph in self.graphs if batch.total_tokens < graph.tokens), None)

    def _check(self) -> None:
        """Raises RuntimeError if a graph does not compute what the encoder does."""
        for graph in self.graphs:
            longest = self.encoder.config.max_position_embeddings  # beyond, a GPU would fault for good
            lengths = [min(graph.tokens // 2, longest), min(graph.tokens // 4, longest)]
            batch = PackedBatch.pack([[i % 7 for i in range(n)] for n in lengths], outputs=[[0], [0, 1]])
            expected = self.encoder(batch.to(self.device))
            if not torch.allclose(graph(batch), expected, rtol=_TOLERANCE, atol=_TOLERANCE):
                raise RuntimeError(f"the graph of {graph.tokens} tokens computes other numbers")


@dataclass(frozen=True, slots=True)
class _Graph:
    tokens: int
    host: Tensor
    """Page-locked where the device is a GPU: (values,) int64; see `_cuts`"""
    values: Tensor
    """The same on the device"""
    out: Tensor
    """(SEQUENCES, hidden)"""
    replay: Replay

    @classmethod
    def make(cls, encoder: BertEncoder, tokens: int, capture: Capture, device: torch.device) -> _Graph:
        host = torch.zeros(sum(_cuts(tokens)), dtype=torch.int64, pin_memory=device.type == "cuda")
        _fill(host, tokens, PackedBatch.pack([[0]], outputs=[[0]]))
        values = host.to(device)

        def forward() -> Tensor:
            ids, positions, types, index, keys, queries = values.split(_cuts(tokens))
            outputs = OutputPositions(index, SequenceBounds(None, queries.to(torch.int32), SEQUENCES))
            sequences = SequenceBounds(None, keys.to(torch.int32), tokens)  # no sequence is longer than that
            return encoder(PackedBatch(ids, positions, types, sequences, outputs))

        out, replay = capture(forward)
        return cls(tokens, host, values, out, replay)

    def __call__(self, batch: PackedBatch) -> Tensor:
        assert batch.outputs is not None
        _fill(self.host, self.tokens, batch)
        self.values.copy_(self.host, non_blocking=True)
        self.replay()
        return self.out[: len(batch.outputs.index)]


def _cuts(tokens: int) -> list[int]:
    """Of a graph's values: ids, positions, types, reads, and the cumulative lengths of keys and of queries."""
    return [tokens, tokens, tokens, SEQUENCES, SEQUENCES + 2, SEQUENCES + 2]


def _fill(host: Tensor, tokens: int, batch: PackedBatch) -> None:
    """Lay a batch out; its last sequence is what is left over, and has the reads that are left over."""
    outputs = batch.outputs
    assert outputs is not None
    ids, positions, types, index, keys, queries = host.split(_cuts(tokens))
    for row, given in (
        (ids, batch.input_ids),
        (positions, batch.position_ids),
        (types, batch.token_type_ids),
        (index, outputs.index),
    ):
        row[: len(given)] = given
        row[len(given) :] = 0
    for row, cumulative, end in (
        (keys, batch.cu_seqlens, tokens),
        (queries, outputs.sequences.cu_seqlens, SEQUENCES),
    ):
        row[: len(cumulative)] = cumulative
        row[len(cumulative) :] = end


def capture_cuda() -> Capture:
    """Captures that share one pool of memory: only one of them runs at a time."""
    pool = torch.cuda.graph_pool_handle()
    side = torch.cuda.Stream()

    def capture(work: Callable[[], Tensor]) -> tuple[Tensor, Replay]:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):  # libraries choose their kernels, and take their workspaces
                work()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # A reload captures while the inference thread goes on with the old model.
        with torch.cuda.graph(graph, pool=pool, stream=side, capture_error_mode="thread_local"):
            out = work()
        return out, graph.replay

    return capture
