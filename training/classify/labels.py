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
from training.sources.labels import MAX_LISTED, canonical, label_values
from training.sources.split import text_hash

MIN_TEXTS = 10
"""Minimum number of texts of two labels: with fewer, neither training nor figures mean anything."""

KEPT_TEXTS = 4000
"""Texts from which `training.classify.start` takes some that are not held out."""


@dataclass(slots=True)
class LabelCounts:
    """Labels of the rows that have a text."""

    texts: int = 0
    """Rows whose text has a label, or may lack one."""
    unlabelled: int = 0
    """The other rows: their text lacks a label."""
    values: Counter[str] = field(default_factory=Counter)
    """Texts of each value."""
    sample: list[Document] = field(default_factory=list)
    """A sample of these texts, at most `KEPT_TEXTS`."""


def count_labels(found: Iterable[Document], *, may_lack: bool) -> LabelCounts:
    """Count the labels of documents.

    Args:
        may_lack: Whether a text may have none of several labels, as an empty list or columns of 0 say.
    """
    counts = LabelCounts()
    for document in found:
        values = set(map(canonical, label_values(document)))
        is_used = values != {""} and (bool(values) or may_lack)
        counts.texts += is_used
        counts.unlabelled += not is_used
        if is_used and len(counts.sample) < KEPT_TEXTS:
            counts.sample.append(document)
        elif is_used and (place := text_hash(document.text) % counts.texts) < KEPT_TEXTS:
            counts.sample[place] = document  # reservoir sampling, because a file may be sorted
        counts.values.update(values - {""})
    return counts


def name_labels(
    counts: LabelCounts, tested: LabelCounts, stated: Mapping[str, str], name: str
) -> tuple[dict[str, str], list[str]]:
    """A label for each value of the table and of the test table, "" if it is left out; and the reasons for these.

    Args:
        tested: Labels of the test table; empty without one.
        stated: Names from the file, and `finetune.labels`. Values without one keep their spelling.
        name: Name of the table in messages.

    Raises:
        SourceError: values differ only in their spelling, or there are too few labels or texts, or none to test.
    """
    every = counts.values + tested.values
    stated = {canonical(value): label for value, label in stated.items()}
    if unknown := [value for value in stated if value and value not in every]:
        raise SourceError(f"finetune.labels names {unknown[0]!r}, but the column has the values {listed(every)}")
    names = {value: stated.get(value, value) for value in sorted(every, key=natural_order)}
    _check_spellings(every, names, stated, name)
    notes = []
    if without := counts.unlabelled + tested.unlabelled:
        names[""] = stated.get("", "")
        notes.append(f"left out: {without:,} text{'s' * (without != 1)} without a label")
    if new := {value: count for value, count in tested.values.items() if value not in counts.values and names[value]}:
        names |= dict.fromkeys(new, "")
        notes.append(f"left out of the test table: labels that {name} does not have: {listed(new)}")
    if tested.texts + tested.unlabelled and not any(names.get(value) for value in tested.values):
        raise SourceError(f"the test table has no text with a label of {name}; it needs the same columns and format")
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


def listed(counts: Mapping[str, int], most: int = MAX_LISTED) -> str:
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
        there = listed(counts.values) or "none"
        raise SourceError(
            f"{name}: a classifier needs two labels with {MIN_TEXTS} texts each, better with hundreds; the labels are "
            f"{there}"
        )


def used(counts: LabelCounts, names: Mapping[str, str]) -> str:
    """The values that are trained on with their number of texts, each with its label if that is another."""
    values = {value: count for value, count in counts.values.items() if names[value]}
    return listed({value if names[value] == value else f"{value} as {names[value]}": values[value] for value in values})
