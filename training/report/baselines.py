"""What bags of words score on the same labelled text: the figures that a classifier has to beat."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from training.corpus.encode import NO_LABEL
from training.corpus.inputs import labelled, labelled_inputs
from training.errors import RunError
from training.evaluate.classification import classification_report
from training.recipe import Recipe, source_name
from training.report.bag_of_words import BagOfWords
from training.report.naive_bayes import NaiveBayesBag
from training.runtime.files import read_json, write_json
from training.sources.documents import Document

MAX_TEXTS = 300_000
"""Texts that a bag learns from, drawn evenly: 400,000 features of so many texts take some 4 GB."""

logger = logging.getLogger(__name__)

Labelled = list[tuple[Document, int]]
Fit = Callable[[Sequence[Document], Sequence[Document]], "BagOfWords | NaiveBayesBag"]

BAGS: Mapping[str, Fit] = {
    "TF-IDF + logistic regression": BagOfWords.fit,
    "naive Bayes (1-3-grams)": NaiveBayesBag.fit,
}


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one model on one test set."""

    accuracy: float
    balanced_accuracy: float
    """Mean over the domains of a test set that has several."""


def evaluate_baselines(recipe: Recipe, test: Mapping[str, Labelled]) -> dict[str, dict[str, Figures]]:
    """Figures by name of the baseline and of the test set; those of the same texts are read from `baselines.json`."""
    train, dev = _parts(recipe)
    file, key = recipe.folder / "baselines.json", _key(train, dev, *(part for part in test.values()))
    found = read_json(file) or {}
    if found.get("key") == key:
        return {
            bag: {name: Figures(**row) for name, row in rows.items()} for bag, rows in found["figures"].items()
        }
    names = recipe.finetune.label_names
    figures: dict[str, dict[str, Figures]] = {}
    for title, fit in BAGS.items():
        try:
            bag = fit([_named(*item, names) for item in train], [_named(*item, names) for item in dev])
        except RunError as error:
            logger.warning("the report has no %s: %s", title, error)
            continue
        figures[title] = {name: _figures(bag, part, names) for name, part in test.items()}
    rows = {bag: {name: _row(f) for name, f in by_test.items()} for bag, by_test in figures.items()}
    write_json(file, {"key": key, "figures": rows})
    return figures


def read_test(recipe: Recipe) -> dict[str, Labelled]:
    """The labelled documents of each test source."""
    return {source_name(source): list(labelled(source, recipe)) for source in recipe.finetune.test}


def by_domain(part: Labelled) -> dict[str, list[int]]:
    """Positions of the documents of each domain; one entry, "", without domains."""
    domains: dict[str, list[int]] = {}
    for i, (document, _) in enumerate(part):
        domains.setdefault(document.domain or "", []).append(i)
    return domains


def mean_balanced_accuracy(
    logits: torch.Tensor, labels: torch.Tensor, domains: Iterable[Sequence[int]]
) -> float:
    """Mean over domains of the balanced accuracy, of those that have two labels or more."""
    reports = [
        classification_report(logits[list(rows)], labels[list(rows)])
        for rows in domains
        if len(labels[list(rows)].unique()) > 1
    ]
    return sum(report.balanced_accuracy for report in reports) / len(reports) if reports else 0.0


def _parts(recipe: Recipe) -> tuple[Labelled, Labelled]:
    """Training and dev documents that have a label."""
    train: Labelled = []
    dev: Labelled = []
    for shard_input in labelled_inputs(recipe):
        assert shard_input.labels is not None
        rows = zip(shard_input.documents, shard_input.labels, strict=True)
        known = [(document, label) for document, label in rows if label != NO_LABEL]
        (train if shard_input.part == "train" else dev).extend(known)
    step = max(1, -(-len(train) // MAX_TEXTS))
    return train[::step], dev


def _named(document: Document, label: int, names: Sequence[str]) -> Document:
    return Document(document.text, document.fields, names[label])


def _figures(bag: BagOfWords | NaiveBayesBag, part: Labelled, names: Sequence[str]) -> Figures:
    logits = torch.from_numpy(bag.log_probabilities([document for document, _ in part], names))
    labels = torch.tensor([label for _, label in part])
    accuracy = (logits.argmax(1) == labels).double().mean().item()
    return Figures(accuracy, mean_balanced_accuracy(logits, labels, by_domain(part).values()))


def _row(figures: Figures) -> dict[str, float]:
    return {"accuracy": figures.accuracy, "balanced_accuracy": figures.balanced_accuracy}


def _key(*parts: Labelled) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(b"%d\n" % len(part))
        for document, label in part:
            digest.update(repr((document.text, label)).encode())
    return digest.hexdigest()
