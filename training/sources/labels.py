"""Labelled documents, with the target of a model for the value of a label column."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress

from bert_tables.files import Progress
from training.errors import SourceError
from training.recipe import MULTI_LABEL, REGRESSION, SINGLE_LABEL, FinetuneConfig, Recipe, SourceConfig, source_name
from training.sources.documents import Document, documents

Target = int | tuple[float, ...]
"""The output that a model should give: the index of the one label, or a number for each output. With several labels,
the numbers are 1 or 0."""

MAX_LISTED = 20
"""Maximum number of labels in a message."""

_WHOLE_FLOAT = re.compile(r"(-?\d+)\.0+")
"""The label 1 as pandas writes it into a CSV file if another row has no label."""

_DECIMAL_COMMA = re.compile(r"^([-+]?\d+),((?<=\b0,)\d+|(?!\d{3}$)\d+)$")
"""A number with a decimal comma, but not 1,234, which is a whole number in English."""


def labelled(
    source: SourceConfig, recipe: Recipe, progress: Progress | None = None
) -> Iterator[tuple[Document, Target]]:
    """The documents of a source with their targets. Labels are numbered as in `finetune.label_names`. A text whose
    label `finetune.labels` maps to "" is left out; the key "" stands for a missing label. With several labels, only
    that label is left out.

    Raises:
        SourceError: the source has no label column, or a label is missing, unknown or not a number. The message names
            the file and the line.
    """
    if source.label is None and source.format != "fasttext":
        raise SourceError(f"{source_name(source)}: fine-tuning needs the source's `label`, the column of labels")
    return with_targets(documents(source, recipe.data, progress), recipe.finetune)


def with_targets(found: Iterable[Document], config: FinetuneConfig) -> Iterator[tuple[Document, Target]]:
    """Documents with their targets; see `labelled`."""
    target_of = _TARGETS[config.problem_type](config)
    for document in found:
        if (target := target_of(document)) is not None:
            yield document, target


def _one_label(config: FinetuneConfig) -> Callable[[Document], int | None]:
    index = {name: number for number, name in enumerate(config.label_names)}

    def target(document: Document) -> int | None:
        if len(values := label_values(document)) > 1:
            raise SourceError(
                f"{document.place}: has the labels {', '.join(values)}; a text has one, unless "
                f"finetune.problem_type is {MULTI_LABEL}"
            )
        return index.get(_label("".join(values), document, config.labels))

    return target


def _labels(config: FinetuneConfig) -> Callable[[Document], tuple[float, ...] | None]:
    names = config.label_names

    def target(document: Document) -> tuple[float, ...] | None:
        values = label_values(document)
        labels = {_label(value, document, config.labels) for value in values}
        return None if values == [""] and labels == {""} else tuple(1.0 if name in labels else 0.0 for name in names)

    return target


def _number(_config: FinetuneConfig) -> Callable[[Document], tuple[float, ...]]:
    seen: set[str] = set()  # the marks of all numbers so far, because a column has one notation

    def target(document: Document) -> tuple[float, ...]:
        label = document.label or ""
        number = number_of(label) if isinstance(label, str) else None
        seen.update({",", "."}.intersection(label), ["%" if "%" in label else "no %"])
        if number is None or {",", "."} <= seen or {"%", "no %"} <= seen:
            said = f"{label!r} is not a number, or not in the notation of the rows before" if label else "has no number"
            raise SourceError(f"{document.place}: {said}; write it as 1.5, or remove the row")
        return (number,)

    return target


_TARGETS = {SINGLE_LABEL: _one_label, MULTI_LABEL: _labels, REGRESSION: _number}


def number_of(value: str) -> float | None:
    """A finite number, which may have a decimal comma or a percent sign; None for other values.

    >>> [number_of(value) for value in ("4.5", "4,5", "80%", "0,125", "1,234", "4/5")]
    [4.5, 4.5, 80.0, 0.125, None, None]
    """
    value = value.strip().removesuffix("%").rstrip()
    with suppress(ValueError):
        if math.isfinite(number := float(_DECIMAL_COMMA.sub(r"\1.\2", value))):
            return number
    return None


def label_values(document: Document) -> list[str]:
    """The values of a text's label: only "" if it is missing, none if it is an empty list."""
    labels = document.label if isinstance(document.label, tuple) else (document.label or "",)
    values = dict.fromkeys(map(str.strip, labels))
    return [*filter(None, values)] or [*values]


def canonical(value: str) -> str:
    """A label with whole numbers as `1` instead of `1.0`, and composed characters (NFC): macOS writes others."""
    value = unicodedata.normalize("NFC", value)
    whole = _WHOLE_FLOAT.fullmatch(value)
    return whole[1] if whole else value


def _label(value: str, document: Document, labels: Mapping[str, str]) -> str:
    """The model's label for a value of the column; "" if it is left out."""
    if value not in labels:
        value = canonical(value)
    if (label := labels.get(value)) is not None:
        return label
    if not value:
        raise SourceError(
            f"{document.place}: has no label; fill it, remove the row, or leave such rows out with the value "
            '"" = "" in finetune.labels; for a text with none of several labels, write [], or 0 into each column'
        )
    names = [repr(value) for value in labels if value]
    known = ", ".join(names[:MAX_LISTED]) + f" and {len(names) - MAX_LISTED} more" * (len(names) > MAX_LISTED)
    raise SourceError(
        f"{document.place}: label {value!r} is not in finetune.labels ({known}); name every value of the "
        'column there, and give those to leave out the label ""'
    )
