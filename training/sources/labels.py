"""Values of a label column to the labels of a model."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from training.errors import SourceError
from training.sources.documents import Document

logger = logging.getLogger(__name__)


def with_model_labels(documents: Iterable[Document], labels: Mapping[str, str]) -> Iterator[Document]:
    """Documents with the model's labels in place of their values, without those that are left out.

    Args:
        labels: Value -> label, as `finetune.labels`. Several values may have one label; the label `""` leaves a
            value out. The value `""` is that of a document without a label.

    Raises:
        SourceError: a label is missing or unknown; names the file and the line.
    """
    left_out = 0
    for document in documents:
        label = labels.get(document.label or "")
        if label is None:
            raise _unknown(document, labels)
        if label:
            yield replace(document, label=label)
        left_out += not label
    if left_out:
        logger.info("%d documents are left out, as finetune.labels says", left_out)


def _unknown(document: Document, labels: Mapping[str, str]) -> SourceError:
    if document.label is None:
        remedy = 'fill it, or leave such rows out: finetune.labels."" = ""'
        return SourceError(f"{document.place}: has no label; {remedy}")
    known = ", ".join(repr(value) for value in labels if value)
    remedy = 'name every value of the column in finetune.labels; "" leaves a value out'
    return SourceError(f"{document.place}: label {document.label!r} is none of {known}; {remedy}")
