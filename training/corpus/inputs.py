"""Splits sources into the inputs of shards, the same in every run: trained on, held out, or left out."""

from __future__ import annotations

import itertools
import logging
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from functools import partial

import numpy as np

from bert_tables.files import Progress
from training.corpus.encode import NO_LABEL
from training.corpus.shards import ShardInput
from training.errors import RunError
from training.recipe import REGRESSION, FinetuneConfig, Recipe, SourceConfig, source_name
from training.sources.detokenize import capitals, contractions, typographic
from training.sources.documents import Document, documents
from training.sources.labels import Target, labelled
from training.sources.split import hashes, held_out_below, held_out_from, text_hash
from training.sources.tables import log_once

SHARD_CHARACTERS = 8_000_000
"""Text of a shard. A worker needs a few times this memory, for a corpus of any size."""

FEW_DEV_TEXTS = 100
"""Below this, one standard error of an accuracy of 0.9 is above 0.03."""

REMEMBERED_TEXTS = 1_000_000
"""Number of first texts of `finetune.train` with which all others are compared; takes at most 200 MB."""

logger = logging.getLogger(__name__)

Routed = tuple[str, Document, Target]
"""A part (`train`, `dev/<source>` or `test/<source>`), a document of it, and its target."""


@dataclass(slots=True)
class _Cutter:
    """Cuts the documents of one source after another into shards."""

    has_labels: bool
    sentence_tokens: int = 0
    """See `ShardInput`."""
    bytes_read: int = 0
    numbers: dict[str, Iterator[int]] = field(default_factory=lambda: defaultdict(itertools.count))
    """Number of the next shard of each part."""

    def progress(self, count: int) -> None:
        self.bytes_read += count

    def cut(self, routed: Iterable[Routed], source: SourceConfig, read: str) -> Iterator[ShardInput]:
        waiting: dict[str, list[tuple[Document, Target]]] = defaultdict(list)
        sizes: Counter[str] = Counter()
        for part, document, label in routed:
            waiting[part].append((document, label))
            sizes[part] += len(document.text)
            if sizes[part] >= SHARD_CHARACTERS:
                yield self._shard(part, waiting.pop(part), source, read)
                sizes[part] = 0
        for part, items in waiting.items():
            yield self._shard(part, items, source, read)

    def _shard(self, part: str, items: list[tuple[Document, Target]], source: SourceConfig, read: str) -> ShardInput:
        number = next(self.numbers[part])
        found = [document for document, _ in items]
        labels = [label for _, label in items] if self.has_labels else None
        name = source_name(source)
        return ShardInput(part, number, name, found, labels, read, self.bytes_read, self.sentence_tokens)


def _route(
    found: Iterable[tuple[Document, Target]],
    source: SourceConfig,
    evaluated: str,
    threshold: int,
    held_out: Container[int],
    tested: Container[int],
) -> Iterator[Routed]:
    """The part of each document: `<evaluated>/<source>` for groups below the threshold, else `train`.

    Args:
        held_out: Hashes of texts and groups that must not be in `train`.
        tested: Hashes of texts and groups that must not be held out either.
    """
    name, left_out = source_name(source), 0
    for document, label in found:
        text, group = hashes(document)
        is_held_out = group < threshold
        elsewhere = tested if is_held_out else held_out
        if text in elsewhere or group in elsewhere:
            left_out += 1
        else:
            yield f"{evaluated}/{name}" if is_held_out else "train", document, label
    if left_out:
        logger.info("%s: %s documents are held out or tested on, and not trained on", name, f"{left_out:,}")


# --- text to pretrain on -------------------------------------------------------------------------------------------


def pretraining_inputs(recipe: Recipe) -> Iterator[ShardInput]:
    """The shards of `corpus/`: parts `train` and `heldout/<source>`.

    A held-out text is not trained on, not even as another document with other spacing or another group. With
    `pretrain.start`, test texts of the classifier are in no part, and its dev texts are not in `train`.

    Raises:
        SourceError: text cannot be read.
    """
    config, cutter = recipe.corpus, _Cutter(has_labels=False, sentence_tokens=recipe.pretrain.examples.sentence_tokens)
    read = partial(documents, root=recipe.data)
    fraction = 0.0 if config.heldout else config.heldout_fraction
    thresholds = [(source, 2**64) for source in config.heldout]
    thresholds += [(source, held_out_below(read(source), fraction)) for source in config.sources]
    lowest = min((threshold for _, threshold in thresholds), default=0)  # hashes below it are held out in all sources
    if any(source.group for source in config.sources):  # equal texts may have unequal hashes
        lowest = 0
    tested, in_dev = _held_out(recipe.left_out_of_corpus, recipe)
    held_out = tested | in_dev
    for source, threshold in thresholds:
        for document in read(source) if threshold > lowest else ():
            text, group = hashes(document)
            if group < threshold:
                held_out |= {text, group}

    for source, threshold in thresholds:
        found = ((document, NO_LABEL) for document in read(source, progress=cutter.progress))
        routed = _route(found, source, "heldout", threshold, held_out, tested)
        yield from cutter.cut(routed, source, "lines" if source.lines == "sentence" else "paragraphs")


