"""`distill`: soft labels from one classifier or several (Hinton et al. 2015, https://arxiv.org/abs/1503.02531).

The mean of the teachers' probabilities is written as a column, `target_probs.npy`, beside each shard of
`labelled/train`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from tqdm import tqdm

from model.checkpoint import Checkpoint
from model.heads import BertForSequenceClassification
from model.tokenizer import Tokenizer
from training.corpus.inputs import labelled_inputs
from training.corpus.prepare import prepare_labelled
from training.corpus.reader import PreparedText
from training.corpus.shards import ShardInput
from training.errors import RunError
from training.evaluate.classification import check_reading, load_classifier, predict_classification
from training.examples.batches import Floats
from training.examples.labelled import encode_texts
from training.finetune.selection import seed_folder, seeds_of
from training.loop.checkpoint import weights_hash
from training.pretrain.adapt import adapted, pretrained_folder
from training.recipe import CorpusConfig, Recipe, read_resolved, with_earlier, write_resolved
from training.runtime.device import choose_device
from training.runtime.files import read_json, write_json

COLUMN = "target_probs"
RECORD = "teacher.json"
"""File with the fingerprint of the teachers whose probabilities the column holds."""

logger = logging.getLogger(__name__)


def distill(recipe: Recipe, tokenizer: Tokenizer) -> None:
    """Let the teachers label all texts of `labelled/train`. Continues an interrupted run.

    Args:
        tokenizer: of the network that will be fine-tuned.

    Raises:
        RunError: the recipe has no `[distill]`, or a teacher has other labels.
    """
    teachers = load_teachers(recipe, seeds_of(recipe))
    folder = prepare_labelled(recipe, tokenizer) / "train"
    key = _key(teachers)
    write_resolved(recipe, recipe.folder / "distill")  # its weight may be new
    text = PreparedText.open(folder)
    columns = [folder / shard.name / f"{COLUMN}.npy" for shard in text.shards]
    # A shard that was damaged has been made again, without the teachers' labels.
    if read_json(folder / RECORD) == key and all(column.is_file() for column in columns):
        logger.info("%s: labelled already", folder)
        return
    if read_json(folder / f"{RECORD}.part") != key:
        (folder / RECORD).unlink(missing_ok=True)
        for old in folder.glob(f"*/{COLUMN}.npy"):
            old.unlink()
        write_json(folder / f"{RECORD}.part", key)
    for teacher in teachers:
        teacher.model.to(choose_device(recipe.device))
    with tqdm(desc="distill", total=text.documents, unit="text", disable=None) as bar:
        for shard_input in labelled_inputs(recipe):
            file = folder / f"{shard_input.number:06d}" / f"{COLUMN}.npy"
            if shard_input.part != "train":
                continue
            if not file.is_file():
                part = file.with_suffix(".part.npy")
                np.save(part, mean_probabilities(teachers, shard_input))
                part.replace(file)
            bar.update(len(shard_input.documents))
    write_json(folder / RECORD, key)
    logger.info("%s labelled %s texts in %s", _teachers(recipe), f"{text.documents:,}", folder)


def with_earlier_distill(recipe: Recipe) -> Recipe:
    """The recipe with the `[distill]` of this run's earlier `distill`. If it has a `[distill]` itself, it gets only the
    keys that the command line of that `distill` changed, unless the command line changes them again."""
    folder = recipe.folder / "distill"
    earlier = read_resolved(folder)
    if earlier is None or earlier.distill is None:
        return recipe
    if recipe.distill is None:
        return with_earlier(recipe, folder, "distill")
    given = {override.partition("=")[0] for override in recipe.overrides}
    earlier_overrides = {override.partition("=")[0]: override for override in earlier.overrides}
    kept = {key: text for key, text in earlier_overrides.items() if key.startswith("distill.") and key not in given}
    values = {name: getattr(earlier.distill, name) for name in (key.removeprefix("distill.") for key in kept)}
    changes = {"distill": recipe.distill.model_copy(update=values), "overrides": (*kept.values(), *recipe.overrides)}
    return recipe.model_copy(update=changes)


def distilled_by(recipe: Recipe) -> str | None:
    """Fingerprint of the teachers that labelled the prepared texts; None without `[distill]`.

    Raises:
        RunError: the texts are not labelled by the recipe's teachers.
    """
    if recipe.distill is None:
        return None
    earlier = read_resolved(recipe.folder / "distill")
    teachers = load_teachers(recipe, seeds_of(earlier or recipe))
    key, folder = _key(teachers), recipe.folder / "labelled" / "train"
    if read_json(folder / RECORD) != key:
        raise RunError(f"{folder} has no labels of {_teachers(recipe)}; run distill first")
    logger.info(
        "learning from the labels of %s; to learn without them, remove [distill] from the recipe and delete %s",
        _teachers(recipe),
        recipe.folder / "distill",
    )
    return key


def load_teachers(recipe: Recipe, seeds: Iterable[int]) -> list[Checkpoint]:
    """The checkpoint of `distill.teacher`, or else the classifiers of the seeds.

    Raises:
        RunError: the recipe has no `[distill]`, or a teacher is missing, or no classifier of the recipe's labels.
    """
    if recipe.distill is None:
        raise RunError(
            "the recipe has no [distill]: name a classifier, distill.teacher=runs/big/sentiment, or learn from this "
            "run's own seeds, distill.weight=0.5"
        )
    if recipe.distill.teacher:
        return [load_classifier(recipe.distill.teacher, recipe.finetune)]
    run = teachers_recipe(recipe)
    folders = [seed_folder(run, seed) / "model" for seed in seeds]
    if missing := next((folder for folder in folders if not folder.is_dir()), None):
        raise RunError(f"{missing} is missing; run distill first")
    return [load_classifier(folder, recipe.finetune) for folder in folders]


def teachers_recipe(recipe: Recipe) -> Recipe:
    """Fine-tuning on the labels only, as a run in the folder `teachers` of this run."""
    start = adapted(recipe) or pretrained_folder(recipe)
    finetune = recipe.finetune.model_copy(update={"pretrained": start})
    return recipe.inside("teachers", corpus=CorpusConfig(), adapt=None, distill=None, finetune=finetune)


def _teachers(recipe: Recipe) -> Path:
    """The folder that a message names."""
    return (recipe.distill and recipe.distill.teacher) or recipe.folder / "teachers"


def _key(teachers: list[Checkpoint]) -> str:
    return "+".join(weights_hash(teacher.model) for teacher in teachers)


def mean_probabilities(teachers: Sequence[Checkpoint], shard_input: ShardInput) -> Floats:
    """(documents, labels), the mean over the teachers, and over the readings of a document that has two. The teachers
    have the same vocabulary."""
    documents, config = shard_input.documents, teachers[0].config
    probabilities: Floats = np.zeros((len(documents), config.num_labels), np.float32)
    length = config.max_position_embeddings
    texts = encode_texts(documents, probabilities.copy(), shard_input.read, teachers[0].tokenizer, length)
    for teacher in teachers:
        check_reading(teacher, shard_input.read)
        assert isinstance(teacher.model, BertForSequenceClassification)
        answers = predict_classification(teacher.model, texts)
        np.add.at(probabilities, answers.documents, answers.logits.softmax(1).numpy())
    return probabilities / probabilities.sum(1, keepdims=True)
