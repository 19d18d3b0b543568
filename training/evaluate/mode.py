"""Evaluation mode of a model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from training.runtime.device import autocast, choose_precision


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluate without gradients or dropout, in the precision of training; the mode is restored at the end."""
    was_training = model.training
    precision = choose_precision(next(model.parameters()).device)
    model.eval()
    try:
        with torch.no_grad(), autocast(model, precision):
            yield
    finally:
        model.train(was_training)
