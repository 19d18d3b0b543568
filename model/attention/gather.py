"""Row gathering whose backward pass is as fast as its forward pass."""

from __future__ import annotations

import torch
from torch import Tensor


def gather_rows(rows: Tensor, index: Tensor, inverse: Tensor | None = None) -> Tensor:
    """`rows[index]`: (rows, ...) -> (len(index), ...).

    Args:
        rows: (rows, ...)
        index: the row of each output, (outputs,). Without `inverse`, no row may occur twice.
        inverse: the one output of each row that passes a gradient back, (rows,). Further outputs with the same row are
            padding.
    """
    if not (torch.is_grad_enabled() and rows.requires_grad):
        return rows.index_select(0, index)
    gathered = _GatherRows.apply(rows, index, inverse)  # type: ignore[no-untyped-call]
    assert isinstance(gathered, Tensor)
    return gathered


class _GatherRows(torch.autograd.Function):
    """`index_select` whose backward pass is a gather or a copy, in place of a slow scatter-add."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx, rows: Tensor, index: Tensor, inverse: Tensor | None
    ) -> Tensor:
        ctx.save_for_backward(index, inverse)  # type: ignore[arg-type]
        ctx.num_rows = len(rows)  # type: ignore[attr-defined]
        return rows.index_select(0, index)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *grads: Tensor) -> tuple[Tensor, None, None]:
        (grad,) = grads
        index, inverse = ctx.saved_tensors  # type: ignore[attr-defined]
        if inverse is not None:
            return grad.index_select(0, inverse), None, None
        whole = grad.new_zeros(ctx.num_rows, *grad.shape[1:])  # type: ignore[attr-defined]
        return whole.index_copy_(0, index, grad), None, None
