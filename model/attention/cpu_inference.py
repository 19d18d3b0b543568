"""Attention that answers on a CPU in 16 bits, by batched products, where torch's fused kernel is slow.

Without AMX that one takes two to three times as long.
"""

from __future__ import annotations

import math
import time
from functools import cache, partial

import torch
import torch.nn.functional as F
from torch import Tensor

LENGTHS = (16, 32, 64, 96, 128, 192, 256, 384, 512)
"""What sequences are padded to: few, since oneDNN makes kernels for each, of half a megabyte."""
_PORTIONS = (256, 64, 16, 4, 1)
"""Matrices of a product, for the same reason."""
_MOST_ROWS = 4096
"""Of all matrices of a portion."""
_GAIN = 1.25
"""How many times as fast products must be: less could be noise, and processes should agree."""


def padded_length(length: int) -> int:
    """The next of `LENGTHS`, and beyond them the next multiple of 128.

    >>> [padded_length(n) for n in (7, 16, 33, 130, 513)]
    [16, 16, 64, 192, 640]
    """
    return next((known for known in LENGTHS if known >= length), -(-length // 128) * 128)


def sizes(longest: int) -> list[int]:
    """Matrices that a product may have, the largest first.

    >>> sizes(64)
    [64, 16, 4, 1]
    """
    return [size for size in _PORTIONS if size * longest <= _MOST_ROWS] or [1]


@cache
def portions(matrices: int, longest: int) -> list[int]:
    """How many matrices each product has: the largest that fit.

    >>> portions(90, longest=64)
    [64, 16, 4, 4, 1, 1]
    """
    cut: list[int] = []
    for size in sizes(longest):
        count, matrices = divmod(matrices, size)
        cut += [size] * count
    return cut


def attend(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Tensor:
    """Scaled dot-product attention without a gradient.

    Args:
        query, key, value: (batch, heads, longest, head_dim)
        bias: 0 for keys, -inf for padding: (batch, 1, 1, longest); None without padding.

    Returns:
        (batch, heads, longest, head_dim)
    """
    batch, heads, longest, head_dim = query.shape
    matrices = batch * heads
    # A layout of their own would want kernels of its own.
    q, k, v = (x.reshape(matrices, longest, head_dim).contiguous() for x in (query, key, value))
    if bias is None:
        bias = q.new_zeros(1, 1, 1, 1)
    bias = bias.to(q.dtype).expand(batch, heads, 1, longest).reshape(matrices, 1, longest)
    cut = portions(matrices, longest)
    if len(cut) == 1:
        return _attend(q, k, v, bias).view_as(query)
    parts = zip(*(x.split(cut) for x in (q, k, v, bias)), strict=True)
    return torch.cat([_attend(*part) for part in parts]).view_as(query)


def _attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """q, k, v (matrices, longest, head_dim), bias (matrices, 1, longest) -> (matrices, longest, head_dim)"""
    scores = torch.baddbmm(bias, q, k.transpose(1, 2), alpha=q.shape[-1] ** -0.5)
    if scores.shape[-1] % 32:  # torch's softmax over so few is not vectorised in 16 bits
        return torch.bmm(scores.float().softmax(-1).to(scores.dtype), v)
    return torch.bmm(scores.softmax(-1), v)


@cache
@torch.inference_mode()
def pays(dtype: torch.dtype, head_dim: int) -> bool:
    """Whether it is faster here than torch's fused kernel, and a sequence's sums are the same in any batch."""
    return _is_faster(dtype, head_dim) and _is_invariant(dtype, head_dim)


def _is_faster(dtype: torch.dtype, head_dim: int) -> bool:
    """By their best times, in turns."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(16, 4, 64, head_dim, generator=generator).to(dtype) for _ in range(3))
    kernels = (partial(attend, q, k, v, None), partial(F.scaled_dot_product_attention, q, k, v))
    best = [math.inf, math.inf]
    for _ in range(5):
        for i, kernel in enumerate(kernels):
            began = time.perf_counter()
            kernel()
            best[i] = min(best[i], time.perf_counter() - began)
    products, fused = best
    return products * _GAIN < fused


def _is_invariant(dtype: torch.dtype, head_dim: int) -> bool:
    """Whether equal sequences have equal answers in portions of every size."""
    generator = torch.Generator().manual_seed(0)
    for longest in LENGTHS:
        q, k, v = (torch.randn(1, 1, longest, head_dim, generator=generator).to(dtype) for _ in range(3))
        batch = sum(sizes(longest))  # a portion of each
        q, k, v = (x.expand(batch, 1, longest, head_dim) for x in (q, k, v))
        answers = attend(q, k, v, bias=None)
        if not torch.equal(answers, answers[:1].expand_as(answers)):
            return False
    return True
