"""Sources to the inputs of shards, the same in every run: what is trained on, what is held out, what is left out."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from training.corpus.encode import NO_LABEL
from training.corpus.shards import ShardInput
from training.errors import RunError, SourceError
from training.recipe import FinetuneConfig, Recipe, SourceConfig, source_name
from training.sources.detokenize import capitals, contractions, typographic
from training.sources.documents import Document, documents
from training.sources.labels import with_label_index
from training.sources.split import HashSplit, group_hash, split_by_hash, text_hash

SHARD_CHARACTERS = 8_000_000
"""Text of a shard. A worker needs a few times this in memory, whatever the size of the corpus."""

FEW_DEV_TEXTS = 100
"""Below this, one standard error of an accuracy of 0.9 is above 0.03."""

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Progress:
    bytes_read: int = 0

    def add(self, count: int) -> None:
        self.bytes_read += count


@dataclass(frozen=True, slots=True)
class _Routed:
    """A document and the part it belongs to."""

    part: str
    document: Document
    label: int | None = None


@dataclass(slots=True)
class _Cutter:
    """Cuts the documents of one source after another into shards."""

    progress: _Progress = field(default_factory=_Progress)
    numbers: Counter[str] = field(default_factory=Counter)
    """Shards so far of each part."""

    def cut(self, routed: Iterable[_Routed], source: str, read: str) -> Iterator[ShardInput]:
        waiting: dict[str, list[_Routed]] = defaultdict(list)
        sizes: Counter[str] = Counter()
        for item in routed:
            waiting[item.part].append(item)
            sizes[item.part] += len(item.document.text)
            if sizes[item.part] >= SHARD_CHARACTERS:
                yield self._shard(item.part, waiting.pop(item.part), source, read)
                sizes[item.part] = 0
        for part, items in waiting.items():
            yield self._shard(part, items, source, read)

    def _shard(self, part: str, items: list[_Routed], source: str, read: str) -> ShardInput:
        number = self.numbers[part]
        self.numbers[part] += 1
        labels = None if items[0].label is None else [NO_LABEL if item.label is None else item.label for item in items]
        return ShardInput(part, number, source, [i.document for i in items], labels, read, self.progress.bytes_read)


# --- text to pretrain on -------------------------------------------------------------------------------------------


def pretraining_inputs(recipe: Recipe) -> Iterator[ShardInput]:
    """The shards of `corpus/`: parts `train` and `heldout/<source>`.

    A text that is held out is not trained on, also not as another document with other spacing or another group.

    Raises:
        SourceError: text that cannot be read.
    """
    config, cutter = recipe.corpus, _Cutter()
    read = partial(documents, root=recipe.data, hub_cache=recipe.hub_cache)
    held_out: set[int] = set()
    for source in config.heldout:
        found = _remembered(read(source, progress=cutter.progress.add), held_out)
        part = f"heldout/{source_name(source)}"
        yield from cutter.cut((_Routed(part, document) for document in found), source_name(source), _read(source))
    fraction = 0.0 if config.heldout else config.heldout_fraction
    splits = [split_by_hash(read(source), fraction) for source in config.sources]
    if fraction and any(source.group for source in config.sources):  # equal texts may be in different groups
        for source, split in zip(config.sources, splits, strict=True):
            for _ in _remembered(filter(split.holds_out, read(source)), held_out):
                pass
    for source, split in zip(config.sources, splits, strict=True):
        found = read(source, progress=cutter.progress.add)
        routed = _route_pretraining(found, source_name(source), split, held_out)
        yield from cutter.cut(routed, source_name(source), _read(source))


def _remembered(found: Iterable[Document], hashes: set[int]) -> Iterator[Document]:
    for document in found:
        hashes |= {text_hash(document.text), group_hash(document)}
        yield document


def _route_pretraining(
    found: Iterable[Document], source: str, split: HashSplit, held_out: set[int]
) -> Iterator[_Routed]:
    left_out = 0
    for document in found:
        if split.holds_out(document):
            yield _Routed(f"heldout/{source}", document)
        elif held_out.isdisjoint({text_hash(document.text), group_hash(document)}):
            yield _Routed("train", document)
        else:
            left_out += 1
    if left_out:
        logger.info("%s: left out %d documents that are held out as well", source, left_out)


def _read(source: SourceConfig) -> str:
    return "lines" if source.lines == "sentence" else "paragraphs"


# --- labelled text -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Plan:
    """What a first pass over a labelled source decides."""

    source: SourceConfig
    split: HashSplit
    kept: dict[tuple[str | None, int], float]
    """Share of the training texts to keep, by domain and label; see `SourceConfig.balance`."""


def labelled_inputs(recipe: Recipe) -> Iterator[ShardInput]:
    """The shards of `labelled/`: parts `train` and `dev/<source>`.

    Texts of `finetune.test` are left out of both, texts of any dev part out of `train`. The texts of `distill.sources`
    are in `train`, without a label.

    Raises:
        SourceError: a source has no label column, or a label is missing or unknown.
        RunError: no text of some label is left to train on.
    """
    config, cutter = recipe.finetune, _Cutter()
    tested = {text_hash(document.text) for source in config.test for document, _ in labelled(source, recipe)}
    in_dev: set[int] = set()
    plans = [_plan(source, recipe, tested, in_dev) for source in config.train]
    trained: Counter[int] = Counter()
    for plan in plans:
        name = source_name(plan.source)
        found = labelled(plan.source, recipe, cutter.progress)
        routed = _count_labels(_route_labelled(found, plan, tested, in_dev, config), trained)
        yield from cutter.cut(routed, name, reading_of(plan.source))
    for source in recipe.distill.sources if recipe.distill else ():
        unlabelled = documents(source, recipe.data, cutter.progress.add, recipe.hub_cache)
        routed = _route_unlabelled(unlabelled, tested | in_dev)
        yield from cutter.cut(routed, source_name(source), reading_of(source))
    if missing := [name for i, name in enumerate(config.label_names) if not trained[i]]:
        raise RunError(
            f"finetune.train has no text labelled {', '.join(missing)}: is a file sorted by its labels and cut by "
            "`limit`, or are all its texts in finetune.test as well?"
        )


def check_labels(recipe: Recipe) -> None:
    """Read all labels, so that a mistake is found before hours of training.

    Raises:
        SourceError: as `labelled`.
    """
    for source in (*recipe.finetune.train, *recipe.finetune.test):
        for _ in labelled(source, recipe):
            pass


def labelled(source: SourceConfig, recipe: Recipe, progress: _Progress | None = None) -> Iterator[tuple[Document, int]]:
    """The documents of a labelled source with the index of their label; those whose label maps to "" are left out.

    Raises:
        SourceError: the source has no label column, or a label is missing or unknown; names the file and the line.
    """
    if source.label is None and source.format != "fasttext":
        raise SourceError(f"{source_name(source)}: fine-tuning needs the source's `label`, the column of labels")
    found = documents(source, recipe.data, progress.add if progress else None, recipe.hub_cache)
    return with_label_index(found, recipe.finetune.labels)


def reading_of(source: SourceConfig) -> str:
    """How a labelled source is read: its text columns as one `text`, as a `pair`, or `both`."""
    return source.read or ("pair" if len(source.text) == 2 else "text")


def _plan(source: SourceConfig, recipe: Recipe, tested: set[int], in_dev: set[int]) -> _Plan:
    """First pass over a source: its split, its dev texts (added to `in_dev`), the shares that balance it."""
    split = split_by_hash((document for document, _ in labelled(source, recipe)), recipe.finetune.dev_fraction)
    counts: Counter[tuple[str | None, int]] = Counter()
    parts = [0, 0]
    for document, label in labelled(source, recipe):
        key = text_hash(document.text)
        if key in tested:
            continue
        is_dev = split.holds_out(document)
        parts[is_dev] += 1
        if is_dev:
            in_dev.add(key)
        else:
            counts[document.domain, label] += 1
    _warn_about_dev(source_name(source), parts[1], sum(parts), recipe.finetune)
    return _Plan(source, split, _shares(counts, source.balance))


def _shares(counts: Counter[tuple[str | None, int]], balance: float | None) -> dict[tuple[str | None, int], float]:
    if balance is None:
        return {}
    rarest: dict[str | None, int] = {}
    for (domain, _), count in counts.items():
        rarest[domain] = min(count, rarest.get(domain, count))
    return {key: min(1.0, balance * rarest[key[0]] / count) for key, count in counts.items()}


def _warn_about_dev(name: str, dev: int, texts: int, config: FinetuneConfig) -> None:
    if not config.dev_fraction:
        return
    if dev < FEW_DEV_TEXTS:
        logger.warning(
            "%s: only %d of %d texts are in dev, too few to choose weights or a temperature reliably; raise "
            "finetune.dev_fraction, or label more texts",
            *(name, dev, texts),
        )
    elif dev > 3 * config.dev_fraction * texts:
        logger.warning(
            "%s: %d of %d texts are in dev, because no group is split; is another column its `group`?",
            *(name, dev, texts),
        )


def _route_labelled(
    found: Iterable[tuple[Document, int]],
    plan: _Plan,
    tested: set[int],
    in_dev: set[int],
    config: FinetuneConfig,
) -> Iterator[_Routed]:
    name, left_out = source_name(plan.source), 0
    for document, label in found:
        key = text_hash(document.text)
        if key in tested:
            left_out += 1
        elif plan.split.holds_out(document):
            yield _Routed(f"dev/{name}", document, label)
        elif key in in_dev:
            left_out += 1
        elif _fraction(key, salt=1) < plan.kept.get((document.domain, label), 1.0):
            yield _Routed("train", _augmented(document, key, config.augment_fraction), label)
    if left_out:
        logger.info("%s: left out %d texts that are in test or dev as well", name, left_out)


def _route_unlabelled(found: Iterable[Document], judged: set[int]) -> Iterator[_Routed]:
    return (_Routed("train", document, NO_LABEL) for document in found if text_hash(document.text) not in judged)


def _count_labels(routed: Iterable[_Routed], counts: Counter[int]) -> Iterator[_Routed]:
    for item in routed:
        if item.part == "train" and item.label is not None:
            counts[item.label] += 1
        yield item


def _augmented(document: Document, key: int, fraction: float) -> Document:
    """About `fraction` of the documents with other contractions, capitals and marks; always the same ones."""
    rng = np.random.default_rng((key, 2))
    if rng.random() >= fraction:
        return document
    fields = document.fields
    if rng.random() < 0.5:
        fields = tuple(contractions(field, rng) for field in fields)
    if rng.random() < 0.5:
        fields = tuple(capitals(field, rng) for field in fields)
    fields = tuple(map(typographic, fields))
    return replace(document, text="\n".join(filter(None, fields)), fields=fields)


def _fraction(key: int, salt: int) -> float:
    """A number in [0, 1) that depends on a hash and a salt."""
    return float(np.random.default_rng((key, salt)).random())
