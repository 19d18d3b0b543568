"""The labels of a table: how many texts each has, and the name of each value in the recipe."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from training.classify.toml import inline
from training.classify.values import natural_order, spellings
from training.errors import SourceError
from training.sources.documents import Document
from training.sources.labels import canonical

MIN_TEXTS = 10
"""Minimum number of texts of two labels: with fewer, neither training nor figures mean anything."""

KEPT_TEXTS = 4000
"""Texts from which `training.classify.start` takes a sample: a file may be sorted by labels."""


@dataclass(slots=True)
class LabelCounts:
    """Labels of the rows that have a text."""

    texts: int = 0
    """Rows with a text and a label."""
    unlabelled: int = 0
    """Rows with a text only."""
    values: Counter[str] = field(default_factory=Counter)
    """Texts of each value."""
    first: list[Document] = field(default_factory=list)
    """The first texts with labels, at most `KEPT_TEXTS`."""


def count_labels(found: Iterable[Document]) -> LabelCounts:
    """Count the labels of documents."""
    counts = LabelCounts()
    for document in found:
        labels = document.label if isinstance(document.label, tuple) else (document.label or "",)
        values = {canonical(label.strip()) for label in labels} - {""}
        counts.texts += bool(values)
        counts.unlabelled += not values
        if values and len(counts.first) < KEPT_TEXTS:
            counts.first.append(document)
        for value in values:
            counts.values[value] += 1
    return counts


def name_labels(
    counts: LabelCounts, tested: LabelCounts, stated: Mapping[str, str], name: str
) -> tuple[dict[str, str], list[str]]:
    """A label for each value of the table and of the test table, "" if it is left out; and the reasons for these.

    Args:
        tested: Labels of the test table; empty without one.
        stated: `finetune.labels` of the command line. Values that it does not name keep their spelling.
        name: Name of the table in messages.

    Raises:
        SourceError: values differ only in their spelling, or there are too few labels or texts.
    """
    every = counts.values + tested.values
    stated = {canonical(value): label for value, label in stated.items()}
    if unknown := [value for value in stated if value and value not in every]:
        raise SourceError(f"finetune.labels names {unknown[0]!r}, but the column has the values {listed(every, 20)}")
    names = {value: stated.get(value, value) for value in sorted(every, key=natural_order)}
    _check_spellings(every, names, stated, name)
    notes = []
    if without := counts.unlabelled + tested.unlabelled:
        names[""] = stated.get("", "")
        notes.append(f"left out: {without:,} text{'s' * (without != 1)} without a label")
    if new := {value: count for value, count in tested.values.items() if value not in counts.values and names[value]}:
        names |= dict.fromkeys(new, "")
        notes.append(f"left out of the test table: labels that {name} does not have: {listed(new)}")
    texts = _texts(counts, names)
    if few := {value: counts.values[value] for value, label in names.items() if label and texts[label] < 2}:
        names |= dict.fromkeys(few, "")
        notes.append(f"left out: labels with one text: {listed(few)}")
    _check_enough(counts, names, name)
    return names, notes


def _texts(counts: LabelCounts, names: Mapping[str, str]) -> Counter[str]:
    """Texts of each label."""
    texts: Counter[str] = Counter()
    for value, label in names.items():
        if label:
            texts[label] += counts.values[value]
    return texts


def listed(counts: Mapping[str, int], most: int = 1000) -> str:
    """Values with their number of texts, the most frequent first, and the number of values beyond `most`.

    >>> listed({"bad": 3, "good": 1200}), listed({"bad": 3, "good": 1200}, most=1)
    ('good (1,200), bad (3)', 'good (1,200) and 1 more')
    """
    values = sorted(counts, key=lambda value: -counts[value])
    shown = ", ".join(f"{value} ({counts[value]:,})" for value in values[:most])
    return shown + (f" and {len(values) - most} more" if len(values) > most else "")


def _check_spellings(counts: Mapping[str, int], names: Mapping[str, str], stated: Mapping[str, str], name: str) -> None:
    groups = [
        group
        for group in spellings(counts)
        if len({names[value] for value in group}) > 1 and not all(value in stated for value in group)
    ]
    if not groups:
        return
    lines = "\n".join(f"  {listed({value: counts[value] for value in group})}" for group in groups)
    merged = dict(stated) | {value: group[0] for group in groups for value in group}
    raise SourceError(
        f"{name}: labels that differ only in their spelling:\n{lines}\nto make each line one label, add "
        f"{shlex.quote(f'finetune.labels={inline(merged)}')}\nor give there each its own label"
    )


def _check_enough(counts: LabelCounts, names: Mapping[str, str], name: str) -> None:
    """Raise SourceError unless two labels have `MIN_TEXTS` texts."""
    texts = _texts(counts, names)
    if len(texts) < 2 or min(count for _, count in texts.most_common(2)) < MIN_TEXTS:
        there = listed(counts.values, 20) or "none"
        raise SourceError(
            f"{name}: a classifier needs two labels with {MIN_TEXTS} texts each, better with hundreds; the labels are "
            f"{there}"
        )


def used(counts: LabelCounts, names: Mapping[str, str]) -> str:
    """The values that are trained on with their number of texts, each with its label if that is another."""
    values = {value: count for value, count in counts.values.items() if names[value]}
    return listed({value if names[value] == value else f"{value} as {names[value]}": values[value] for value in values})
