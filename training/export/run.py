"""`export`: copies a run's models, with model cards, to the directories that are served."""

from __future__ import annotations

import logging
import shlex
import shutil
from pathlib import Path

from training.corpus.fingerprint import checkpoint_hash
from training.errors import RunError
from training.export.model_card import write_card
from training.pipeline import Pipeline
from training.recipe import Recipe
from training.runtime.checkpoint_dir import check_target, replacing
from training.runtime.files import read_json, write_json
from training.stage import follow

SETTINGS = {"pretrained": "BERT_PRETRAINED", "classifier": "BERT_SENTIMENT"}
"""Networks of a run, and the settings of the service that name them."""

logger = logging.getLogger(__name__)


def export(pipeline: Pipeline) -> list[Path]:
    """Copy the run's models to `export.folder` and `export.classifier`.

    Raises:
        RunError: the run has no model, or a directory holds other files.
    """
    recipe, made, evaluated = pipeline.recipe, pipeline.models(exported=True), pipeline.models()
    check_targets(recipe)
    targets = {name: recipe.exported(name) for name in made}
    for name, target in targets.items():
        with replacing(target) as folder:
            shutil.copytree(made[name], folder)  # a link would let an edit of the copy change the run's network
            # The service's answers name the model so.
            write_json(folder / "config.json", {**(read_json(folder / "config.json") or {}), "name": recipe.name})
            write_card(recipe, name, made[name].parent, folder, checkpoint_hash(evaluated[name]))
        logger.info("%s: a copy of %s", target, made[name])
    here = Path.cwd()
    shown = {name: t.relative_to(here) if t.is_relative_to(here) else t for name, t in targets.items()}
    settings = " ".join(f"{SETTINGS[name]}={shlex.quote(str(target))}" for name, target in shown.items())
    logger.info("next: %s bert-serve", settings)
    return list(targets.values())


def check_targets(recipe: Recipe) -> None:
    """Raise RunError if an export directory holds other files than a checkpoint's, or belongs to the run itself."""
    own = {follow(recipe.folder / name).resolve() for name in SETTINGS}
    for name in SETTINGS:
        target = recipe.exported(name)
        if follow(target).resolve() in own:
            raise RunError(f"{target} is a network of this run, from which later stages start: export to another path")
        check_target(target)
