"""What bags of words score on the same labelled text: the figures that a classifier has to beat."""

from __future__ import annotations

import hashlib
import logging
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier
from sklearn.naive_bayes import MultinomialNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer

from training.corpus.encode import NO_LABEL
from training.corpus.inputs import labelled_inputs, reading_of, report_texts
from training.evaluate.classification import balanced_accuracy
from training.recipe import Recipe, source_name
from training.runtime.files import read_json, write_json
from training.sources.documents import Document

MAX_TEXTS = 400_000
"""Texts that a bag learns from, drawn evenly: 360,000 take 5 GB of memory."""

STRENGTHS = (1.0, 10.0, 100.0)
"""Inverse regularisation of the logistic regressions; dev chooses."""

_UNSPACED = r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]"
"""A letter of a script without spaces: its own token, so that pairs and triples stand for words."""
_WORD = rf"(?u){_UNSPACED}|(?:(?!{_UNSPACED})[\w'\u0300-\u036f\u0591-\u05c7\u064b-\u065f\u0900-\u0dff])+|[!?]"
"""A token of a bag: a word with its accents and vowel signs, or a mark that tells opinions apart."""

DEV = " (dev)"
"""Marks figures on dev texts in a report."""

PAIR = " (pair)"
"""Marks figures on texts that are read as pairs in a report."""

logger = logging.getLogger(__name__)

Labelled = list[tuple[Document, int]]


Figures = dict[str, float]
"""`accuracy` and `balanced_accuracy` of one baseline on one test set; the latter is the mean over its domains."""


def evaluate_baselines(recipe: Recipe, test: Mapping[str, Labelled]) -> dict[str, dict[str, Figures]]:
    """Figures by name of the baseline and of the test set. Those of the same texts are read from `baselines.json`."""
    train, dev = _parts(recipe)
    file, key = recipe.folder / "baselines.json", _key(("train", train), ("dev", dev), *test.items())
    known = read_json(file) or {}
    if known.get("key") == key:
        return known["figures"]
    figures: dict[str, dict[str, Figures]] = {}
    for title, fit in BASELINES.items():
        logger.info("%s on %d texts", title, len(train))
        try:
            bag = fit(train, dev)
        except ValueError as error:  # no word occurs often enough, or all labels are equal
            logger.warning("the report has no %s: %s", title, error)
            continue
        figures[title] = {name: _figures(bag, part) for name, part in test.items()}
    write_json(file, {"key": key, "figures": figures})
    return figures


def fit_tfidf(train: Labelled, dev: Labelled) -> Any:
    """TF-IDF of words and word pairs under a logistic regression; a scikit-learn pipeline.

    Raises:
        ValueError: there is nothing to learn.
    """
    words = TfidfVectorizer(
        ngram_range=(1, 2), token_pattern=_WORD, max_features=400_000, sublinear_tf=True, dtype=np.float32
    )
    return _fit(words, lambda strength: LogisticRegression(C=strength, max_iter=1000), train, dev)


def fit_naive_bayes(train: Labelled, dev: Labelled) -> Any:
    """Logistic regressions over naive Bayes log-count ratios of words, pairs and triples (Wang & Manning 2012,
    https://aclanthology.org/P12-2018); a scikit-learn pipeline.

    Raises:
        ValueError: there is nothing to learn.
    """
    words = CountVectorizer(ngram_range=(1, 3), token_pattern=_WORD, binary=True, min_df=2, dtype=np.float32)

    def classifier(strength: float) -> Any:
        regression = LogisticRegression(C=strength, max_iter=1000)
        return OneVsRestClassifier(make_pipeline(LogCountRatio(), Normalizer(), regression))

    return _fit(words, classifier, train, dev)


BASELINES = {"TF-IDF + logistic regression": fit_tfidf, "naive Bayes (1-3-grams)": fit_naive_bayes}


class LogCountRatio(BaseEstimator, TransformerMixin):  # type: ignore[misc]
    """Multiplies each feature by the log of how much more often it occurs in texts of a label than in others."""

    def fit(self, features: Any, labels: Any) -> LogCountRatio:
        """Learn the ratios, with one added to each count: features (texts, words), labels (texts,) 0 or 1."""
        others, ours = MultinomialNB(alpha=1).fit(features, labels).feature_log_prob_
        self.ratio_ = ours - others
        return self

    def transform(self, features: Any) -> Any:
        """(texts, words) -> (texts, words)"""
        return features.multiply(self.ratio_[None]).tocsr()


def _fit(words: Any, classifier: Callable[[float], Any], train: Labelled, dev: Labelled) -> Any:
    texts, labels = _columns(train)
    features = words.fit_transform(texts)
    fitted = [classifier(strength).fit(features, labels) for strength in (STRENGTHS if dev else STRENGTHS[1:2])]
    bags = [make_pipeline(words, each) for each in fitted]
    return max(bags, key=lambda bag: bag.score(*_columns(dev))) if dev else bags[0]


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


def balanced_by_domain(answers: torch.Tensor, part: Labelled) -> tuple[float, dict[str, float]]:
    """Balanced accuracy in each domain that has two labels or more, after their mean, which is 0 without any; "" is the
    domain of texts without one."""
    labels = torch.tensor([label for _, label in part])
    domains: dict[str, list[int]] = defaultdict(list)
    for i, (document, _) in enumerate(part):
        domains[document.domain or ""].append(i)
    mixed = {name: rows for name, rows in domains.items() if len(labels[rows].unique()) > 1}
    scores = {name: balanced_accuracy(answers[rows], labels[rows]) for name, rows in mixed.items()}
    return statistics.fmean(scores.values()) if scores else 0.0, scores


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


def _columns(part: Labelled) -> tuple[list[str], list[int]]:
    return [document.text for document, _ in part], [label for _, label in part]


def _figures(bag: Any, part: Labelled) -> Figures:
    texts, labels = _columns(part)
    answers = torch.from_numpy(bag.predict(texts))
    accuracy = (answers == torch.tensor(labels)).double().mean().item()
    return {"accuracy": accuracy, "balanced_accuracy": balanced_by_domain(answers, part)[0]}


def _key(*parts: tuple[str, Labelled]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name, part in parts:
        digest.update(repr((name, len(part))).encode())
        for document, label in part:
            digest.update(repr((document.text, document.domain, label)).encode())
    return digest.hexdigest()
