"""Labelled documents, with the labels of a model for the values of a label column."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from bert_client.tables.files import Progress
from training.errors import SourceError
from training.recipe import Recipe, SourceConfig, source_name
from training.sources.documents import Document, documents

_WHOLE_FLOAT = re.compile(r"(-?\d+)\.0+")
"""How pandas writes the label 1 into a CSV file if another row has no label."""


def labelled(source: SourceConfig, recipe: Recipe, progress: Progress | None = None) -> Iterator[tuple[Document, int]]:
    """The documents of a source with the index of their label among `finetune.label_names`. Those whose label
    `finetune.labels` maps to "" are left out; its value "" stands for a missing label.

    Raises:
        SourceError: the source has no label column, or a label is missing or unknown; names the file and the line.
    """
    if source.label is None and source.format != "fasttext":
        raise SourceError(f"{source_name(source)}: fine-tuning needs the source's `label`, the column of labels")
    labels = recipe.finetune.labels
    index = {name: number for number, name in enumerate(recipe.finetune.label_names)}
    for document in documents(source, recipe.data, progress, recipe.hub_cache):
        value = document.label or ""
        if value not in labels:
            value = canonical(value)
        label = labels.get(value)
        if label is None:
            raise _unknown_label(document, labels)
        if label:
            yield document, index[label]


def canonical(value: str) -> str:
    """A label with whole numbers as `1`, not as `1.0`."""
    whole = _WHOLE_FLOAT.fullmatch(value)
    return whole[1] if whole else value


def _unknown_label(document: Document, labels: Mapping[str, str]) -> SourceError:
    if document.label is None:
        return SourceError(
            f"{document.place}: has no label; fill it, remove the row, or leave such rows out with the value "
            '"" = "" in finetune.labels'
        )
    known = ", ".join(repr(value) for value in labels if value)
    return SourceError(
        f"{document.place}: label {document.label!r} is not in finetune.labels ({known}); name every value of the "
        'column there, and give those to leave out the label ""'
    )
