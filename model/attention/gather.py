"""Rows to other places, with a gradient that is as fast as the way there."""

from __future__ import annotations

import torch
from torch import Tensor


def take(rows: Tensor, index: Tensor, back: Tensor | None = None) -> Tensor:
    """`rows[index]`: (rows, ...) -> (len(index), ...).

    `back` is the one place of each row that anybody reads, (rows,); other places are padding, and send no
    gradient. Without it, each row has one place or none.
    """
    if not (torch.is_grad_enabled() and rows.requires_grad):
        return rows.index_select(0, index)
    taken = _Taken.apply(rows, index, back)  # type: ignore[no-untyped-call]
    assert isinstance(taken, Tensor)
    return taken


class _Taken(torch.autograd.Function):
    """Without the slow scatter-add of `index_select`'s own backward."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx, rows: Tensor, index: Tensor, back: Tensor | None
    ) -> Tensor:
        ctx.save_for_backward(index, back)  # type: ignore[arg-type]
        ctx.rows = len(rows)  # type: ignore[attr-defined]
        return rows.index_select(0, index)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *grads: Tensor) -> tuple[Tensor, None, None]:
        (grad,) = grads
        index, back = ctx.saved_tensors  # type: ignore[attr-defined]
        if back is not None:
            return grad.index_select(0, back), None, None
        whole = grad.new_zeros(ctx.rows, *grad.shape[1:])  # type: ignore[attr-defined]
        return whole.index_copy_(0, index, grad), None, None
