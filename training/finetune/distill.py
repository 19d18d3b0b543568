"""`distill`: soft labels from one classifier or several (Hinton et al. 2015, https://arxiv.org/abs/1503.02531).

The teachers read the prepared texts. The stage `soft_labels` has their probabilities, a file for each shard.
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
from training.corpus.reader import PreparedText
from training.errors import RunError
from training.evaluate.classification import check_reading, classifier_logits, load_classifier
from training.examples.batches import ClassificationBatch, Floats
from training.examples.labelled import Fold, is_unlabelled, labelled_window
from training.examples.loader import made_ahead
from training.problems.choose import problem_of
from training.recipe import FinetuneConfig, Recipe
from training.runtime.device import choose_device, evaluating

COLUMN = "target_probs"
logger = logging.getLogger(__name__)


def write_soft_labels(recipe: Recipe, teachers: Sequence[Checkpoint], train: Path, folder: Path) -> None:
    """Let the teachers label all texts. Continues where it was interrupted.

    Args:
        train: prepared labelled text.
        folder: gets a folder with the column for each shard.
    """
    text = PreparedText.open(train)
    files = [folder / shard.name / f"{COLUMN}.npy" for shard in text.shards]
    missing = [number for number, file in enumerate(files) if not file.is_file()]
    with tqdm(desc="distill", total=len(missing), unit="shard", disable=None) as bar:
        for number, probabilities in _labelled(recipe, teachers, text, missing):
            part = files[number].with_suffix(".part.npy")
            part.parent.mkdir(parents=True, exist_ok=True)
            np.save(part, probabilities)
            part.replace(files[number])
            bar.update()
    logger.info("%s labelled %s texts", ", ".join(str(each.path) for each in teachers), f"{text.documents:,}")


def load_teachers(folders: Sequence[Path], config: FinetuneConfig, tokenizer: Tokenizer) -> list[Checkpoint]:
    """Load the classifiers in some folders.

    Args:
        tokenizer: tokenizer of the network that will be fine-tuned.

    Raises:
        RunError: a classifier is missing, has not the recipe's labels, or has another vocabulary.
    """
    teachers = [load_classifier(folder, config) for folder in folders]
    for teacher in teachers:
        if teacher.tokenizer.to_json() != tokenizer.to_json():
            raise RunError(
                f"{teacher.path} has another vocabulary than the network to fine-tune; a teacher reads the same "
                "prepared text, so fine-tune it from the same pretrained network, or from one of its vocabulary"
            )
    return teachers


# --- labels --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Reading:
    """Texts of a shard that a teacher reads."""

    shard: int
    teacher: int = 0
    documents: Sequence[int] = ()
    batch: ClassificationBatch | None = None
    """The batch; None after all texts of the shard."""

    def pin_memory(self) -> _Reading:
        """Pin the batch's memory; the DataLoader calls this for a GPU."""
        return replace(self, batch=self.batch and self.batch.pin_memory())


@dataclass(eq=False)
class _Readings(IterableDataset[_Reading]):
    """The readings of each shard, one shard after another. A single teacher reads all texts. One of several teachers
    reads the texts of its fold, and those without a label."""

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
    for reading in made_ahead(readings, device):
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