def _held_out(config: FinetuneConfig, recipe: Recipe) -> tuple[set[int], set[int]]:
    """Hashes of the texts and groups of a classifier's test, and of its dev part."""
    tested: set[int] = set()
    in_dev: set[int] = set()
    for source in config.tested:
        for _ in _tested(source, recipe, tested):
            pass
    for source in config.train if config.dev_fraction else ():
        _plan(source, recipe, tested, in_dev, _Texts())
    return tested, in_dev


# --- labelled text -------------------------------------------------------------------------------------------------


def labelled_inputs(recipe: Recipe) -> Iterator[ShardInput]:
    """The shards of labelled text: parts `test/<source>`, `train` and `dev/<source>`.

    Texts and groups of test are left out of the other parts, those of any dev part out of `train`. A text that occurs
    several times is in `train` once, and not at all if its labels differ. Texts of `distill.sources` are in `train`
    without a label.

    Raises:
        SourceError: a source has no label column, or a label is missing or unknown.
        RunError: no text of some label is left to train on.
    """
    config, cutter = recipe.finetune, _Cutter(has_labels=True)
    tested: set[int] = set()
    for source in config.tested:
        yield from cutter.cut(_tested(source, recipe, tested, cutter.progress), source, reading_of(source))
    in_dev: set[int] = set()
    texts = _Texts()
    plans = [(source, *_plan(source, recipe, tested, in_dev, texts)) for source in config.train]
    held_out, trained = tested | in_dev, Counter[Target]()

    for source, threshold, shares in plans:
        routed = _route(labelled(source, recipe, cutter.progress), source, "dev", threshold, held_out, tested)
        once = texts.once(routed, source)
        chosen = _chosen(once, shares, trained, config.augment_fraction)
        yield from cutter.cut(chosen, source, reading_of(source))
    for source in recipe.distill.sources if recipe.distill else ():
        unlabelled = documents(source, recipe.data, cutter.progress)
        routed = _route(((document, NO_LABEL) for document in unlabelled), source, "dev", 0, held_out, tested)
        yield from cutter.cut(routed, source, reading_of(source))
    if config.train and (fault := _lacking(recipe, trained)):
        raise RunError(fault)


def _tested(
    source: SourceConfig, recipe: Recipe, tested: set[int], progress: Progress | None = None
) -> Iterator[Routed]:
    """The texts of a source for the report, which are added to `tested` with their groups.

    They are all texts of a source of `finetune.test`, or the part of a source of `finetune.train` that
    `finetune.test_fraction` holds out.
    """
    config, first, repetitions = recipe.finetune, 0, 0
    if not config.test:
        first = held_out_from((document for document, _ in labelled(source, recipe)), config.test_fraction)
    for document, label in labelled(source, recipe, progress if config.test else None):
        text, group = hashes(document)
        if group >= first:
            repetitions += text in tested
            tested |= {text, group}
            yield f"test/{source_name(source)}", document, label
    if repetitions:
        logger.info("%s: %d test texts occur before; the report counts them again", source_name(source), repetitions)


def _lacking(recipe: Recipe, found: Iterable[Target]) -> str:
    """The reason why texts with these targets are not enough to train on; "" if they are."""
    targets, names = set(found), recipe.finetune.label_names
    if recipe.finetune.problem_type == REGRESSION:
        return f"finetune.train has one {names[0]} for all texts: numbers must differ" if len(targets) < 2 else ""
    occurring = {i for target in targets for i in _labels_of(target)}
    if missing := [name for i, name in enumerate(names) if i not in occurring]:
        return (
            f"finetune.train has no text labelled {', '.join(missing)}: is a file sorted by its labels and cut by "
            "`limit`, are all its texts in finetune.test, held out (finetune.test_fraction) or in dev "
            "(finetune.dev_fraction), do they all occur with another label too, or has finetune.labels one label too "
            "many?"
        )
    return ""


def _labels_of(target: Target) -> list[int]:
    return [target] if isinstance(target, int) else [i for i, value in enumerate(target) if value]


def reading_of(source: SourceConfig) -> str:
    """How a labelled source is read: its text columns as one `text`, as a `pair`, or as `both`."""
    return source.read or ("pair" if len(source.text) == 2 else "text")


class _Seen(Enum):
    """State of a text in place of its label."""

    CONTRADICTED = auto()
    """It occurs with different labels."""
    TRAINED = auto()
    """It is in `train` already."""


