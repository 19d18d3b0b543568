"""The part of each labelled text: trained on, dev, test, or left out.

A function of hashes, labels and domains decides, so it reads no text, and every run decides alike. Texts and groups of
test are in no other part, and those of dev are not trained on. Each label has its share of dev and test.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from training.corpus.encode import NO_LABEL
from training.errors import RunError
from training.recipe import REGRESSION, FinetuneConfig, SourceConfig, source_name
from training.sources.documents import Document
from training.sources.tables import log_once

FEW_DEV_TEXTS = 100
"""Below this, one standard error of an accuracy of 0.9 is above 0.03."""

Rows = NDArray[np.int64]
Hashes = NDArray[np.uint64]
Mask = NDArray[np.bool_]
Parts = NDArray[np.uint8]


class Part(IntEnum):
    """Values of the column `parts`."""

    LEFT_OUT = 0
    TRAIN = 1
    DEV = 2
    TEST = 3


ALL_ROWS = "all_rows"
"""Folder in that of labelled text with the column `parts` of `finetune.all_rows`: nothing of `train` is held out."""

TEST, TRAIN, UNLABELLED = "test", "train", "unlabelled"
"""The list of a recipe that names a source: `finetune.test`, `finetune.train` or `soft_labels.sources`."""

Sources = Sequence[tuple[str, SourceConfig]]
"""Sources of labelled text, each with the list that names it."""

Columns = Mapping[str, NDArray[Any]]
"""(documents,) `texts`, `groups`, `labels`, `domains` and `changed` of all shards (training.corpus.shards) in the order
of reading, and `sources`: the number of the document's source."""


def labelled_sources(config: FinetuneConfig, unlabelled: Sequence[SourceConfig]) -> Sources:
    """The sources of labelled text, in the order in which they are read."""
    lists = {TEST: config.test, TRAIN: config.train, UNLABELLED: unlabelled}
    return [(use, source) for use, sources in lists.items() for source in sources]


def split(columns: Columns, sources: Sources, config: FinetuneConfig, document: Callable[[int], Document]) -> Parts:
    """(documents,) the `Part` of each document. A text that occurs several times is trained on once, and not at all if
    its labels differ.

    Args:
        document: reads a document, for messages.

    Raises:
        RunError: no text of some label is left to train on.
    """
    rows, changed = (~columns["changed"]).nonzero()[0], columns["changed"].nonzero()[0]
    parts = np.full(len(columns["changed"]), Part.LEFT_OUT, np.uint8)
    originals = {name: column[rows] for name, column in columns.items()}
    parts[rows] = _split(originals, sources, config, lambda row: document(int(rows[row])))
    changed = changed[parts[changed - 1] == Part.TRAIN]  # a changed form is trained on in place of the text before it
    parts[changed], parts[changed - 1] = Part.TRAIN, Part.LEFT_OUT
    return parts


def held_out(columns: Columns, sources: Sources, config: FinetuneConfig) -> Parts:
    """(documents,) `Part.TEST` and `Part.DEV`; `Part.LEFT_OUT` for others with a text or group of these; `Part.TRAIN`
    for the rest.

    Args:
        columns: `sources`, `texts`, `groups` and `labels` are used.
    """
    numbers, texts, groups, labels = (columns[name] for name in ("sources", "texts", "groups", "labels"))
    is_test, is_dev = np.zeros((2, len(texts)), np.bool_)
    for number, (use, _) in enumerate(sources):
        rows = (numbers == number).nonzero()[0]
        if use == TEST:
            is_test[rows] = True
        elif use == TRAIN and len(rows):
            is_dev[rows], is_test[rows] = _dev_and_test(groups[rows], _strata(labels[rows], config), config)
    is_tested = _overlaps(texts, groups, is_test)
    is_dev &= ~is_tested
    parts = np.where(is_tested | _overlaps(texts, groups, is_dev), Part.LEFT_OUT, Part.TRAIN).astype(np.uint8)
    parts[is_dev], parts[is_test] = Part.DEV, Part.TEST
    return parts


def _strata(labels: NDArray[Any], config: FinetuneConfig) -> Rows:
    """(documents,) the label in whose share of dev and test each counts: the rarest of several; 0 for all numbers."""
    if config.problem_type == REGRESSION:
        return np.zeros(len(labels), np.int64)
    if labels.ndim == 1:
        return labels
    return np.where(labels.any(1), np.where(labels > 0, labels.sum(0), np.inf).argmin(1), NO_LABEL)


def _dev_and_test(groups: Hashes, strata: Rows, config: FinetuneConfig) -> tuple[Mask, Mask]:
    """(documents,) whether each document of a source is in dev, and in test: of each label, the groups with the lowest
    and the highest hashes. So a new document changes the part of few others. A group counts for the label of its first
    document, and a label keeps a group to train on.
    """
    _, first, group = np.unique(groups, return_index=True, return_inverse=True)  # by hash
    label = np.unique(strata[first], return_inverse=True)[1]  # (groups,)
    counts = np.bincount(label)
    tested = _quotas(0.0 if config.test else config.test_fraction, counts, counts - 1)
    dev = _quotas(config.dev_share(len(label)), counts, counts - 1 - tested)
    rank = np.empty_like(label)  # of a group among those of its label
    rank[label.argsort(kind="stable")] = np.concatenate([*map(np.arange, counts)])
    return (rank < dev[label])[group], (rank >= (counts - tested)[label])[group]


