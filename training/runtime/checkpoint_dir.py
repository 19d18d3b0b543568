"""Writes a checkpoint directory atomically, and compares it with the model after loading it again."""

from __future__ import annotations

import os
import shutil
from fnmatch import fnmatch
from pathlib import Path

import torch

from model.checkpoint import Checkpoint, Model, load_checkpoint, save_checkpoint, to_hugging_face
from model.tokenizer import Tokenizer
from training.errors import RunError
from training.runtime.lock import run_lock

_NAMES = (
    *("config.json", "*.safetensors", "model.safetensors.index.json", "vocab.txt", "recipe.json"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "README.md", "*.png"),
)
"""Files of a checkpoint, its model card's among them."""


def check_target(target: Path) -> None:
    """Check that a checkpoint may be written to a target, whose present contents will be deleted.

    Raises:
        RunError: it is a file, or a directory with files other than a checkpoint's.
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
    """Write beside the target, load and compare, then swap, so that a reader never sees half a checkpoint.

    Raises:
        RunError: the files differ from the model, the target must not be replaced (`check_target`), or another process
            writes it.
    """
    folder = target.with_name(f".{target.name}.writing")
    made, old = folder / "checkpoint", folder / "old"
    with run_lock(folder):
        try:
            if old.is_dir() and not target.exists():  # the last write was killed between the two renames
                old.rename(target)
            for leftover in (made, old):
                shutil.rmtree(leftover, ignore_errors=True)
            check_target(target)
            save_checkpoint(made, model, tokenizer, dtype=dtype)
            _compare(load_checkpoint(made), model, tokenizer, dtype)
            for file in made.iterdir():
                with file.open("rb") as written:
                    os.fsync(written.fileno())  # a training deletes its states afterwards
            if target.exists():
                target.rename(old)
            shutil.move(made, target)
        finally:
            if old.exists() and not target.exists():  # Ctrl-C
                old.rename(target)
            for leftover in (made, old, folder):
                shutil.rmtree(leftover, ignore_errors=True)  # NFS keeps the open file of the lock, and so the folder


def _compare(loaded: Checkpoint, model: Model, tokenizer: Tokenizer, dtype: torch.dtype) -> None:
    """Compare every tensor, the configuration and the tokenizer with those written. Raises RunError if one differs."""
    ours, theirs = to_hugging_face(model), to_hugging_face(loaded.model)
    differing = [name for name in ours if not torch.equal(ours[name].to(dtype).float(), theirs[name].float())]
    if differing:
        raise RunError(f"{loaded.path}: tensors changed on the way to disk: {', '.join(differing)}")
    if loaded.tokenizer.to_json() != tokenizer.to_json():
        raise RunError(f"{loaded.path}: the tokenizer changed on the way to disk")
    if loaded.config != model.config:
        raise RunError(f"{loaded.path}: the configuration changed on the way to disk")
