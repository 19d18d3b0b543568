"""The network that a classifier of a table starts from: one of the two that ship."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable
from pathlib import Path

import numpy as np

import model
from model.checkpoint import load_checkpoint
from training.corpus.inputs import reading_of, split_columns
from training.corpus.parts import Part, held_out, labelled_sources
from training.metrics.classification import classify
from training.recipe import SINGLE_LABEL, Recipe
from training.runtime.device import choose_device
from training.sources.documents import Document
from training.sources.labels import with_targets

PRETRAINED, SENTIMENT = (Path(model.__file__).parent / "weights" / name for name in ("pretrained", "sentiment"))

TRIED_TEXTS = 400
"""Texts that the shipped classifier is tried on, which takes a few seconds."""

MIN_TOLD = 0.15
"""Minimum share of the errors of a constant answer that the shipped classifier's answers must avoid: wrong labels, or
squared errors of numbers and of several labels. It avoids none with topics, 0.4 with five numbers of stars, 0.85 with
opinions."""

logger = logging.getLogger(__name__)


def choose_start(recipe: Recipe, texts: Iterable[Document]) -> Path:
    """The shipped classifier if its answers predict the labels or numbers of some texts of the table, else the shipped
    pretrained network."""
    from sklearn.linear_model import LinearRegression, LogisticRegression  # a machine with a GPU may lack scikit-learn
    from sklearn.model_selection import KFold, cross_val_predict, cross_val_score

    config = recipe.finetune
    read, found = reading_of(config.train[0]), list(with_targets(texts, config))
    columns = split_columns((len(config.test), *row) for row in found)
    parts = held_out(columns, labelled_sources(config, ()), config)
    found = [found[i] for i in np.isin(parts, (Part.TRAIN, Part.DEV)).nonzero()[0]]  # the report uses the others
    documents, labels = zip(*found[:: -(-len(found) // TRIED_TEXTS)], strict=True)
    if len(set(labels)) == 1:
        return PRETRAINED
    checkpoint = load_checkpoint(SENTIMENT)
    checkpoint.model.to(choose_device(recipe.device))
    logits = classify(checkpoint, documents, "pair" if read == "both" else read).logits
    opinion = (logits[:, 1] - logits[:, 0]).numpy()[:, None]
    targets = np.array(labels)  # (texts,) labels, or (texts, outputs) numbers
    if recipe.finetune.problem_type == SINGLE_LABEL:
        constant_accuracy = np.bincount(targets).max() / len(targets)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a rare label is not in each fold
            accuracy = float(cross_val_score(LogisticRegression(), opinion, targets, cv=3).mean())
        share = (accuracy - constant_accuracy) / max(1 - constant_accuracy, 1e-9)
    else:
        folds = KFold(3, shuffle=True, random_state=0)  # a file may be sorted
        errors = cross_val_predict(LinearRegression(), opinion, targets, cv=folds) - targets
        share = 1 - float((errors**2).sum() / max(((targets - targets.mean(0)) ** 2).sum(), 1e-9))
    logger.info(f"the shipped classifier's scores avoid {max(share, 0):.0%} of the errors of a constant answer")
    return SENTIMENT if share >= MIN_TOLD else PRETRAINED
