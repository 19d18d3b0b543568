"""A finished run to the directories that are served, loaded again and compared before success is reported."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import torch

from model.checkpoint import Checkpoint, load_checkpoint
from training.errors import RunError
from training.export.checkpoint_dir import check_target, write_directory
from training.export.model_card import write_card
from training.loop.checkpoint import fingerprint
from training.recipe import Recipe

logger = logging.getLogger(__name__)

NAMES = ("pretrained", "sentiment")


def export(recipe: Recipe) -> list[Path]:
    """Write the run's models to where the recipe says, or to `export` in its folder.

    Raises:
        RunError: a directory does not hold what was written, or holds what is not to be replaced.
    """
    check_targets(recipe)
    made = [name for name in NAMES if (recipe.folder / name).is_dir()]
    if not made:
        raise RunError(f"{recipe.folder} holds no trained model; run pretrain first")
    if missing := set(NAMES).difference(made):
        logger.warning("%s has no %s model yet; it is left out", recipe.folder, *missing)
    sources = {name: load_checkpoint(recipe.folder / name) for name in made}
    weights = {name: fingerprint(source.model) for name, source in sources.items()}
    return [_export(recipe, name, source, weights) for name, source in sources.items()]


def _export(recipe: Recipe, name: str, source: Checkpoint, weights: Mapping[str, str]) -> Path:
    target = _target(recipe, name)
    write_directory(target, source.model, source.tokenizer, getattr(torch, recipe.export.dtype))
    write_card(recipe, name, target, weights)
    logger.info("%s: %.1f MB", target, sum(f.stat().st_size for f in target.iterdir()) / 1e6)
    return target


def check_targets(recipe: Recipe) -> None:
    """Raise RunError if a directory to export to holds anything else than a checkpoint, or is that of both."""
    if len({_target(recipe, name).resolve() for name in NAMES}) < len(NAMES):
        raise RunError(f"{_target(recipe, NAMES[0])} is to hold {' and '.join(NAMES)}: give each a directory")
    for name in NAMES:
        check_target(_target(recipe, name))


def _target(recipe: Recipe, name: str) -> Path:
    target: Path | None = getattr(recipe.export, name)
    return target or recipe.folder / "export" / name
