"""`soft-labels`: probabilities from one classifier or several (Hinton et al. 2015, https://arxiv.org/abs/1503.02531).

The teachers read the prepared texts. The stage `soft_labels` has their probabilities, a column of all documents.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from model.checkpoint import Checkpoint
from model.heads import BertForSequenceClassification
from model.tokenizer import Tokenizer
from training.corpus.parts import Part
from training.corpus.reader import PreparedText
from training.examples.batches import Floats
from training.examples.labelled import Fold, is_unlabelled, labelled_window, trained_on
from training.metrics.classification import check_reading, load_classifier, predict_classification
from training.recipe import FinetuneConfig, Recipe
from training.runtime.device import choose_device

logger = logging.getLogger(__name__)


def write_soft_labels(recipe: Recipe, teachers: Sequence[Checkpoint], labelled: Path, folder: Path) -> None:
    """Let the teachers label the texts to train on. Continues where it was interrupted.

    Args:
        labelled: folder of the labelled text.
        folder: gets the column: (documents, labels), NaN for other texts.
    """
    text, file = PreparedText(labelled), folder / "target_probs.npy"
    if not file.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        np.save(part := file.with_suffix(".part.npy"), np.full((text.documents, len(text.labels)), np.nan, np.float32))
        part.replace(file)
    column, parts = np.load(file, mmap_mode="r+"), text.column("parts")
    missing = ((parts == Part.TRAIN) & np.isnan(column).any(1)).nonzero()[0]
    shards = np.unique(np.searchsorted(text.first_documents, missing, "right") - 1).tolist()
    for number in tqdm(shards, desc="soft labels", unit="shard", disable=None):
        column[text.first_documents[number] : text.first_documents[number + 1]] = _labels(
            recipe, teachers, text, number
        )
        column.flush()
    names, count = ", ".join(str(each.path) for each in teachers), (parts == Part.TRAIN).sum()
    logger.info("%s labelled %s texts", names, f"{count:,}")


def load_teachers(folders: Sequence[Path], config: FinetuneConfig, tokenizer: Tokenizer | None) -> list[Checkpoint]:
    """Load the classifiers in some folders.

    Args:
        tokenizer: tokenizer of the network that will be fine-tuned, if it is known.

    Raises:
        RunError: a classifier is missing, has other labels than the recipe, or has another vocabulary.
    """
    teachers = [load_classifier(folder, config) for folder in folders]
    for teacher in teachers:
        check_reading(teacher, tokenizer=tokenizer)
    return teachers


def _labels(recipe: Recipe, teachers: Sequence[Checkpoint], text: PreparedText, number: int) -> Floats:
    """(documents, labels) probabilities for a shard: the mean over the teachers that read a text, and over the readings
    of a text that has two. A single teacher reads all texts. One of several teachers reads the texts of its fold, and
    those without a label."""
    window = text.window([number])
    trained, total = trained_on(window), np.zeros((text.shards[number].documents, len(text.labels) + 1), np.float32)
    unlabelled, groups = is_unlabelled(window.column("labels")), window.column("groups")
    for fold, teacher in enumerate(teachers):
        assert isinstance(teacher.model, BertForSequenceClassification)
        check_reading(teacher, text.shards[number].read)
        rows = trained[(unlabelled | Fold(fold, len(teachers)).holds(groups))[trained]]
        if len(rows):
            texts = labelled_window(window, rows, teacher.tokenizer, teacher.config.max_position_embeddings)
            answers = predict_classification(teacher.model.to(choose_device(recipe.device)), texts)
            order = [teacher.config.labels.index(name) for name in text.labels]
            scores = torch.cat([answers.scores[:, order], torch.ones(len(answers.documents), 1)], 1)
            np.add.at(total, answers.documents, scores.numpy())
    total[total[:, -1] == 0] = np.nan  # not trained on
    return total[:, :-1] / total[:, -1:]
