"""Dropout (Srivastava et al. 2014), for which a CPU need not draw a number for each element."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_SIDES = 256


class Dropout(nn.Dropout):
    """`nn.Dropout`, by `dropout`."""

    def forward(self, x: Tensor) -> Tensor:
        """Any shape -> the same."""
        return dropout(x, self.p) if self.training else x


def dropout(x: Tensor, p: float) -> Tensor:
    """Zeros a share `p` of the elements at random, and scales the others so that the mean stays.

    torch draws 64 random bits for each element, one after another, which is a quarter of fine-tuning on a CPU.
    Here 8 bits decide, so on a CPU `p` is rounded to a 256th.
    """
    if x.device.type != "cpu" or p in (0.0, 1.0):
        return F.dropout(x, p)
    sides = min(max(round(p * _SIDES), 1), _SIDES - 1)
    draws = torch.empty(-(-x.numel() // 8), dtype=torch.int64).random_(-(2**63), None)
    dropped = draws.view(torch.uint8)[: x.numel()].view(x.shape) < sides
    return x.masked_fill(dropped, 0.0) * (_SIDES / (_SIDES - sides))
