"""A finished run to the directories that are served, loaded again and compared before success is reported."""

from __future__ import annotations

import logging
from pathlib import Path

import torch

from model.checkpoint import load_checkpoint
from training.config import Recipe
from training.directory import write_directory
from training.errors import RunError
from training.model_card import write_card

logger = logging.getLogger(__name__)


def export(recipe: Recipe) -> list[Path]:
    """Write the run's models to where the recipe says, or to `export` in its folder.

    Raises:
        RunError: a directory does not hold what was written.
    """
    dtype: torch.dtype = getattr(torch, recipe.export.dtype)
    targets = {"pretrained": recipe.export.pretrained, "sentiment": recipe.export.sentiment}
    made = [name for name in targets if (recipe.folder / name).is_dir()]
    if not made:
        raise RunError(f"{recipe.folder} holds no trained model; run pretrain first")
    if missing := targets.keys() - made:
        logger.warning("%s has no %s model yet; it is left out", recipe.folder, *missing)
    return [_export(recipe, name, targets[name] or recipe.folder / "export" / name, dtype) for name in made]


def _export(recipe: Recipe, name: str, target: Path, dtype: torch.dtype) -> Path:
    source = load_checkpoint(recipe.folder / name)
    write_directory(target, source.model, source.tokenizer, dtype)
    write_card(recipe, name, target)
    logger.info("%s: %.1f MB", target, sum(f.stat().st_size for f in target.iterdir()) / 1e6)
    return target
