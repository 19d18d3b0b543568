"""`adapt`: more pretraining on the classifier's texts, before fine-tuning."""

from __future__ import annotations

import logging
from pathlib import Path

from model.checkpoint import load_checkpoint
from model.tokenizer import Tokenizer
from training.corpus.prepare import check_corpus_settings, prepare
from training.corpus.tokenizer import make_tokenizer
from training.errors import CorpusError, RunError
from training.loop.checkpoint import weights_hash
from training.pretrain.run import pretrain
from training.recipe import CorpusConfig, Recipe, write_resolved
from training.runtime.files import read_json, write_json
from training.runtime.lock import ranks_in_turn
from training.sources.tables import log_once

RATE_FACTOR = 1 / 3
"""Of the pretraining's learning rate: a higher one forgets what was learned."""

logger = logging.getLogger(__name__)


def adapt(recipe: Recipe) -> bool:
    """Continue pretraining on the texts of `finetune.train`, without their labels. True when finished.

    Raises:
        RunError: the recipe has no `[adapt]`, nothing is pretrained yet, or the run has adapted another network.
    """
    if recipe.adapt is None:
        raise RunError("the recipe has no [adapt]; give it a budget: adapt.tokens=2000000")
    start = pretrained_folder(recipe)
    if not start.is_dir():
        raise RunError(f"{start} is missing; run pretrain first")
    stage = _stage(recipe, start)
    started_from = weights_hash(load_checkpoint(start).model)
    record = stage.folder / "started-from.json"
    with ranks_in_turn(recipe.folder):
        if (read_json(record) or started_from) != started_from:
            raise RunError(
                f"{stage.folder} was adapted from another network than {start}: delete it to adapt again, or give this "
                "run another name"
            )
        tokenizer = Tokenizer.load(make_tokenizer(stage))
        try:
            prepare(stage, tokenizer)
        except (CorpusError, RunError) as error:
            raise type(error)(str(error).replace("corpus.sources", "finetune.train")) from error
        write_json(record, started_from)
        write_resolved(recipe, recipe.folder / "adapt")
    return pretrain(stage)


def adapted(recipe: Recipe) -> Path | None:
    """The adapted network of this run; None without one, or if it was adapted from another network than the run's
    pretrained one."""
    folder = recipe.folder / "adapt"
    if not (folder / "pretrained").is_dir():
        return None
    start = pretrained_folder(recipe)
    if not start.is_dir() or read_json(folder / "started-from.json") != weights_hash(load_checkpoint(start).model):
        logger.warning("%s was adapted from another network than %s and is not used; delete it", folder, start)
        return None
    if recipe.adapt is not None:
        try:
            check_corpus_settings(_stage(recipe, start))
        except CorpusError:
            log_once(f"{folder} was adapted to other texts than finetune.train; delete it to adapt again")
    return folder / "pretrained"


def pretrained_folder(recipe: Recipe) -> Path:
    """The network that adapting and fine-tuning start from."""
    return recipe.finetune.pretrained or recipe.folder / "pretrained"


def _stage(recipe: Recipe, start: Path) -> Recipe:
    """`[adapt]` as a recipe for `pretrain`, in the folder `adapt` of the run. A part of the classifier's texts is held
    out, also if the recipe has `corpus.heldout`, because these are what the network adapts to."""
    assert recipe.adapt is not None
    changes = {
        "start": start,
        "tokens": recipe.adapt.tokens,
        "minutes": None,
        "learning_rate": RATE_FACTOR * recipe.pretrain.learning_rate,
    }
    # Without a label column, a `<br />` in the text is read as a line break. With "folder", a file stays one text.
    sources = tuple(
        source if source.label == "folder" else source.model_copy(update={"label": None})
        for source in recipe.finetune.train
    )
    fraction = recipe.corpus.heldout_fraction or CorpusConfig().heldout_fraction  # a part must be held out
    corpus = CorpusConfig(sources=sources, heldout_fraction=fraction)
    return recipe.inside("adapt", corpus=corpus, pretrain=recipe.pretrain.model_copy(update=changes))
