"""Values of a label column to the labels of a model."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping

from training.errors import SourceError
from training.sources.documents import Document
from training.sources.tables import log_once


def with_label_index(found: Iterable[Document], labels: Mapping[str, str]) -> Iterator[tuple[Document, int]]:
    """Documents with the index of their label among the model's, which are in the order of their first appearance.

    Args:
        labels: Value of the label column -> label, as `finetune.labels`. Several values may have one label, and the
            label `""` leaves a value out. The value `""` stands for a missing label.

    Raises:
        SourceError: a label is missing or unknown; names the file and the line.
    """
    names = dict.fromkeys(filter(None, labels.values()))
    index = {name: number for number, name in enumerate(names)}
    left_out, first = 0, ""
    for document in found:
        label = labels.get(document.label or "")
        if label is None:
            raise _unknown_label(document, labels)
        if label:
            yield document, index[label]
        else:
            left_out, first = left_out + 1, first or document.place
    if left_out:
        log_once(f"left out {left_out:,} documents by their label (the first is {first})", logging.INFO)


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
