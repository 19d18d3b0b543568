"""Attention for inference in 16 bits on a CPU: batched matrix products instead of torch's fused kernel.

Without AMX, the fused kernel takes two to three times as long.
"""

from __future__ import annotations

from functools import cache, partial

import torch
import torch.nn.functional as F
from torch import Tensor

from model.timing import best_seconds

# oneDNN compiles a kernel of half a megabyte for each shape, so few lengths and few numbers of matrices are used.
PADDED_LENGTHS = (16, 32, 48, 64, 96, 128, 160, 192, 256, 320, 384, 448, 512)
_TEXTS_PER_PRODUCT = (64, 16, 4, 2, 1)
_HEADS_PER_PRODUCT = (4, 1)  # if one text alone has too many matrices
_MAX_ROWS_PER_PRODUCT = 4096  # of all matrices together, which fit into the cache

LONG_TOKENS = 64
"""Sequences of more than 64 tokens are faster in bfloat16 than in float32, even in a batch of one (Zen 4)."""


def padded_length(length: int) -> int:
    """The length that a sequence is padded to: the next of `PADDED_LENGTHS`, above them the next multiple of 128.

    >>> [padded_length(n) for n in (7, 16, 33, 130, 513)]
    [16, 16, 48, 160, 640]
    """
    return next((padded for padded in PADDED_LENGTHS if padded >= length), -(-length // 128) * 128)


def chunk_sizes(heads: int, longest: int) -> list[int]:
    """Numbers of matrices that a product may have, the largest first, for sequences of this length.

    >>> chunk_sizes(6, longest=64)
    [24, 12, 6, 4, 1]
    """
    sizes = sorted({*_HEADS_PER_PRODUCT, *(texts * heads for texts in _TEXTS_PER_PRODUCT)}, reverse=True)
    return [size for size in sizes if size * longest <= _MAX_ROWS_PER_PRODUCT] or [1]


@cache
def chunks(texts: int, heads: int, longest: int) -> list[int]:
    """Number of matrices of each product: the largest sizes that fit.

    >>> chunks(10, heads=6, longest=64)
    [24, 24, 12]
    """
    cut: list[int] = []
    matrices = texts * heads
    for size in chunk_sizes(heads, longest):
        count, matrices = divmod(matrices, size)
        cut += [size] * count
    return cut


def attend(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Scaled dot-product attention, for inference.

    Args:
        query, key, value: (batch, heads, longest, head_dim)
        bias: 0 for keys, -inf for padding: (batch, 1, 1, longest). None without padding.
        dtype: precision to compute in.

    Returns:
        (batch, heads, longest, head_dim) in `dtype`
    """
    batch, heads, longest, head_dim = query.shape
    # oneDNN would compile a kernel for every other memory layout, so all are made contiguous.
    q, k, v = (
        x.to(dtype, memory_format=torch.contiguous_format).reshape(batch * heads, longest, head_dim).contiguous()
        for x in (query, key, value)
    )
    if bias is None:
        bias = q.new_zeros(1, 1, 1, 1)
    bias = bias.to(dtype).expand(batch, heads, 1, longest).reshape(batch * heads, 1, longest)
    out = torch.empty_like(q)
    cut = chunks(batch, heads, longest)
    for part in zip(*(x.split(cut) for x in (q, k, v, bias, out)), strict=True):
        attend_matrices(*part)
    return out.view(batch, heads, longest, head_dim)


def attend_matrices(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, out: Tensor) -> None:
    """`attend` in one product: q, k, v, out (matrices, longest, head_dim), bias (matrices, 1, longest)"""
    scores = torch.baddbmm(bias, q, k.transpose(1, 2), alpha=q.shape[-1] ** -0.5)
    vectorised = scores.shape[-1] % 32 == 0  # in 16 bits torch vectorises softmax only over multiples of 32
    weights = scores.softmax(-1) if vectorised else scores.float().softmax(-1).to(scores.dtype)
    torch.bmm(weights, v, out=out)


@cache
@torch.inference_mode()
def is_faster(dtype: torch.dtype, heads: int, head_dim: int, input_dtype: torch.dtype | None = None) -> bool:
    """Whether this processor computes `attend` in `dtype` faster than torch's fused kernel in the precision of the
    input (by default the same), and batch invariantly."""
    return _speedup(dtype, head_dim, input_dtype or dtype) > 1.25 and _is_batch_invariant(dtype, heads, head_dim)


def _speedup(dtype: torch.dtype, head_dim: int, input_dtype: torch.dtype) -> float:
    """Time of the fused kernel divided by that of `attend`: the best of five interleaved calls.

    A caller requires 1.25: less can be noise, and all processes of a service should make the same choice.
    """
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(16, 4, 64, head_dim, generator=generator).to(input_dtype) for _ in range(3))
    kernels = (partial(attend, q, k, v, None, dtype), partial(F.scaled_dot_product_attention, q, k, v))
    matmuls, fused = best_seconds(kernels, rounds=5)
    return fused / matmuls


def _is_batch_invariant(dtype: torch.dtype, heads: int, head_dim: int) -> bool:
    """Whether equal sequences get equal results in products of every size."""
    generator = torch.Generator().manual_seed(0)
    for longest in PADDED_LENGTHS:
        q, k, v = (torch.randn(1, 1, longest, head_dim, generator=generator).to(dtype) for _ in range(3))
        parts, expected = (q, k, v), None
        for texts in reversed(_TEXTS_PER_PRODUCT):
            if texts == 1 or texts * heads * longest <= _MAX_ROWS_PER_PRODUCT:
                q, k, v = (part.expand(texts, heads, longest, head_dim) for part in parts)
                out = attend(q, k, v, None, dtype)
                expected = out[:1, :1] if expected is None else expected
                if not torch.equal(out, expected.expand_as(out)):
                    return False
    return True
