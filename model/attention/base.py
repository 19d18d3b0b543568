"""The interface of attention over packed sequences.

Scaled dot-product attention (Vaswani et al. 2017, section 3.2.1), bidirectional within each sequence, never
across two. There may be fewer queries than keys: the last layer computes queries at output positions only.

Shapes in this package: T packed tokens, Q packed queries, N heads, D head_dim, S sequences.
"""

from __future__ import annotations

from torch import Tensor


class Attention:
    """Attention of one batch, built once and used by every layer. A subclass defines `_attend`, or both other
    methods."""

    def self_attention(self, qkv: Tensor) -> Tensor:
        """Every token is a query: (T, 3, N, D) -> (T, N, D)"""
        return self._attend(*qkv.unbind(1))

    def cross_attention(self, query: Tensor, key_value: Tensor) -> Tensor:
        """Some tokens are queries: query (Q, N, D), key_value (T, 2, N, D) -> (Q, N, D)

        On a CPU, rows after the last sequence get zeros.
        """
        return self._attend(query, *key_value.unbind(1))

    def _attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """query (Q, N, D), key and value (T, N, D) -> (Q, N, D)"""
        raise NotImplementedError
