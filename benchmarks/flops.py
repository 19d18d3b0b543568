"""Floating-point operations of a step, and the speed of a device.

Padding is not counted, nor are positions in the last layer without an output. A multiplication and an addition are two
operations. Norms, activations and look-ups are left out, as is usual.
"""

from __future__ import annotations

import math
import time

import torch

from model.config import BertConfig
from model.packing import PackedBatch
from training.runtime.device import synchronize

BACKWARD = 2
"""The backward pass has a product for the inputs' gradient and one for the weights', each as large as the forward's."""


def encoder_flops(config: BertConfig, batch: PackedBatch) -> int:
    """Operations of the encoder's forward pass over a batch."""
    tokens = batch.total_tokens
    keys = batch.lengths
    queries = keys if batch.outputs is None else batch.outputs.sequences.lengths
    assert keys is not None  # counted before the batch goes to a GPU
    assert queries is not None
    full = _layer_flops(config, tokens, tokens, sum(n * n for n in keys))
    pairs = sum(q * k for q, k in zip(queries, keys, strict=True))
    return (config.num_hidden_layers - 1) * full + _layer_flops(config, sum(queries), tokens, pairs)


def _layer_flops(config: BertConfig, queries: int, keys: int, pairs: int) -> int:
    """Operations of one layer. `pairs`: number of pairs of a query and a key in attention."""
    hidden, inner = config.hidden_size, config.intermediate_size
    per_query = 2 * hidden * (hidden + hidden + 2 * inner)  # query, attention output, feed-forward
    per_key = 2 * hidden * 2 * hidden  # key, value
    return queries * per_query + keys * per_key + pairs * 2 * 2 * hidden  # scores, weighted sum


def pretraining_flops(config: BertConfig, batch: PackedBatch, masked: int) -> int:
    """Operations of forward and backward pass with both heads; `masked` positions are projected onto the vocabulary."""
    hidden = config.hidden_size
    pairs = len(batch.cu_seqlens) - 1
    heads = masked * 2 * hidden * (hidden + config.vocab_size) + pairs * 2 * hidden * (hidden + 2)
    return (1 + BACKWARD) * (encoder_flops(config, batch) + heads)


def matmul_peak(device: torch.device, precision: torch.dtype, seconds: float = 0.2) -> float:
    """FLOP/s of a large square matrix product on this device now. Steps are reported as a share of it."""
    size = 8192 if device.type == "cuda" else 1024
    generator = torch.Generator(device).manual_seed(0)
    matrix = torch.randn(size, size, generator=generator, device=device, dtype=precision)  # zeros would be faster
    matrix @ matrix  # the first call loads the kernel
    synchronize(device)
    best, ends = math.inf, time.perf_counter() + seconds
    while time.perf_counter() < ends or best == math.inf:
        began = time.perf_counter()
        for _ in range(4):
            matrix @ matrix
        synchronize(device)
        best = min(best, time.perf_counter() - began)
    return 4 * 2 * size**3 / best
