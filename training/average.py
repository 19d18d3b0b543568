"""Several checkpoints to one, by the mean of their weights (Izmailov et al. 2018, https://arxiv.org/abs/1803.05407;
Wortsman et al. 2022, https://arxiv.org/abs/2203.05482)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from model.checkpoint import load_checkpoint
from training.directory import write_directory
from training.errors import RunError


def average(checkpoints: Sequence[Path], target: Path) -> Path:
    """Write the mean of checkpoints of one lineage: one went on from another, or all began with the same
    pretrained weights. The mean of others knows nothing. Configuration and tokenizer are those of the first.

    Raises:
        RunError: they do not fit together, or there is only one.
    """
    if len(checkpoints) < 2:
        raise RunError("average needs two checkpoints or more")
    first, *others = [load_checkpoint(folder) for folder in checkpoints]
    total = first.model.state_dict()
    for other in others:
        weights = other.model.state_dict()
        if {name: w.shape for name, w in weights.items()} != {name: w.shape for name, w in total.items()}:
            raise RunError(f"{other.path} has other weights than {first.path}: only equal shapes have a mean")
        if other.tokenizer.to_json() != first.tokenizer.to_json():
            raise RunError(f"{other.path} has another vocabulary than {first.path}")
        if other.config.labels != first.config.labels:
            raise RunError(f"{other.path} has other labels than {first.path}")
        total = {name: weight + weights[name] for name, weight in total.items()}
    first.model.load_state_dict({name: weight / len(checkpoints) for name, weight in total.items()})
    write_directory(target, first.model, first.tokenizer, torch.float32)
    return target
