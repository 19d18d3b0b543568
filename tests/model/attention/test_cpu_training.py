from __future__ import annotations

import random

from model.attention.cpu_training import MAX_BUCKET_TOKENS, _CellLayout, round_up_batch
from model.attention.length_buckets import length_buckets
from tests.model.attention.cases import HEADS


def test_matmul_attention_meets_few_shapes() -> None:
    """Over a hundred different batches; each shape means two oneDNN kernels forward and four backward."""
    assert all(n <= round_up_batch(n) <= 1.5 * n for n in range(1, 2000))
    rng = random.Random(0)
    shapes = set()
    for _ in range(100):
        keys = tuple(sorted((rng.randint(1, 128) for _ in range(16)), reverse=True))
        queries = tuple(rng.randint(1, 20) for _ in keys)
        grids = [_CellLayout.make(keys, keys, HEADS, 3), _CellLayout.make(queries, keys, HEADS, 2)]
        shapes |= {(b.batch, b.num_queries, b.bias.shape[2]) for grid in grids for b in grid.buckets}
    assert len(shapes) < 100


def test_matmul_attention_buckets_stay_small_or_hold_one_sequence() -> None:
    rng = random.Random(0)
    for _ in range(50):
        lengths = tuple(rng.randint(1, 512) for _ in range(rng.randint(1, 80)))
        for bucket in length_buckets(lengths, max_tokens=MAX_BUCKET_TOKENS):
            assert max(lengths[i] for i in bucket) * len(bucket) <= MAX_BUCKET_TOKENS or len(bucket) == 1
