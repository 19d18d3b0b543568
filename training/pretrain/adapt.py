"""More pretraining on the texts that a classifier will be trained on, before it is trained."""

from __future__ import annotations

from model.tokenizer import Tokenizer
from training.corpus.prepare import prepare
from training.corpus.tokenizer import make_tokenizer
from training.errors import RunError
from training.pretrain.run import pretrain
from training.recipe import CorpusConfig, Recipe


def adapt(recipe: Recipe) -> bool:
    """Go on pretraining, on the texts of `finetune.train` without their labels. True when finished.

    Raises:
        RunError: the recipe has no `[adapt]`, or nothing is pretrained yet.
    """
    if recipe.adapt is None:
        raise RunError("the recipe has no [adapt]; give it a budget: adapt.minutes=5")
    stage = adaptation(recipe)
    assert stage.pretrain.start is not None
    if not stage.pretrain.start.is_dir():
        raise RunError(f"{stage.pretrain.start} is missing; run pretrain first")
    make_tokenizer(stage)
    prepare(stage, Tokenizer.load(stage.folder / "tokenizer"))
    return pretrain(stage)


def adaptation(recipe: Recipe) -> Recipe:
    """The recipe's `[adapt]` as a recipe for `pretrain`, in the folder `adapt` of the run."""
    assert recipe.adapt is not None
    changes = recipe.adapt.model_dump() | {"start": recipe.finetune.pretrained or recipe.folder / "pretrained"}
    # Of labelled texts a `<br />` would stay.
    unlabelled = tuple(source.model_copy(update={"label": None}) for source in recipe.finetune.train)
    corpus = CorpusConfig(sources=unlabelled, workers=recipe.corpus.workers)
    return recipe.model_copy(
        update={
            "name": "adapt",
            "run": recipe.folder,
            "corpus": corpus,
            "pretrain": recipe.pretrain.model_copy(update=changes),
        }
    )
