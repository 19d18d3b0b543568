"""A finished run to the directories that are served, loaded again and compared before success is reported."""

from __future__ import annotations

import logging
import shutil
import tempfile
from pathlib import Path

import torch
from torch import Tensor

from model.checkpoint import Checkpoint, Model, load_checkpoint, save_checkpoint, to_hugging_face
from model.heads import BertForPreTraining
from model.packing import PackedBatch
from model.tokenizer import Tokenizer
from training.config import Recipe
from training.errors import RunError
from training.model_card import write_card

logger = logging.getLogger(__name__)


def export(recipe: Recipe) -> list[Path]:
    """Write the run's models to where the recipe says, or to `export` in its folder.

    Raises:
        RunError: a directory does not hold what was written.
    """
    dtype: torch.dtype = getattr(torch, recipe.export.dtype)
    written = []
    for name, target in (("pretrained", recipe.export.pretrained), ("sentiment", recipe.export.sentiment)):
        if not (recipe.folder / name).is_dir():
            logger.warning("%s has no %s model yet; it is left out", recipe.folder, name)
            continue
        source = load_checkpoint(recipe.folder / name)
        target = target or recipe.folder / "export" / name
        write_directory(target, source.model, source.tokenizer, dtype)
        write_card(recipe, name, target)
        logger.info("%s: %.1f MB", target, sum(f.stat().st_size for f in target.iterdir()) / 1e6)
        written.append(target)
    if not written:
        raise RunError(f"{recipe.folder} holds no trained model; run pretrain first")
    return written


def write_directory(target: Path, model: Model, tokenizer: Tokenizer, dtype: torch.dtype) -> None:
    """Write beside the target, load and compare, then swap: a reader never sees half a checkpoint."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as folder:
        made = Path(folder) / "checkpoint"
        save_checkpoint(made, model, tokenizer, dtype=dtype)
        _compare(load_checkpoint(made), model, tokenizer, dtype)
        if target.exists():
            target.rename(Path(folder) / "old")
        shutil.move(made, target)


def _compare(loaded: Checkpoint, model: Model, tokenizer: Tokenizer, dtype: torch.dtype) -> None:
    """Every tensor, the tokenizer and the logits of one text survived the disk."""
    ours, theirs = to_hugging_face(model), to_hugging_face(loaded.model)
    differing = [name for name in ours if not torch.equal(ours[name].to(dtype).float(), theirs[name].float())]
    if differing:
        raise RunError(f"{loaded.path}: tensors changed on the way to disk: {', '.join(differing)}")
    if loaded.tokenizer.to_json() != tokenizer.to_json():
        raise RunError(f"{loaded.path}: the tokenizer changed on the way to disk")
    if dtype is torch.float32 and not torch.equal(_logits(model, tokenizer), _logits(loaded.model, tokenizer)):
        raise RunError(f"{loaded.path}: the logits changed on the way to disk")


@torch.no_grad()
def _logits(model: Model, tokenizer: Tokenizer) -> Tensor:
    model.eval()
    ids = [tokenizer.cls_id, tokenizer.mask_id, tokenizer.sep_id]
    out = model(PackedBatch.pack([ids], reads=[[0]]))
    return model.masked_lm(out) if isinstance(model, BertForPreTraining) else out
