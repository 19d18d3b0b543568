"""CUDA graphs for inference: one launch for a whole forward pass instead of a hundred kernel launches.

A graph replays recorded kernels on the same memory with the same shapes. So one is recorded for each of a few numbers
of tokens, and a batch is copied into the smallest graph that holds it. Dummy sequences fill the remaining tokens.
Sequence lengths may differ from batch to batch, because `VarlenAttention` reads them on the device.
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

GRAPH_TOKENS = (32, 64, 128, 256, 544, 768, *(512 * texts + 32 for texts in (2, 3, 4, 6, 8, 12, 16, 24, 32)))
"""Tokens of each graph. Above 512 there are two sizes per octave, because kernels rather than launches take the time
there, so padding is not free. All of these but 768 hold N texts of 512 tokens, and 32 tokens more for the dummy
sequences. Larger batches run without a graph."""

Replay = Callable[[], None]
Capture = Callable[[Callable[[], Tensor]], tuple[Tensor, Replay]]


class GraphedEncoder:
    """An encoder on a GPU, called with batches on the host. A batch that fits no graph is computed without one."""

    def __init__(
        self,
        encoder: BertEncoder,
        sizes: Sequence[int] = GRAPH_TOKENS,
        capture: Capture | None = None,
        head: Callable[[Tensor], Tensor] = lambda hidden: hidden,
    ) -> None:
        """
        Args:
            encoder: in evaluation mode, on the GPU.
            sizes: tokens of each graph.
            capture: runs a forward pass and returns its output and a function that repeats it. Tests on a CPU replace
                it.
            head: computed within the graphs from the hidden states at the output positions: (rows, hidden) -> (rows, n)
        """
        self.encoder = encoder
        self.head = head
        self.device = encoder.embeddings.norm.weight.device
        self.graphs: list[Graph] = []
        try:
            self.graphs = self._capture(sizes, capture or capture_cuda())
            self._check()
        except RuntimeError as error:  # some drivers and kernels cannot be captured
            logger.warning("CUDA graphs are not available, inference runs without them: %s", error)
            self.graphs = []

    def __call__(self, batch: PackedBatch) -> Tensor:
        """The head's rows for the output positions, valid until the next call: (num_outputs, n)"""
        graph = self.graph_for(batch)
        return self.compute(batch.to(self.device, non_blocking=True)) if graph is None else graph(batch)

    def compute(self, batch: PackedBatch) -> Tensor:
        """Compute a batch on the GPU without a graph."""
        return self.head(self.encoder(batch))

    def graph_for(self, batch: PackedBatch) -> Graph | None:
        """The smallest graph that holds the batch."""
        if batch.outputs is None:
            return None
        rows = max(len(batch.cu_seqlens) - 1, len(batch.outputs.index))
        return next((graph for graph in self.graphs if graph.layout.holds(batch.total_tokens, rows)), None)

    def _capture(self, sizes: Sequence[int], capture: Capture) -> list[Graph]:
        """Graphs by size. The largest is recorded first: the others fit in the memory that it used."""
        graphs: list[Graph] = []
        for size in sorted(sizes, reverse=True):
            try:
                graphs.insert(0, Graph.capture(self, size, capture))
            except torch.OutOfMemoryError:
                logger.warning("no memory for a CUDA graph of %d tokens", size)
        return graphs

    def _check(self) -> None:
        """Raise RuntimeError if a graph's result differs from that of the encoder and the head."""
        positions = self.encoder.config.max_position_embeddings
        for graph in self.graphs:
            lengths = [min(graph.layout.tokens // part, positions) for part in (2, 4)]
            batch = PackedBatch.pack([[i % 7 for i in range(n)] for n in lengths], outputs=[[0], [0, 1]])
            expected = self.compute(batch.to(self.device))
            # Rounding in 16 bits alone gives 0.02: with other numbers of rows, a graph has other kernels.
            if not (graph(batch) - expected).norm() < 0.1 * expected.norm():
                raise RuntimeError(f"the graph of {graph.layout.tokens} tokens computes another result")


@dataclass(frozen=True, slots=True)
class Layout:
    """A batch of constant shape in one int64 buffer: token ids, positions, token types, output positions, and the
    cumulative lengths of keys and of queries."""

    tokens: int
    max_seqlen: int
    """Tokens of the longest sequence that the model takes"""

    @property
    def outputs(self) -> int:
        """Room for output positions, and for sequences. Texts of fewer than 16 tokens may fit no graph: with more room,
        more blocks of attention would be launched, most of them without work."""
        return max(32, self.tokens // 16)

    @property
    def capacity(self) -> int:
        """Sequences, dummy sequences included"""
        return self.outputs + -(-self.tokens // self.max_seqlen)

    @property
    def sections(self) -> list[int]:
        """Numbers of values of the buffer's parts"""
        return [self.tokens] * 3 + [self.outputs] + [self.capacity + 1] * 2

    def holds(self, tokens: int, rows: int) -> bool:
        """Whether there is room for N tokens, one more for the dummy sequence that has the spare outputs, and for a
        number of sequences or output positions."""
        return tokens < self.tokens and rows <= self.outputs

    def write(self, buffer: Tensor, batch: PackedBatch) -> None:
        """Fill the buffer, on the host, with a batch and dummy sequences."""
        assert batch.outputs is not None
        ids, positions, types, index, keys, queries = buffer.split(self.sections)
        for part, values in (
            (ids, batch.input_ids),
            (positions, batch.position_ids),
            (types, batch.token_type_ids),
            (index, batch.outputs.index),
        ):
            part[: len(values)] = values
            part[len(values) :] = 0
        # Dummy sequences fill the remaining tokens, and the first of them has the remaining outputs.
        start = len(batch.cu_seqlens)
        keys[:start], queries[:start] = batch.cu_seqlens, batch.outputs.sequences.cu_seqlens
        ends = batch.total_tokens + self.max_seqlen * torch.arange(1, len(keys) - start + 1)
        keys[start:] = ends.clamp(max=self.tokens)
        queries[start:] = self.outputs

    def read(self, buffer: Tensor) -> PackedBatch:
        """The batch in a buffer, on the buffer's device."""
        ids, positions, types, index, keys, queries = buffer.split(self.sections)
        outputs = OutputPositions(index, SequenceBounds(None, queries.to(torch.int32), self.outputs))
        sequences = SequenceBounds(None, keys.to(torch.int32), min(self.tokens, self.max_seqlen))
        return PackedBatch(ids, positions, types, sequences, outputs)


class Graph:
    """A recorded forward pass over a batch of constant shape."""

    def __init__(self, layout: Layout, host: Tensor, device: Tensor, out: Tensor, replay: Replay) -> None:
        """Store the recorded pass; call `capture` instead."""
        self.layout = layout
        self.out = out  # (outputs, n)
        self._host = host  # page-locked where the device is a GPU
        self._device = device
        self._replay = replay
        self._copied = torch.cuda.Event() if device.is_cuda else None

    @classmethod
    def capture(cls, graphed: GraphedEncoder, tokens: int, capture: Capture) -> Graph:
        """Record a forward pass over a batch of this size."""
        layout = Layout(tokens, graphed.encoder.config.max_position_embeddings)
        host = torch.zeros(sum(layout.sections), dtype=torch.int64)
        layout.write(host, PackedBatch.pack([[0]], outputs=[[0]]))
        device = host.to(graphed.device)
        out, replay = capture(lambda: graphed.compute(layout.read(device)))
        return cls(layout, host.pin_memory() if device.is_cuda else host, device, out, replay)

    def __call__(self, batch: PackedBatch) -> Tensor:
        """The head's rows for the output positions, valid until the next call: (num_outputs, n)"""
        assert batch.outputs is not None
        if self._copied is not None:
            self._copied.synchronize()  # the last copy may still be reading the host's buffer
        self.layout.write(self._host, batch)
        self._device.copy_(self._host, non_blocking=True)
        if self._copied is not None:
            self._copied.record()
        self._replay()
        return self.out[: len(batch.outputs.index)]


def capture_cuda() -> Capture:
    """Make a function that captures graphs. They share one memory pool, because only one graph runs at a time."""
    pool = torch.cuda.graph_pool_handle()
    side = torch.cuda.Stream()

    def capture(work: Callable[[], Tensor]) -> tuple[Tensor, Replay]:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):  # libraries choose kernels and allocate workspaces in the first calls
                work()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # "thread_local": other threads of this process may call CUDA during the capture.
        with torch.cuda.graph(graph, pool=pool, stream=side, capture_error_mode="thread_local"):
            out = work()
        return out, graph.replay

    return capture
