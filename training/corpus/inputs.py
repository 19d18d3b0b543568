"""Streams sources and cuts them into the inputs of shards, the same in every run."""

from __future__ import annotations

import itertools
import logging
from array import array
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from training.corpus.encode import NO_LABEL, label_column
from training.corpus.parts import TEST, TRAIN, UNLABELLED, Columns, Part, held_out, labelled_sources
from training.corpus.shards import ShardInput
from training.recipe import Recipe, SourceConfig, source_name
from training.sources.documents import Document, documents
from training.sources.labels import Target, labelled
from training.sources.split import hashes, held_out_below

SHARD_CHARACTERS = 8_000_000
"""Text of a shard. A worker needs a few times this memory, for a corpus of any size."""

HELDOUT = "heldout"
"""`Shard.use` of pretraining text to evaluate on; `TRAIN` is that of text to train on."""

logger = logging.getLogger(__name__)

Used = tuple[str, Document, Target]
"""`Shard.use`, a document, and its target."""


@dataclass(slots=True)
class _Cutter:
    """Cuts the documents of one source after another into shards."""

    sentence_tokens: int = 0
    augment_fraction: float = 0.0
    """See `ShardInput`."""
    bytes_read: int = 0
    numbers: Iterator[int] = field(default_factory=itertools.count)
    """Number of the next shard."""

    def progress(self, count: int) -> None:
        self.bytes_read += count

    def cut(self, found: Iterable[Used], source: SourceConfig, read: str, *, has_labels: bool) -> Iterator[ShardInput]:
        waiting: dict[str, list[tuple[Document, Target]]] = defaultdict(list)
        sizes: Counter[str] = Counter()

        def shard(use: str) -> ShardInput:
            chosen, targets = zip(*waiting.pop(use), strict=True)
            labels = list(targets) if has_labels else None
            number, name, augmented = next(self.numbers), source_name(source), self.augment_fraction * (use == TRAIN)
            more = self.bytes_read, self.sentence_tokens, augmented
            return ShardInput(number, use, name, list(chosen), labels, read, *more)

        for use, document, label in found:
            waiting[use].append((document, label))
            sizes[use] += len(document.text)
            if sizes[use] >= SHARD_CHARACTERS:
                yield shard(use)
                sizes[use] = 0
        yield from map(shard, list(waiting))


def pretraining_inputs(recipe: Recipe) -> Iterator[ShardInput]:
    """The shards of `corpus/`, to train on or held out.

    A held-out text is not trained on, not even as another document with other spacing or another group. With
    `pretrain.start`, test texts of the classifier are in no shard, and its dev texts are not trained on.

    Raises:
        SourceError: text cannot be read.
    """
    config, cutter = recipe.corpus, _Cutter(recipe.pretrain.examples.sentence_tokens)
    read = partial(documents, root=recipe.data)
    fraction = 0.0 if config.heldout else config.heldout_fraction
    thresholds = [(source, 2**64) for source in config.heldout]
    thresholds += [
        (source, held_out_below((hashes(document)[1] for document in read(source)), fraction))
        for source in config.sources
    ]
    lowest = min((threshold for _, threshold in thresholds), default=0)  # hashes below it are held out in all sources
    if any(source.group for source in config.sources):  # equal texts may have unequal hashes
        lowest = 0
    tested, left_out = _of_classifier(recipe)
    for source, threshold in thresholds:
        for document in read(source) if threshold > lowest else ():
            text, group = hashes(document)
            if group < threshold:
                left_out |= {text, group}

    for source, threshold in thresholds:
        used = _used(read(source, progress=cutter.progress), source_name(source), threshold, left_out, tested)
        reading = "lines" if source.lines == "sentence" else "paragraphs"
        yield from cutter.cut(used, source, reading, has_labels=False)


def _used(
    found: Iterable[Document], name: str, threshold: int, left_out: Container[int], tested: Container[int]
) -> Iterator[Used]:
    """The documents of a source: `HELDOUT` for groups below the threshold, else `TRAIN`.

    Args:
        left_out: hashes of texts and groups that are not trained on.
        tested: hashes of texts and groups that are not held out either.
    """
    count = 0
    for document in found:
        text, group = hashes(document)
        is_held_out = group < threshold
        elsewhere = tested if is_held_out else left_out
        if text in elsewhere or group in elsewhere:
            count += 1
        else:
            yield HELDOUT if is_held_out else TRAIN, document, NO_LABEL
    if count:
        logger.info("%s: %s documents are held out or tested on, and not trained on", name, f"{count:,}")


def _of_classifier(recipe: Recipe) -> tuple[set[int], set[int]]:
    """Hashes of texts and groups: those of a classifier's test texts, and those of its test and dev texts."""
    config = recipe.left_out_of_corpus
    is_split = config.dev_fraction != 0 or (config.test_fraction and not config.test)
    sources = [(use, source) for use, source in labelled_sources(config, ()) if use == TEST or is_split]
    columns = split_columns((n, *row) for n, (_, source) in enumerate(sources) for row in labelled(source, recipe))
    parts, texts, groups = held_out(columns, sources, config), columns["texts"], columns["groups"]
    is_test = parts == Part.TEST
    is_out = is_test | (parts == Part.DEV)
    tested, left_out = ({*texts[rows].tolist(), *groups[rows].tolist()} for rows in (is_test, is_out))
    return tested, left_out


def split_columns(found: Iterable[tuple[int, Document, Target]]) -> Columns:
    """The columns that `held_out` needs, of documents with the numbers of their sources and their targets."""
    columns, targets = (array("q"), array("Q"), array("Q")), []
    for number, document, target in found:
        targets.append(target)
        for column, value in zip(columns, (number, *hashes(document)), strict=True):
            column.append(value)
    numbers, texts, groups = map(np.array, columns)
    return {"sources": numbers, "texts": texts, "groups": groups, "labels": label_column(targets)}


def labelled_inputs(recipe: Recipe) -> Iterator[ShardInput]:
    """The shards of `labelled/`: all documents that have a label of the recipe, and those of `soft_labels.sources`.

    Raises:
        SourceError: a source has no label column, or a label is missing or unknown.
    """
    cutter = _Cutter(augment_fraction=recipe.finetune.augment_fraction)
    for use, source in labelled_sources(recipe.finetune, recipe.soft_labels.sources if recipe.soft_labels else ()):
        found: Iterable[tuple[Document, Target]]
        if use == UNLABELLED:
            found = ((document, NO_LABEL) for document in documents(source, recipe.data, cutter.progress))
        else:
            found = labelled(source, recipe, cutter.progress)
        used = ((use, document, label) for document, label in found)
        yield from cutter.cut(used, source, reading_of(source), has_labels=True)


def reading_of(source: SourceConfig) -> str:
    """How a labelled source is read: its text columns as one `text`, as a `pair`, or as `both`."""
    return source.read or ("pair" if len(source.text) == 2 else "text")
