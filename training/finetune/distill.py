"""`distill`: soft labels from another classifier (Hinton et al. 2015, https://arxiv.org/abs/1503.02531).

The teacher's probabilities are written as a column, `target_probs.npy`, beside each shard of `labelled/train`.
"""

from __future__ import annotations

import logging

import numpy as np
from tqdm import tqdm

from model.checkpoint import Checkpoint
from model.tokenizer import Tokenizer
from training.corpus.inputs import labelled_inputs
from training.corpus.prepare import prepare_labelled
from training.corpus.reader import PreparedText
from training.corpus.shards import ShardInput
from training.errors import RunError
from training.evaluate.classification import classify, load_classifier
from training.examples.batches import Floats
from training.loop.checkpoint import fingerprint
from training.recipe import Recipe, with_earlier, write_resolved
from training.runtime.device import choose_device
from training.runtime.files import read_json, write_json

COLUMN = "target_probs"
RECORD = "teacher.json"
"""File that names the teacher whose probabilities the column holds."""

logger = logging.getLogger(__name__)


def distill(recipe: Recipe, tokenizer: Tokenizer) -> None:
    """Let the teacher label all texts of `labelled/train`. Continues an interrupted run.

    Args:
        tokenizer: of the network that will be fine-tuned.

    Raises:
        RunError: the recipe has no `[distill]`, or the teacher has other labels.
    """
    teacher = load_teacher(recipe)
    folder = prepare_labelled(recipe, tokenizer) / "train"
    key = fingerprint(teacher.model)
    if read_json(folder / RECORD) == key:
        logger.info("%s: labelled by this teacher already", folder)
        return
    if read_json(folder / f"{RECORD}.part") != key:
        for old in folder.glob(f"*/{COLUMN}.npy"):
            old.unlink()
        write_json(folder / f"{RECORD}.part", key)
    teacher.model.to(choose_device(recipe.device))
    total = PreparedText.open(folder).documents
    with tqdm(desc="distill", total=total, unit="text", disable=None) as bar:
        for shard_input in labelled_inputs(recipe):
            file = folder / f"{shard_input.number:06d}" / f"{COLUMN}.npy"
            if shard_input.part != "train":
                continue
            if not file.is_file():
                part = file.with_suffix(".part.npy")
                np.save(part, _probabilities(teacher, shard_input))
                part.replace(file)
            bar.update(len(shard_input.documents))
    write_json(folder / RECORD, key)
    write_resolved(recipe, recipe.folder / "distill")
    logger.info("%s labelled %s texts in %s", teacher.path, f"{total:,}", folder)


def with_earlier_distill(recipe: Recipe) -> Recipe:
    """The recipe with the `[distill]` of an earlier `distill` of this run, if it has none itself."""
    folder = recipe.folder / "distill"
    if recipe.distill is not None or not folder.is_dir():
        return recipe
    recipe = with_earlier(recipe, folder, "distill")
    if recipe.distill is not None:
        logger.info("learning from the labels of %s; delete %s to learn without them", recipe.distill.teacher, folder)
    return recipe


def distilled_by(recipe: Recipe) -> str | None:
    """Fingerprint of the teacher that labelled the prepared texts; None without `[distill]`.

    Raises:
        RunError: the texts are not labelled by the recipe's teacher.
    """
    if recipe.distill is None:
        return None
    teacher, folder = fingerprint(load_teacher(recipe).model), recipe.folder / "labelled" / "train"
    if read_json(folder / RECORD) != teacher:
        raise RunError(f"{folder} has no labels of distill.teacher ({recipe.distill.teacher}); run distill first")
    return teacher


def load_teacher(recipe: Recipe) -> Checkpoint:
    """The checkpoint of `distill.teacher`.

    Raises:
        RunError: the recipe has no `[distill]`, or the teacher is not a classifier of the recipe's labels.
    """
    if recipe.distill is None:
        raise RunError("the recipe has no [distill]; name a classifier: distill.teacher=runs/big/sentiment")
    return load_classifier(recipe.distill.teacher, recipe.finetune.label_names)


def _probabilities(teacher: Checkpoint, shard_input: ShardInput) -> Floats:
    """(documents, labels) the teacher's probabilities; the mean over the readings of a document that has two."""
    documents = shard_input.documents
    answers = classify(teacher, documents, [0] * len(documents), shard_input.read)
    probabilities: Floats = np.zeros((len(documents), teacher.config.num_labels), np.float32)
    np.add.at(probabilities, answers.documents, answers.logits.softmax(1).numpy())
    return probabilities / probabilities.sum(1, keepdims=True)
