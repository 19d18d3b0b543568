"""`distill`: soft labels from one classifier or several (Hinton et al. 2015, https://arxiv.org/abs/1503.02531).

The teachers read the prepared texts. Their probabilities are written as a column, `target_probs.npy`, beside each shard
of `labelled/train`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info
from tqdm import tqdm

from model.checkpoint import Checkpoint
from model.heads import BertForSequenceClassification
from model.tokenizer import Tokenizer
from training.corpus.prepare import prepare_labelled
from training.corpus.reader import PreparedText
from training.errors import RunError
from training.evaluate.classification import check_reading, classifier_logits, load_classifier
from training.examples.batches import ClassificationBatch, Floats
from training.examples.labelled import Fold, is_unlabelled, labelled_window
from training.examples.loader import made_ahead, num_workers
from training.loop.checkpoint import weights_hash
from training.problems.choose import problem_of
from training.recipe import Recipe, read_resolved, with_earlier, write_resolved
from training.runtime.device import choose_device, evaluating
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
        RunError: the recipe has no `[distill]`, or a teacher is missing, or has other labels or another vocabulary.
    """
    teachers = load_teachers(recipe)
    for teacher in teachers:
        if teacher.tokenizer.to_json() != tokenizer.to_json():
            raise RunError(
                f"{teacher.path} has another vocabulary than the network to fine-tune; a teacher reads the same "
                "prepared text, so fine-tune it from the same pretrained network, or from one of its vocabulary"
            )
    folder = prepare_labelled(recipe, tokenizer) / "train"
    key = _key(teachers)
    write_resolved(recipe, recipe.folder / "distill")  # its weight may be new
    text = PreparedText.open(folder)
    files = [folder / shard.name / f"{COLUMN}.npy" for shard in text.shards]
    # A shard that was damaged has been made again, without the teachers' labels.
    if read_json(folder / RECORD) == key and all(file.is_file() for file in files):
        logger.info("%s: labelled already", folder)
        return
    if read_json(folder / f"{RECORD}.part") != key:
        (folder / RECORD).unlink(missing_ok=True)
        for old in files:
            old.unlink(missing_ok=True)
        write_json(folder / f"{RECORD}.part", key)
    missing = [number for number, file in enumerate(files) if not file.is_file()]
    with tqdm(desc="distill", total=len(missing), unit="shard", disable=None) as bar:
        for number, probabilities in _labelled(recipe, teachers, text, missing):
            part = files[number].with_suffix(".part.npy")
            np.save(part, probabilities)
            part.replace(files[number])
            bar.update()
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
    key, folder = _key(load_teachers(recipe)), recipe.folder / "labelled" / "train"
    if read_json(folder / RECORD) != key:
        raise RunError(f"{folder} has no labels of {_teachers(recipe)}; run distill first")
    logger.info(
        "learning from the labels of %s; to learn without them, remove [distill] from the recipe and delete %s",
        _teachers(recipe),
        recipe.folder / "distill",
    )
    return key


def load_teachers(recipe: Recipe) -> list[Checkpoint]:
    """The checkpoint of `distill.teacher`, or else the classifiers of the folds.

    Raises:
        RunError: the recipe has no `[distill]`, or a teacher is missing, or no classifier of the recipe's labels.
    """
    if recipe.distill is None:
        raise RunError(
            "the recipe has no [distill]: name a classifier, distill.teacher=runs/big/sentiment, or learn from this "
            "run's own teachers, distill.weight=0.5"
        )
    if recipe.distill.teacher:
        return [load_classifier(recipe.distill.teacher, recipe.finetune)]
    folders = [folder / "model" for folder in fold_folders(recipe)]
    if missing := next((folder for folder in folders if not folder.is_dir()), None):
        raise RunError(f"{missing} is missing; run distill first")
    return [load_classifier(folder, recipe.finetune) for folder in folders]


def fold_folders(recipe: Recipe) -> list[Path]:
    """Log, checkpoints and model of the teacher of each fold."""
    assert recipe.distill is not None
    return [recipe.folder / "teachers" / f"fold-{number}" for number in range(recipe.distill.folds)]


def _teachers(recipe: Recipe) -> Path:
    """The folder that a message names."""
    return (recipe.distill and recipe.distill.teacher) or recipe.folder / "teachers"


def _key(teachers: list[Checkpoint]) -> str:
    return "+".join(weights_hash(teacher.model) for teacher in teachers)


# --- labels --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Reading:
    """Texts of a shard that a teacher reads."""

    shard: int
    teacher: int = 0
    documents: Sequence[int] = ()
    batch: ClassificationBatch | None = None
    """None after all texts of the shard."""

    def pin_memory(self) -> _Reading:
        """Called by the DataLoader for a GPU."""
        return replace(self, batch=self.batch and self.batch.pin_memory())


@dataclass(eq=False)
class _Readings(IterableDataset[_Reading]):
    """What the teachers read of each shard: all texts, or of several teachers each those of its fold and those without
    a label. The readings of a shard follow one another."""

    text: PreparedText
    tokenizer: Tokenizer
    shards: Sequence[int]
    teachers: int
    outputs: int
    max_length: int
    batch_tokens: int

    def __iter__(self) -> Iterator[_Reading]:
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        for shard in self.shards[worker::workers]:
            window = self.text.window([shard])
            texts = labelled_window(window, self.tokenizer, self.outputs, self.max_length)
            labels, groups = window.column("labels"), window.column("groups")
            assert labels is not None
            assert groups is not None
            for teacher in range(self.teachers):
                is_read = is_unlabelled(labels) | Fold(teacher, self.teachers).holds(groups)
                for documents, batch in texts.batches(is_read.nonzero()[0].tolist(), self.batch_tokens):
                    yield _Reading(shard, teacher, documents, batch)
            yield _Reading(shard)


def _labelled(
    recipe: Recipe, teachers: Sequence[Checkpoint], text: PreparedText, shards: Sequence[int]
) -> Iterator[tuple[int, Floats]]:
    """Shards with their (documents, outputs) scores: the mean over the teachers that read a text, and over the readings
    of a text that has two."""
    for read in {text.shards[number].read for number in shards}:
        check_reading(teachers[0], read)
    device, config = choose_device(recipe.device), teachers[0].config
    models = []
    for teacher in teachers:
        assert isinstance(teacher.model, BertForSequenceClassification)
        models.append(teacher.model.to(device))
    problem = problem_of(config.problem_type, config.labels)
    readings = _Readings(
        text,
        teachers[0].tokenizer,
        shards,
        len(teachers),
        len(problem.names),
        config.max_position_embeddings,
        recipe.micro_batch_tokens,
    )
    sums: dict[int, Floats] = {}  # (documents, outputs + 1) scores and number of readings, by shard
    for reading in made_ahead(readings, device, num_workers(1)):
        if reading.batch is None:
            total = sums.pop(reading.shard)
            yield reading.shard, total[:, :-1] / total[:, -1:]
            continue
        model = models[reading.teacher]
        with evaluating(model):
            scores = problem.scores(classifier_logits(model, reading.batch.to(device).packed)).cpu()
        shape = text.shards[reading.shard].documents, len(problem.names) + 1
        total = sums.setdefault(reading.shard, np.zeros(shape, np.float32))
        np.add.at(total, list(reading.documents), torch.cat([scores, torch.ones(len(scores), 1)], 1).numpy())
