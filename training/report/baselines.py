"""What a bag of words scores on the same labelled text: the figures that a classifier has to beat."""

from __future__ import annotations

import hashlib
import logging
import zipfile
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from torch import Tensor

from training.corpus.encode import NO_LABEL, label_column, target_rows
from training.corpus.inputs import labelled_inputs, reading_of, report_texts
from training.problems.base import Floats, Problem
from training.recipe import Recipe, source_name
from training.sources.documents import Document
from training.sources.labels import Target

MAX_TEXTS = 400_000
"""Texts that a bag learns from, drawn evenly: 360,000 take 5 GB of memory."""

STRENGTHS = (1.0, 10.0, 100.0)
"""Inverse regularisation of the linear models; dev chooses."""

_UNSPACED = r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]"
"""A letter of a script without spaces: its own token, so that pairs stand for words."""
WORD = rf"(?u){_UNSPACED}|(?:(?!{_UNSPACED})[\w'\u0300-\u036f\u0591-\u05c7\u064b-\u065f\u0900-\u0dff])+|[!?]"
"""A token of a bag: a word with its accents and vowel signs, or a mark that tells opinions apart."""

DEV = " (dev)"
"""Marks figures on dev texts in a report."""

PAIR = " (pair)"
"""Marks figures on texts that are read as pairs in a report."""

logger = logging.getLogger(__name__)

Labelled = list[tuple[Document, Target]]


def evaluate_bag(recipe: Recipe, problem: Problem, test: Mapping[str, Labelled]) -> dict[str, Tensor]:
    """(texts, outputs) scores of a bag of words by name of the test set; none if there is nothing to learn. Those for
    the same texts are read from `bag.npz`."""
    train, dev = _parts(recipe)
    file, key = recipe.folder / "bag.npz", _key(("train", train), ("dev", dev), *test.items())
    scores = _known(file, key)
    if scores is None:
        logger.info("%s on %d texts", problem.bag, len(train))
        try:
            bag = fit_bag(problem, train, dev)
        except ValueError as error:  # no word occurs often enough, or all labels are equal
            logger.warning("the report has no %s: %s", problem.bag, error)
            return {}
        scores = {name: bag(texts_of(part)) for name, part in test.items()}
        part_file = file.with_suffix(".part.npz")
        np.savez(part_file, allow_pickle=False, **{f"{key}/{name}": each for name, each in scores.items()})
        part_file.replace(file)
    return {name: torch.from_numpy(each) for name, each in scores.items()}


def fit_bag(problem: Problem, train: Labelled, dev: Labelled) -> Callable[[Sequence[str]], Floats]:
    """A linear model over TF-IDF of words and word pairs: texts to scores (texts, outputs).

    Raises:
        ValueError: there is nothing to learn.
    """
    words = TfidfVectorizer(
        ngram_range=(1, 2), token_pattern=WORD, max_features=400_000, sublinear_tf=True, dtype=np.float32
    )
    features, targets = words.fit_transform(texts_of(train)), targets_of(problem, train)
    bags = [problem.fit(features, targets, strength) for strength in (STRENGTHS if dev else STRENGTHS[1:2])]
    if len(bags) == 1:
        return lambda texts: bags[0](words.transform(texts))
    held_out, wanted = words.transform(texts_of(dev)), torch.from_numpy(targets_of(problem, dev))
    figures = [problem.figures(torch.from_numpy(bag(held_out)), wanted)[problem.compared] for bag in bags]
    best = bags[int(np.argmax([problem.merit(figure) for figure in figures]))]
    return lambda texts: best(words.transform(texts))


def texts_of(part: Labelled) -> list[str]:
    """The text of each document."""
    return [document.text for document, _ in part]


def targets_of(problem: Problem, part: Labelled) -> Floats:
    """(texts, outputs) the targets of labelled documents."""
    return target_rows(label_column([target for _, target in part]), len(problem.names))


def read_test(recipe: Recipe) -> dict[str, Labelled]:
    """The labelled documents for the report by their source (`report_texts`); without any, the dev texts of each source
    of `finetune.train`. If a source is read as one text and as a pair, those with both texts are there once more, under
    the name with `PAIR`."""
    test: dict[str, Labelled] = defaultdict(list)
    config = recipe.finetune
    parts: dict[str, Labelled] = {source_name(source): [] for source in config.tested}
    for source, document, label in report_texts(recipe):
        parts[source_name(source)].append((document, label))
    for source in config.tested:
        if part := parts[source_name(source)]:
            _add(test, source_name(source), part, reading_of(source))
        else:
            reason = "finetune.labels leaves out all of its texts" if config.test else "it has only one group"
            logger.warning("%s is not evaluated: %s", source_name(source), reason)
    if config.tested or not config.train:
        return dict(test)
    for shard_input in labelled_inputs(recipe):
        if shard_input.part != "train" and shard_input.labels is not None:
            part = list(zip(shard_input.documents, shard_input.labels, strict=True))
            _add(test, shard_input.source + DEV, part, shard_input.read)
    return dict(test)


def _add(test: dict[str, Labelled], name: str, part: Labelled, read: str) -> None:
    test[name] += part
    pairs = [row for row in part if all(row[0].fields)]
    if read == "both" and pairs:
        test[name + PAIR] += pairs


def _parts(recipe: Recipe) -> tuple[Labelled, Labelled]:
    """Training and dev documents that have a label."""
    train: Labelled = []
    dev: Labelled = []
    for shard_input in labelled_inputs(recipe):
        assert shard_input.labels is not None
        rows = zip(shard_input.documents, shard_input.labels, strict=True)
        (train if shard_input.part == "train" else dev).extend(row for row in rows if row[1] != NO_LABEL)
    chosen = np.linspace(0, len(train), min(len(train), MAX_TEXTS), endpoint=False, dtype=int).tolist()
    return [train[i] for i in chosen], dev


def _known(file: Path, key: str) -> dict[str, Floats] | None:
    """The scores in the file if they are for the texts of the key."""
    try:
        with np.load(file) as arrays:
            found = {name.partition("/"): arrays[name] for name in arrays.files}
    except (OSError, ValueError, zipfile.BadZipFile):
        return None
    return {name: scores for (for_key, _, name), scores in found.items() if for_key == key} or None


def _key(*parts: tuple[str, Labelled]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name, part in parts:
        digest.update(repr((name, len(part))).encode())
        for document, label in part:
            digest.update(repr((document.text, label)).encode())
    return digest.hexdigest()
