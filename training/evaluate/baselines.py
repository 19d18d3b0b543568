"""What bags of words score on the same texts and the same split: the figures a network has to beat."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from training.corpus.shards import read_json, write_json
from training.errors import RunError
from training.evaluate.bag_of_words import BagOfWords, num_words
from training.evaluate.naive_bayes import NaiveBayesBag
from training.finetune.dataset import evenly, split_sources, whole_source
from training.recipe import Recipe, source_name
from training.sources.documents import Document

logger = logging.getLogger(__name__)

ALONE_WORDS = 10_000_000
"""What a bag of one source may read: each word of long texts is the first of a new triple, some 300 bytes."""

Split = tuple[str, list[Document], list[Document]]
"""Name, train and dev part of a source"""


@dataclass(frozen=True, slots=True)
class Baseline:
    """A bag of words of all sources together, and one of each source alone."""

    texts: int
    features: int
    strength: float
    """Inverse regularisation that was best on dev"""
    seconds: float
    accuracy: dict[str, float]
    """By name of the test set"""
    alone: dict[str, float]
    """Of a naive Bayes bag that has read the training source of the test set's name only; by that name"""


def bags_of_words(recipe: Recipe) -> Baseline | None:
    """Train and test them, or read `baseline.json` of the same texts; None where the recipe leaves them out, or
    the texts have nothing to learn."""
    config = recipe.finetune
    if not (config.baseline_texts and config.train and config.test):
        return None
    split = [(name, _some(train, config.baseline_texts), dev) for name, train, dev in split_sources(recipe)]
    train = _some([document for _, part, _ in split for document in part], config.baseline_texts)
    dev = [document for _, _, part in split for document in part]
    test = {source_name(source): whole_source(source, recipe) for source in config.test}
    file = recipe.folder / "baseline.json"
    parts = (part for _, *parts in split for part in parts)
    names = [*(name for name, _, _ in split), *test]  # its figures stand under them
    key = " ".join([key_of(train, *parts, *test.values()), *names])
    found = read_json(file) or {}
    if found.get("key") == key and "alone" in found["baseline"]:
        return Baseline(**found["baseline"])
    began = time.perf_counter()
    try:
        bag = BagOfWords.fit(train, dev)
    except RunError as error:
        logger.warning("the report has no figure of a bag of words: %s", error)
        return None
    accuracy = {name: bag.accuracy(documents) for name, documents in test.items()}
    alone = {part[0]: right for part in split if (right := _alone(part, test.get(part[0], []))) is not None}
    seconds = round(time.perf_counter() - began, 1)
    baseline = Baseline(len(train), len(bag.words.vocabulary_), bag.strength, seconds, accuracy, alone)
    write_json(file, {"key": key, "baseline": asdict(baseline)})
    return baseline


def _some(texts: list[Document], count: int) -> list[Document]:
    return [texts[i] for i in evenly(len(texts), count)]


def _alone(source: Split, test: Sequence[Document]) -> float | None:
    """Share of the test set's labels that a bag of this source guesses; None where it has nothing to learn."""
    name, train, dev = source
    values = sorted({str(document.label) for document in train})
    if not test or len(values) < 2:
        return None
    words = sum(num_words(document.text) for document in train)
    train = _some(train, len(train) * ALONE_WORDS // max(words, ALONE_WORDS))
    logger.info("naive Bayes bag of %s alone: %d texts", name, len(train))
    try:
        bag = NaiveBayesBag.fit(train, dev)
    except RunError:
        return None
    guesses = np.array(values)[bag.log_probabilities(test, values).argmax(1)]
    return float(np.mean(guesses == [str(document.label) for document in test]))


def key_of(*parts: Sequence[Document]) -> str:
    """Equal for equal texts and labels in the same parts."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(b"%d\n" % len(part))
        for document in part:
            digest.update(repr((document.text, document.label)).encode())
    return digest.hexdigest()
