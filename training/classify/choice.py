"""The choice of the columns of a table that hold the texts and the labels.

A column is chosen if it is the only one that fits: by its name, else by its values. Otherwise an error lists the
columns with examples, and names options that choose some.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence

from bert_tables import find_column
from training.classify.columns import MAX_VALUES, Column, TableSurvey
from training.classify.values import are_quantities, separator_advice
from training.errors import SourceError
from training.recipe import REGRESSION, SINGLE_LABEL
from training.sources.labels import number_of
from training.sources.tables import MARKS

_TEXT_NAMES = {
    *("text", "texts", "review", "comment", "content", "body", "message", "sentence", "utterance", "document"),
    *("tweet", "query", "question", "feedback", "description"),
}
_LABEL_NAMES = {
    *("label", "labels", "class", "category", "categories", "sentiment", "topic", "topics", "intent", "target"),
    *("tag", "tags", "rating", "stars", "polarity"),
}
_EXAMPLES, _EXAMPLE_CHARACTERS = 3, 24


def choose_columns(table: TableSurvey, text: str | None, label: str | None) -> tuple[list[Column], list[Column]]:
    """The text columns and the label columns.

    Args:
        text: The option `--text`: names or numbers of columns, separated by commas.
        label: The option `--label`, likewise.

    Raises:
        SourceError: a column is missing or does not fit, or several fit; the message lists all columns.
    """
    labels = _named(table, label) if label is not None else []
    texts = _named(table, text) if text is not None else []
    if not texts:
        others = [column for column in table.columns if column not in labels and not column.is_folder]
        texts = [_only(table, others, "text", _TEXT_NAMES, lambda column: column.is_text)]
    if not labels:
        others = [column for column in table.columns if column not in texts and not column.is_folder]
        labels = [_only(table, others, "label", _LABEL_NAMES, lambda column: column.is_label)]
    if both := [column for column in labels if column in texts]:
        raise _error(table, f"the column {both[0].name!r} cannot be text and label")
    if None not in (numbers := {number_of(value) for column in texts for value in column.values}) and numbers:
        raise _error(table, f"the column {texts[0].name!r} holds numbers, not texts")
    return texts, labels


def check_label_column(table: TableSurvey, column: Column) -> None:
    """Raise SourceError if a column does not hold labels: its values occur about once each, or are quantities."""
    if are_quantities(column.values):
        problem = f"the column {column.name!r} holds {_count(column)} different numbers, which do not look like labels"
        raise SourceError(
            f"{_error(table, problem)}"
            f"\nor, for a model that predicts the number, add: finetune.problem_type={REGRESSION}"
            f"\nor, if each number is a label, add: finetune.problem_type={SINGLE_LABEL}"
        )
    if column.is_unique and not column.is_label:
        counts = f"{_count(column)} different values in {column.rows:,} rows"
        problem = f"the column {column.name!r} has {counts}, but each label needs several texts"
        raise _error(table, "; ".join([problem, *separator_advice(column.values)]))


def _error(table: TableSurvey, problem: str) -> SourceError:
    """The error that lists the columns, with an example of the options that name some."""
    text = ",".join([column.name for column in table.columns if column.is_text][:2]) or "COLUMN"
    labels = [column.name for column in table.columns if column.is_label] or ["COLUMN"]
    marks = [each.name for each in table.columns if each.rows and {*map(str.lower, each.values)} <= MARKS.keys()]
    label = ",".join(marks) if len(marks) > 1 else min(labels, key=lambda name: _plain(name) not in _LABEL_NAMES)
    options = f"--text {shlex.quote(text)} --label {shlex.quote(label)}"
    options += "; or state --first-line or --delimiter, if it has more columns" * (len(table.columns) == 1)
    return SourceError(f"{table.name}: {problem}. Its columns:\n{_listing(table)}\nname them, such as: {options}")


def _named(table: TableSurvey, stated: str) -> list[Column]:
    """The columns with these names or numbers, separated by commas; the name of a column may have some."""
    columns = {column.name: column for column in table.columns}
    addresses = stated.split(",") if find_column([*columns], stated) is None else [stated]
    found = [find_column([*columns], address) for address in addresses]
    if None in found:
        raise _error(table, f"it has no column {addresses[found.index(None)]!r}")
    return [columns[name] for name in found if name is not None]


def _only(
    table: TableSurvey, columns: Sequence[Column], what: str, names: set[str], fits: Callable[[Column], bool]
) -> Column:
    """The only column that has one of the names, else the only one whose values fit."""
    named = [column for column in columns if _plain(column.name) in names]
    fitting = [column for column in columns if fits(column)]
    both = [column for column in named if column in fitting]
    best = both or (named if not fitting else fitting if not named else [])
    if len(best) == 1:
        return best[0]
    several = ", ".join(dict.fromkeys(repr(column.name) for column in [*named, *fitting]))
    problem = f"several columns may hold the {what}: {several}" if several else f"no column looks like the {what}"
    raise _error(table, problem)


def _plain(name: str) -> str:
    return name.strip().casefold()


def _listing(table: TableSurvey) -> str:
    """A line for each column: its name, number of different values, and examples."""
    shown = [column for column in table.columns if column.rows]
    rows = [("column", "values", "such as")]
    rows += [(column.name, _count(column), " · ".join(_examples(column))) for column in shown]
    wide, narrow = (max(len(row[i]) for row in rows) for i in (0, 1))
    return "\n".join(f"  {name:<{wide}}  {count:>{narrow}}  {examples}" for name, count, examples in rows)


def _count(column: Column) -> str:
    """The number of different values."""
    return f"over {MAX_VALUES:,}" if column.has_more else f"{len(column.values):,}"


def _examples(column: Column) -> Iterator[str]:
    for value, count in column.values.most_common(_EXAMPLES):
        line = " ".join(value.split())
        short = line if len(line) <= _EXAMPLE_CHARACTERS else f"{line[:_EXAMPLE_CHARACTERS].rstrip()}…"
        yield short if column.is_unique else f"{short} ({count:,})"
