"""The choice of an implementation of attention."""

from __future__ import annotations

import torch

from model.attention.base import Attention
from model.attention.bucketed import BucketedAttention, Matmuls
from model.attention.cpu_inference import LONG_TOKENS, is_faster
from model.attention.cpu_training import MatmulAttention
from model.attention.padded import PaddedAttention
from model.attention.varlen import VarlenAttention, can_use_varlen
from model.packing import SequenceBounds


def attention_for(
    queries: SequenceBounds,
    keys: SequenceBounds,
    device: torch.device,
    dtype: torch.dtype,
    heads: int,
    head_dim: int,
    batch_invariant: bool = False,
    long_in_bfloat16: bool = False,
) -> Attention:
    """The fastest implementation for a batch.

    Args:
        queries: number of queries of each sequence; the same object as `keys` where every token is a query.
        keys: tokens of each sequence.
        device, dtype, heads, head_dim: properties of the tensors that attention will get.
        batch_invariant: batch invariance in float32 too, which is a little slower; see `BucketedAttention`.
        long_in_bfloat16: in float32, compute attention between all tokens of sequences above `LONG_TOKENS` in bfloat16,
            if that is faster on this processor.
    """
    if can_use_varlen(device, dtype, head_dim):
        return VarlenAttention(queries, keys)
    if keys.lengths is None or queries.lengths is None:
        return PaddedAttention(queries, keys)
    half = device.type == "cpu" and dtype.itemsize == 2
    # Only serving (inference mode) chooses by time: metrics and teachers' labels must be the same in each training.
    if device.type == "cpu" and (torch.is_grad_enabled() or (half and not torch.is_inference_mode_enabled())):
        return MatmulAttention(queries, keys)
    matmuls = None
    if queries is keys and half and is_faster(dtype, heads, head_dim, dtype):
        matmuls = Matmuls(dtype)
    elif queries is keys and long_in_bfloat16 and is_faster(torch.bfloat16, heads, head_dim, dtype):
        matmuls = Matmuls(torch.bfloat16, above=LONG_TOKENS)
    return BucketedAttention(queries, keys, batch_invariant=batch_invariant or half, matmuls=matmuls)
