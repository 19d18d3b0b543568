"""Dropout (Srivastava et al. 2014) with few random bits on a CPU."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Dropout(nn.Dropout):
    """`nn.Dropout` that uses `dropout`."""

    def forward(self, x: Tensor) -> Tensor:
        """Apply dropout, to any shape."""
        return dropout(x, self.p) if self.training else x


def dropout(x: Tensor, p: float) -> Tensor:
    """Set a random share `p` of the elements to 0, and scale the others so that the mean stays the same.

    On a CPU each element uses 8 random bits, so `p` is rounded to a multiple of 1/256. Torch draws 64 bits per
    element, one after another, which is a quarter of the time of fine-tuning on a CPU.
    """
    if x.device.type != "cpu" or p in (0.0, 1.0):
        return F.dropout(x, p)
    threshold = min(max(round(p * 256), 1), 255)  # number of the 256 values of a byte that drop an element
    random = torch.empty(-(-x.numel() // 8), dtype=torch.int64).random_(-(2**63), None)
    dropped = random.view(torch.uint8)[: x.numel()].view(x.shape) < threshold
    return x.masked_fill(dropped, 0.0) * (256 / (256 - threshold))
