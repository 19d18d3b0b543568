"""What bags of words score on the same labelled text: the figures that a classifier has to beat."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from training.corpus.encode import NO_LABEL
from training.corpus.inputs import labelled_inputs
from training.evaluate.classification import classification_report
from training.recipe import Recipe, source_name
from training.runtime.files import read_json, write_json
from training.sources.documents import Document
from training.sources.labels import labelled

MAX_TEXTS = 300_000
"""Texts that a bag learns from, drawn evenly: more need more memory than a laptop has."""

STRENGTHS = (1.0, 10.0, 100.0)
"""Inverse regularisation of the logistic regressions; dev chooses."""

_UNSPACED = r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]"
"""A letter of a script without spaces: its own token, so that pairs and triples stand for words."""
_WORD = rf"(?u){_UNSPACED}|(?:(?!{_UNSPACED})[\w'\u0300-\u036f\u0591-\u05c7\u064b-\u065f\u0900-\u0dff])+|[!?]"
"""A token of a bag: a word with its accents and vowel signs, or a mark that tells opinions apart."""

logger = logging.getLogger(__name__)

Labelled = list[tuple[Document, int]]


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of one baseline on one test set."""

    accuracy: float
    balanced_accuracy: float
    """Mean over the domains of a test set that has several."""


def evaluate_baselines(recipe: Recipe, test: Mapping[str, Labelled]) -> dict[str, dict[str, Figures]]:
    """Figures by name of the baseline and of the test set. Those of the same texts are read from `baselines.json`."""
    train, dev = _parts(recipe)
    file, key = recipe.folder / "baselines.json", _key(("train", train), ("dev", dev), *test.items())
    found = read_json(file) or {}
    if found.get("key") == key:
        return {bag: {name: Figures(**row) for name, row in rows.items()} for bag, rows in found["figures"].items()}
    figures: dict[str, dict[str, Figures]] = {}
    for title in ("TF-IDF + logistic regression", "naive Bayes (1-3-grams)"):
        logger.info("%s on %d texts", title, len(train))
        try:
            bag = fit_tfidf(train, dev) if title.startswith("TF-IDF") else fit_naive_bayes(train, dev)
        except ValueError as error:  # no word occurs often enough, or all labels are equal
            logger.warning("the report has no %s: %s", title, error)
            continue
        figures[title] = {name: _figures(bag, part) for name, part in test.items()}
    rows = {bag: {name: asdict(f) for name, f in by_test.items()} for bag, by_test in figures.items()}
    write_json(file, {"key": key, "figures": rows})
    return figures


def fit_tfidf(train: Labelled, dev: Labelled) -> Any:
    """TF-IDF of words and word pairs under a logistic regression; a scikit-learn pipeline.

    Raises:
        ValueError: there is nothing to learn.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer  # seconds to import
    from sklearn.linear_model import LogisticRegression

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
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.multiclass import OneVsRestClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import Normalizer

    from training.report.log_count_ratio import LogCountRatio

    words = CountVectorizer(ngram_range=(1, 3), token_pattern=_WORD, binary=True, min_df=2, dtype=np.float32)

    def classifier(strength: float) -> Any:
        regression = LogisticRegression(C=strength, max_iter=1000)
        return OneVsRestClassifier(make_pipeline(LogCountRatio(), Normalizer(), regression))

    return _fit(words, classifier, train, dev)


def _fit(words: Any, classifier: Any, train: Labelled, dev: Labelled) -> Any:
    from sklearn.pipeline import make_pipeline

    features = words.fit_transform(_texts(train))
    labels = [label for _, label in train]
    fitted = [classifier(strength).fit(features, labels) for strength in (STRENGTHS if dev else STRENGTHS[1:2])]
    bags = [make_pipeline(words, each) for each in fitted]
    return max(bags, key=lambda bag: bag.score(_texts(dev), [label for _, label in dev])) if dev else bags[0]


def read_test(recipe: Recipe) -> dict[str, Labelled]:
    """The labelled documents of each test source."""
    return {source_name(source): list(labelled(source, recipe)) for source in recipe.finetune.test}


def by_domain(part: Labelled) -> dict[str, list[int]]:
    """Positions of the documents of each domain; one entry, "", without domains."""
    domains: dict[str, list[int]] = {}
    for i, (document, _) in enumerate(part):
        domains.setdefault(document.domain or "", []).append(i)
    return domains


def mean_balanced_accuracy(logits: torch.Tensor, labels: torch.Tensor, domains: Iterable[Sequence[int]]) -> float:
    """Mean over domains of the balanced accuracy, of those that have two labels or more."""
    chosen = [list(rows) for rows in domains if len(labels[list(rows)].unique()) > 1]
    scores = [classification_report(logits[rows], labels[rows]).balanced_accuracy for rows in chosen]
    return sum(scores) / len(scores) if scores else 0.0


def _parts(recipe: Recipe) -> tuple[Labelled, Labelled]:
    """Training and dev documents that have a label."""
    train: Labelled = []
    dev: Labelled = []
    for shard_input in labelled_inputs(recipe):
        assert shard_input.labels is not None
        rows = zip(shard_input.documents, shard_input.labels, strict=True)
        (train if shard_input.part == "train" else dev).extend(row for row in rows if row[1] != NO_LABEL)
    return train[:: max(1, -(-len(train) // MAX_TEXTS))], dev


def _texts(part: Labelled) -> list[str]:
    return [document.text for document, _ in part]


def _figures(bag: Any, part: Labelled) -> Figures:
    answers = torch.from_numpy(bag.predict(_texts(part))).long()
    labels = torch.tensor([label for _, label in part])
    logits = torch.nn.functional.one_hot(answers, int(max(answers.max(), labels.max())) + 1).float()
    balanced = mean_balanced_accuracy(logits, labels, by_domain(part).values())
    return Figures((answers == labels).double().mean().item(), balanced)


def _key(*parts: tuple[str, Labelled]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name, part in parts:
        digest.update(repr((name, len(part))).encode())
        for document, label in part:
            digest.update(repr((document.text, document.domain, label)).encode())
    return digest.hexdigest()
