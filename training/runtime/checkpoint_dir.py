"""A checkpoint directory that appears whole, loaded again and compared, or not at all."""

from __future__ import annotations

import shutil
import tempfile
from fnmatch import fnmatch
from pathlib import Path

import torch

from model.checkpoint import Checkpoint, Model, load_checkpoint, save_checkpoint, to_hugging_face
from model.tokenizer import Tokenizer
from training.errors import RunError

_NAMES = (
    *("config.json", "*.safetensors", "model.safetensors.index.json", "vocab.txt", "recipe.json"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "README.md", "*.png"),
)
"""Files of a checkpoint, its model card's among them."""


def check_target(target: Path) -> None:
    """Whether a checkpoint may be written there: what is there now will be deleted.

    Raises:
        RunError: it is a file, or a directory with anything else in it than a checkpoint.
    """
    if not target.exists():
        return
    if not target.is_dir():
        raise RunError(f"{target} is a file; name another directory to write, or move the file away")
    names = sorted(path.name + "/" * path.is_dir() for path in target.iterdir())
    foreign = [name for name in names if not any(fnmatch(name, known) for known in _NAMES)]
    if names and not ("config.json" in names and any(name.endswith(".safetensors") for name in names)):
        foreign = foreign or names
    if foreign:
        raise RunError(
            f"{target} holds other files than a checkpoint's, which would be deleted: {', '.join(foreign[:3])}"
            f"{', ...' * (len(foreign) > 3)}; name another directory to write, or move these away"
        )


def checkpoint_size(folder: Path, model: Model) -> str:
    """Parameters and megabytes of a model's checkpoint, for the log."""
    parameters = sum(p.numel() for p in model.parameters())
    return f"{parameters:,} parameters ({sum(f.stat().st_size for f in folder.iterdir()) / 1e6:.1f} MB)"


def write_checkpoint_dir(target: Path, model: Model, tokenizer: Tokenizer, dtype: torch.dtype) -> None:
    """Write beside the target, load and compare, then swap: a reader never sees half a checkpoint.

    Raises:
        RunError: what was written is not what is read, or the target is not to be replaced (`check_target`).
    """
    for leftover in target.parent.glob(f".{target.name}-*"):  # of a write that was killed
        if (leftover / "old").is_dir() and not target.exists():
            (leftover / "old").rename(target)
        shutil.rmtree(leftover)
    check_target(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as folder:
        made = Path(folder) / "checkpoint"
        save_checkpoint(made, model, tokenizer, dtype=dtype)
        _compare(load_checkpoint(made), model, tokenizer, dtype)
        old = Path(folder) / "old"
        try:
            if target.exists():
                target.rename(old)
            shutil.move(made, target)
        except BaseException:  # Ctrl-C, too
            if old.exists() and not target.exists():
                old.rename(target)
            raise


def _compare(loaded: Checkpoint, model: Model, tokenizer: Tokenizer, dtype: torch.dtype) -> None:
    """Every tensor, the configuration and the tokenizer survived the disk."""
    ours, theirs = to_hugging_face(model), to_hugging_face(loaded.model)
    differing = [name for name in ours if not torch.equal(ours[name].to(dtype).float(), theirs[name].float())]
    if differing:
        raise RunError(f"{loaded.path}: tensors changed on the way to disk: {', '.join(differing)}")
    if loaded.tokenizer.to_json() != tokenizer.to_json():
        raise RunError(f"{loaded.path}: the tokenizer changed on the way to disk")
    if loaded.config != model.config:
        raise RunError(f"{loaded.path}: the configuration changed on the way to disk")
