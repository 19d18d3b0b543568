"""`export`: writes a run's models to the directories that are served, loads them again and compares."""

from __future__ import annotations

import logging
import shlex
from pathlib import Path

import torch

from model.checkpoint import load_checkpoint
from training.errors import RunError
from training.export.model_card import write_card
from training.loop.checkpoint import weights_hash
from training.loop.stage import follow
from training.recipe import REGRESSION, Recipe
from training.runtime.checkpoint_dir import check_target, checkpoint_size, write_checkpoint_dir
from training.stages import Pipeline

NAMES = ("pretrained", "sentiment")

DTYPE = torch.float16
"""Precision of exported weights: half the size, without changing a prediction of the shipped models. Weights of a
regression stay in float32, because float16 does not hold the number 100,000, or the years around 2000."""

logger = logging.getLogger(__name__)


def export(pipeline: Pipeline) -> list[Path]:
    """Write the run's models to `export.folder` and `export.classifier`.

    Raises:
        RunError: the run has no model; or a directory's contents differ from those written, or it holds other files.
    """
    recipe, made = pipeline.recipe, pipeline.models()
    check_targets(recipe)
    absent = pipeline.absent()
    if not made:
        raise RunError("; ".join(absent) or "the recipe makes no model")
    for message in absent:
        logger.warning("left out: %s", message)
    sources = {name: load_checkpoint(model) for name, model in made.items()}
    weights = {name: weights_hash(source.model) for name, source in sources.items()}
    targets = {name: recipe.exported(name) for name in made}
    for name, target in targets.items():
        dtype = torch.float32 if sources[name].config.problem_type == REGRESSION else DTYPE
        write_checkpoint_dir(target, sources[name].model, sources[name].tokenizer, dtype)
        write_card(recipe, name, made[name].parent, target, weights)
        logger.info("%s: %s", target, checkpoint_size(target, sources[name].model))
    here = Path.cwd()
    shown = {name: t.relative_to(here) if t.is_relative_to(here) else t for name, t in targets.items()}
    settings = " ".join(f"BERT_{name.upper()}={shlex.quote(str(target))}" for name, target in shown.items())
    logger.info("next: %s bert-serve", settings)
    return list(targets.values())


def check_targets(recipe: Recipe) -> None:
    """Raise RunError if an export directory holds other files than a checkpoint's, or belongs to the run itself."""
    own = {follow(recipe.folder / name).resolve() for name in NAMES}
    for name in NAMES:
        target = recipe.exported(name)
        if follow(target).resolve() in own:
            key = "classifier" if name == "sentiment" and recipe.export.classifier else "folder"
            raise RunError(f"export.{key} is in {recipe.folder}, whose networks later stages start from; name another")
        check_target(target)
