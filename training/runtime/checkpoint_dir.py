"""Writes a checkpoint directory and compares it with the model; replaces a directory atomically."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path

import torch

from model.checkpoint import Checkpoint, Model, load_checkpoint, save_checkpoint, to_hugging_face
from model.tokenizer import Tokenizer
from training.errors import RunError
from training.recipe import REGRESSION
from training.runtime.lock import run_lock

DTYPE = torch.float16
"""Precision of weights on disk: half the size, without changing a prediction of the shipped models. Weights of a
regression stay in float32, because float16 does not hold the number 100,000, or the years around 2000."""

logger = logging.getLogger(__name__)

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


def write_checkpoint_dir(folder: Path, model: Model, tokenizer: Tokenizer) -> None:
    """Write a network in the precision in which it is served, load it again and compare. Earlier files are deleted.

    Raises:
        RunError: the files differ from the model.
    """
    dtype = torch.float32 if model.config.problem_type == REGRESSION else DTYPE
    shutil.rmtree(folder, ignore_errors=True)
    save_checkpoint(folder, model, tokenizer, dtype=dtype)
    _compare(load_checkpoint(folder), model, tokenizer, dtype)
    for file in folder.iterdir():
        with file.open("rb") as written:
            os.fsync(written.fileno())  # a training deletes its states afterwards
    size, parameters = sum(file.stat().st_size for file in folder.iterdir()), sum(p.numel() for p in model.parameters())
    logger.info("network of %s parameters (%.1f MB) in %s", f"{parameters:,}", size / 1e6, folder)


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """A new folder beside the target, which takes its place at the end. So a reader never sees half a checkpoint.

    Raises:
        RunError: the target must not be replaced (`check_target`), or another process writes it.
    """
    folder = target.with_name(f".{target.name}.writing")
    made, old = folder / "checkpoint", folder / "old"
    with run_lock(folder):
        try:
            check_target(target)
            shutil.rmtree(made, ignore_errors=True)
            yield made
            if target.exists():
                shutil.rmtree(old, ignore_errors=True)
                target.rename(old)
            made.rename(target)
        finally:
            if old.exists() and not target.exists():  # Ctrl-C, or an earlier write was killed between the two renames
                old.rename(target)
            shutil.rmtree(folder, ignore_errors=True)  # NFS keeps the open file of the lock, and so the folder


def _compare(loaded: Checkpoint, model: Model, tokenizer: Tokenizer, dtype: torch.dtype) -> None:
    """Compare every tensor, the configuration and the tokenizer with those written. Raises RunError if one differs."""
    ours, theirs = to_hugging_face(model), to_hugging_face(loaded.model)
    differing = [name for name in ours if not torch.equal(ours[name].to(dtype).float(), theirs[name].float())]
    differing += ["the tokenizer"] * (loaded.tokenizer.to_json() != tokenizer.to_json())
    differing += ["the configuration"] * (loaded.config != model.config)
    if differing:
        raise RunError(f"{loaded.path} is not what was written: {', '.join(differing)} changed on the way to disk")