def _quotas(fraction: float, counts: Rows, most: Rows) -> Rows:
    """(labels,) the number of groups of each label to hold out: its share, rounded so that their sum is right. At least
    one group is held out.

    >>> _quotas(0.2, np.array([10, 7, 3, 1]), np.array([9, 6, 2, 0])).tolist()
    [2, 1, 1, 0]
    """
    wanted = np.minimum(fraction * counts, most)
    quotas = wanted.astype(np.int64)
    missing = max(fraction > 0, round(wanted.sum())) - quotas.sum()
    quotas[(quotas - wanted).argsort(kind="stable")[:missing]] += 1
    return np.minimum(quotas, most)


def _overlaps(texts: Hashes, groups: Hashes, chosen: Mask) -> Mask:
    """(documents,) whether each has a text or a group of the chosen documents."""
    known = np.union1d(texts[chosen], groups[chosen])
    return np.isin(texts, known) | np.isin(groups, known)


def _split(columns: Columns, sources: Sources, config: FinetuneConfig, document: Callable[[int], Document]) -> Parts:
    numbers, texts, groups, labels = (columns[name] for name in ("sources", "texts", "groups", "labels"))
    held = held_out(columns, sources, config)
    parts = held.copy()
    is_from_train = np.array([use == TRAIN for use, _ in sources])[numbers]
    is_spelled_twice = np.array([source.treebank == "both" for _, source in sources])[numbers]

    # Labels are compared over all texts but those of `finetune.test`.
    is_from_test = np.array([use == TEST for use, _ in sources])[numbers]
    compared = (is_from_train & ~_overlaps(texts, groups, is_from_test)).nonzero()[0]
    first = _first_rows(texts, compared)
    differs = labels[compared] != labels[first]
    differing = compared[differs if differs.ndim == 1 else differs.any(1)]
    parts[is_from_train & (held == Part.TRAIN) & np.isin(texts, texts[differing])] = Part.LEFT_OUT
    trained = (is_from_train & (parts == Part.TRAIN)).nonzero()[0]
    repeated = trained[(_first_rows(texts, trained) != trained) & ~is_spelled_twice[trained]]
    parts[repeated] = Part.LEFT_OUT
    # What `balance` counts, and the first row of each text that has another label than before.
    counted = compared[(held[compared] == Part.TRAIN) & ((first == compared) | is_spelled_twice[compared])]
    contradicted = differing[_first_rows(texts, differing) == differing]

    for number, (use, source) in enumerate(sources):
        of_source = counted[numbers[counted] == number]
        dev = int((held[numbers == number] == Part.DEV).sum())
        if use == TRAIN and config.dev_fraction and dev < FEW_DEV_TEXTS:
            log_once(
                f"{source_name(source)}: only {dev} of {dev + len(of_source)} texts are in dev, too few to choose "
                "weights or a temperature reliably; raise finetune.dev_fraction, or label more texts"
            )
        if len(rows := contradicted[numbers[contradicted] == number]):
            example = document(int(rows[0]))
            log_once(
                f"{source_name(source)}: {len(rows)} texts occur with different labels and are not trained on; "
                f"correct the labels, such as that of {example.text[:60]!r} ({example.place})"
            )
        if source.balance is not None:
            _balance(source.balance, columns, of_source, (numbers == number) & (parts == Part.TRAIN), parts)
    if config.train and (fault := _lacking(config, labels[is_from_train & (parts == Part.TRAIN)])):
        raise RunError(fault)
    return parts


def _first_rows(texts: Hashes, rows: Rows) -> Rows:
    """(rows,) the first of some rows that has the text of each."""
    _, first, text = np.unique(texts[rows], return_index=True, return_inverse=True)
    return rows[first[text]]


def _balance(most: float, columns: Columns, counted: Rows, is_trained: Mask, parts: Parts) -> None:
    """Leave out some documents of a source, so that a label has about `most` times as many as the rarest of its domain;
    see `SourceConfig.balance`.

    Args:
        counted: rows that count.
        is_trained: (documents,) whether each document of the source would be trained on.
    """
    counts = Counter(_keys(columns, counted))
    rarest: dict[bytes, int] = {}
    for (domain, _), count in counts.items():
        rarest[domain] = min(count, rarest.get(domain, count))
    shares = {key: most * rarest[key[0]] / count for key, count in counts.items()}
    rows = is_trained.nonzero()[0]
    for row, text, key in zip(rows, columns["texts"][rows].tolist(), _keys(columns, rows), strict=True):
        if (share := shares.get(key, 1.0)) < 1 and np.random.default_rng((text, 1)).random() >= share:
            parts[row] = Part.LEFT_OUT


def _keys(columns: Columns, rows: Rows) -> list[tuple[bytes, int]]:
    return list(zip(columns["domains"][rows].tolist(), columns["labels"][rows].tolist(), strict=True))


def _lacking(config: FinetuneConfig, labels: NDArray[Any]) -> str:
    """The reason why texts with these labels are not enough to train on; "" if they are."""
    names = config.label_names
    if config.problem_type == REGRESSION:
        few = len(np.unique(labels)) < 2
        return f"finetune.train has one {names[0]} for all texts: numbers must differ" if few else ""
    counts = np.bincount(labels, minlength=len(names)) if labels.ndim == 1 else labels.sum(0)
    if missing := [name for name, count in zip(names, counts, strict=True) if not count]:
        return (
            f"finetune.train has no text labelled {', '.join(missing)}: is a file sorted by its labels and cut by "
            "`limit`, are all its texts in finetune.test, held out (finetune.test_fraction) or in dev "
            "(finetune.dev_fraction), do they all occur with another label too, or has finetune.labels one label too "
            "many?"
        )
    return ""