class _Texts:
    """Labels of the texts of `finetune.train`, to leave out repetitions and contradictions. After the first
    `REMEMBERED_TEXTS`, no more are remembered."""

    def __init__(self) -> None:
        self._known: dict[int, Target | _Seen] = {}

    def add(self, text: int, label: Target) -> tuple[bool, bool]:
        """Remember the label of a text in the first pass.

        Args:
            text: Its hash.

        Returns:
            Whether the text has occurred before, and whether it now has a different label for the first time.
        """
        before = self._known.get(text)
        if before is None:
            if len(self._known) < REMEMBERED_TEXTS:
                self._known[text] = label
            return False, False
        contradicts = before not in (label, _Seen.CONTRADICTED)
        if contradicts:
            self._known[text] = _Seen.CONTRADICTED
        return True, contradicts

    def once(self, routed: Iterable[Routed], source: SourceConfig) -> Iterator[Routed]:
        """The documents of the second pass, without repetitions and contradictions in `train`. `treebank = "both"`
        repeats texts on purpose: in another spelling."""
        repetitions = 0
        for part, document, label in routed:
            if part == "train":
                text = text_hash(document.text)
                known = self._known.get(text)
                if known is _Seen.CONTRADICTED:
                    continue
                if known is _Seen.TRAINED and source.treebank != "both":
                    repetitions += 1
                    continue
                if known is not None:
                    self._known[text] = _Seen.TRAINED
            yield part, document, label
        if repetitions:
            logger.info("%s: left out %d texts that occur before with the same label", source_name(source), repetitions)


Shares = dict[tuple[str | None, Target], float]
"""Share of the training texts to keep, by domain and label; see `SourceConfig.balance`."""


def _plan(
    source: SourceConfig, recipe: Recipe, tested: set[int], in_dev: set[int], texts: _Texts
) -> tuple[int, Shares]:
    """Make the first pass over a source. Returns the threshold of its split, and the shares that balance it. Adds its
    texts to `texts`, and the texts and groups of its dev part to `in_dev`."""
    threshold = held_out_below((document for document, _ in labelled(source, recipe)), recipe.finetune.dev_fraction)
    counts: Counter[tuple[str | None, Target]] = Counter()
    dev = contradictions = 0
    example: Document | None = None
    for document, label in labelled(source, recipe):
        text, group = hashes(document)
        if text in tested or group in tested:
            continue
        is_repeated, contradicts = texts.add(text, label)
        if contradicts:
            contradictions += 1
            example = example or document
        if group < threshold:
            in_dev |= {text, group}
            dev += 1
        elif not is_repeated or source.treebank == "both":
            counts[document.domain, label] += 1
    if recipe.finetune.dev_fraction and dev < FEW_DEV_TEXTS:
        log_once(
            f"{source_name(source)}: only {dev} of {dev + counts.total()} texts are in dev, too few to choose weights "
            "or a temperature reliably; raise finetune.dev_fraction, or label more texts"
        )
    if example is not None:
        log_once(
            f"{source_name(source)}: {contradictions} texts occur with different labels and are not trained on; "
            f"correct the labels, such as that of {example.text[:60]!r} ({example.place})"
        )
    if source.balance is None:
        return threshold, {}
    rarest: dict[str | None, int] = {}
    for (domain, _), count in counts.items():
        rarest[domain] = min(count, rarest.get(domain, count))
    return threshold, {key: min(1.0, source.balance * rarest[key[0]] / count) for key, count in counts.items()}


def _chosen(routed: Iterable[Routed], shares: Shares, trained: Counter[Target], augmented: float) -> Iterator[Routed]:
    """The documents to keep. Dev texts are unchanged. Training texts are kept by `shares` of each domain and label,
    some of them are augmented, and their labels are counted in `trained`."""
    for part, document, label in routed:
        key = text_hash(document.text)
        if part != "train":
            yield part, document, label
        elif np.random.default_rng((key, 1)).random() < shares.get((document.domain, label), 1.0):
            trained[label] += 1
            yield part, _augmented(document, key, augmented), label


def _augmented(document: Document, key: int, fraction: float) -> Document:
    """The document; about `fraction` of the documents, always the same ones, get other contractions, capitals and
    marks. They stay in the group of the text as it was, with its other spelling."""
    rng = np.random.default_rng((key, 2))
    if rng.random() >= fraction:
        return document
    fields = document.fields
    if rng.random() < 0.5:
        fields = tuple(contractions(field, rng) for field in fields)
    if rng.random() < 0.5:
        fields = tuple(capitals(field, rng) for field in fields)
    return replace(document, fields=tuple(map(typographic, fields)), group=document.group or document.text)
