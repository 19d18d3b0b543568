"""The labels of a table: how many texts each has, and the name of each value in the recipe."""

from __future__ import annotations

import itertools
import json
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bert_tables import TableError, cell_label
from training.classify.toml import inline
from training.classify.values import natural_order, spellings, split
from training.errors import SourceError
from training.recipe import SourceConfig
from training.sources.documents import documents
from training.sources.files import files, format_of_file
from training.sources.labels import canonical
from training.sources.split import text_hash
from training.sources.tables import labels_value, read_rows, text_value

MIN_TEXTS = 10
"""Minimum number of texts of two labels: with fewer, neither training nor figures mean anything."""

MANY_GROUPS = 20
"""A label with fewer groups of texts may have all of them held out."""


@dataclass(slots=True)
class LabelCounts:
    """Labels of the rows that have a text."""

    texts: int = 0
    """Rows with a text and a label."""
    unlabelled: int = 0
    """Rows with a text only."""
    values: Counter[str] = field(default_factory=Counter)
    """Texts of each value."""
    first_texts: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    """For each value, the hashes of two texts, or of the only one."""
    first_groups: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    """For each value, the hashes of at most `MANY_GROUPS` groups. A text without a group is a group by itself."""


def count_labels(source: SourceConfig, separator: str | None) -> LabelCounts:
    """Read the labels of all rows.

    Args:
        source: The source, with its columns.
        separator: see `training.classify.values.split`.
    """
    counts = LabelCounts()
    for text, cell, group in itertools.islice(_rows(source), source.limit):
        values = split(cell, separator) if cell is not None else []
        counts.texts += bool(values)
        counts.unlabelled += not values
        for value in set(values):
            counts.values[value] += 1
            if len(counts.first_texts[value]) < 2:
                counts.first_texts[value].add(text_hash(text))
            if len(counts.first_groups[value]) < MANY_GROUPS:
                counts.first_groups[value].add(text_hash(group or text))
    return counts


def _rows(source: SourceConfig) -> Iterator[tuple[str, str | None, str | None]]:
    """Text, label (a list as JSON) and group of each row that has a text."""
    for file in files(source, Path()):
        _, table = format_of_file(file, source)
        if table is None:
            alone = source.model_copy(update={"path": str(file)})
            for document in documents(alone, Path()):
                label = document.label
                yield document.text, json.dumps(label) if isinstance(label, tuple) else label, None
            continue
        for place, cells in read_rows(file, table, source, None):
            text = "\n".join((text_value(cells.get(name)) or "").strip() for name in source.text).strip()
            if text:
                try:
                    label = labels_value(cells.get(source.label or ""), source.label or "")
                    group = cell_label(cells.get(source.group or ""), source.group or "")
                except TableError as error:
                    raise SourceError(f"{place}: {error}") from error
                yield text, json.dumps(label) if isinstance(label, tuple) else label, group


@dataclass(frozen=True, slots=True)
class Labels:
    """The value of `finetune.labels`, and the reasons."""

    names: dict[str, str]
    """The label of each value; "" leaves the value out."""
    notes: list[str]
    """Descriptions of the values that are left out."""


def name_labels(
    counts: LabelCounts, tested: LabelCounts, stated: Mapping[str, str], split_: tuple[float, float], name: str
) -> Labels:
    """A label for each value of the table and of the test table.

    Args:
        tested: Labels of the test table; empty without one.
        stated: `finetune.labels` of the command line. Values that it does not name keep their spelling.
        split_: `dev_fraction` and `test_fraction`.
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
    for left_out, reason in _useless(counts, names, split_):
        if some := {value: counts.values[value] for value, label in names.items() if label and label in left_out}:
            names |= dict.fromkeys(some, "")
            notes.append(f"left out: labels {reason}: {listed(some)}")
    _check_enough(counts, names, name)
    return Labels(names, notes)


def _useless(
    counts: LabelCounts, names: Mapping[str, str], split_: tuple[float, float]
) -> Iterator[tuple[set[str], str]]:
    """Labels that cannot be learned, with the reasons; see `name_labels`."""
    texts: dict[str, set[int]] = defaultdict(set)
    groups: dict[str, set[int]] = defaultdict(set)
    for value, label in names.items():
        texts[label] |= counts.first_texts.get(value, set())
        groups[label] |= counts.first_groups.get(value, set())
    single = {label for label, hashes in texts.items() if len(hashes) == 1}
    yield single, "with one text"
    dev, test = (int(share * 2**64) for share in split_)  # as training.sources.split
    few = {label: hashes for label, hashes in groups.items() if len(hashes) < MANY_GROUPS}
    held_out = {label for label, hashes in few.items() if not any(dev <= group < 2**64 - test for group in hashes)}
    yield held_out - single, "whose few texts are all held out"


def listed(counts: Mapping[str, int], most: int = 1000) -> str:
    """Values with their number of texts, the most frequent first, and the number of values beyond `most`.

    >>> listed({"bad": 3, "good": 1200}), listed({"bad": 3, "good": 1200}, most=1)
    ('good (1,200), bad (3)', 'good (1,200) and 1 more')
    """
    values = sorted(counts, key=lambda value: -counts[value])
    shown = ", ".join(f"{value} ({counts[value]:,})" for value in values[:most])
    return shown + (f" and {len(values) - most} more" if len(values) > most else "")


def labels_override(labels: Mapping[str, str]) -> str:
    """A command line argument that states labels, quoted for a shell."""
    return shlex.quote(f"finetune.labels={inline(labels)}")


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
        f"{labels_override(merged)}\nor give there each its own label"
    )


def _check_enough(counts: LabelCounts, names: Mapping[str, str], name: str) -> None:
    """Raise SourceError unless two labels have `MIN_TEXTS` texts."""
    texts: Counter[str] = Counter()
    for value, label in names.items():
        if label:
            texts[label] += counts.values[value]
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
