"""Labelled texts to token ids: read, label, cut to length, split into train and dev."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from model.checkpoint import Checkpoint
from model.tokenizer import Tokenizer, kept_ends, truncate_longest_first
from training.errors import RunError, SourceError
from training.examples.batches import ClassificationBatch, collate_classification
from training.examples.pairs import Floats
from training.recipe import FinetuneConfig, Recipe, SourceConfig, source_name
from training.sources.detokenize import typographic
from training.sources.documents import Document, documents
from training.sources.labels import with_model_labels
from training.sources.split import group_hash, hash_share, hold_out, is_contaminated, text_hash

logger = logging.getLogger(__name__)

BATCH = 64

FULL_VOICE = 200
"""Texts of a source in dev"""
MUCH_DEV = 3
"""Times as much as asked for"""


@dataclass(frozen=True, slots=True)
class LabelledTexts:
    """Texts of one source, ready to be packed."""

    name: str
    input_ids: list[NDArray[np.int32]]
    """With special tokens; each (length,)"""
    token_type_ids: list[NDArray[np.int8]]
    targets: list[Floats]
    """Probability of each label, 1 for one that is known; each (num_labels,)"""

    def __len__(self) -> int:
        return len(self.targets)

    def batch(self, indices: Sequence[int]) -> ClassificationBatch:
        return collate_classification(
            [self.input_ids[i] for i in indices],
            [self.token_type_ids[i] for i in indices],
            [self.targets[i] for i in indices],
        )

    @property
    def longest_first(self) -> list[int]:
        """The texts' numbers in the order of `batches`."""
        return sorted(range(len(self)), key=lambda i: -len(self.input_ids[i]))

    def batches(self) -> Iterator[ClassificationBatch]:
        """All texts once, those of similar length together."""
        order = self.longest_first
        return (self.batch(order[at : at + BATCH]) for at in range(0, len(order), BATCH))

    @property
    def num_batches(self) -> int:
        """Of `batches`."""
        return -(-len(self) // BATCH)

    def sample(self, count: int) -> LabelledTexts:
        """At most `count` of the texts, drawn evenly: a file may be sorted by its labels."""
        chosen = evenly(len(self), count)
        return LabelledTexts(
            self.name,
            [self.input_ids[i] for i in chosen],
            [self.token_type_ids[i] for i in chosen],
            [self.targets[i] for i in chosen],
        )

    @property
    def tokens(self) -> int:
        return sum(map(len, self.input_ids))


def voices(dev: Sequence[Sized]) -> list[int]:
    """What each source says where they decide together, by its texts in dev: as much as any other, unless it
    has fewer than `FULL_VOICE`. A single text would else outvote a thousand.

    >>> voices([range(1000), range(500), range(15)])
    [200, 200, 15]
    """
    return [min(len(part), FULL_VOICE) for part in dev]


def evenly(available: int, count: int) -> list[int]:
    """At most `count` of so many positions, spread over them.

    >>> evenly(10, 4)
    [0, 2, 5, 7]
    """
    count = min(available, count)
    return [i * available // count for i in range(count)]


def read_labelled(
    recipe: Recipe, tokenizer: Tokenizer, positions: int
) -> list[tuple[LabelledTexts, LabelledTexts]]:
    """Each training source as token ids: its train part, and its dev part as it would be served, up to as many
    tokens as the network has `positions`.

    Raises:
        SourceError, RunError: as `split_sources`.
    """
    config = recipe.finetune
    served = config.model_copy(update={"max_length": positions})
    return [
        (
            _labelled(name, respelled(train, config.typographic_fraction), config, tokenizer),
            _labelled(name, dev, served, tokenizer),
        )
        for name, train, dev in split_sources(recipe)
    ]


def respelled(texts: Iterable[Document], fraction: float) -> list[Document]:
    """The texts, about such a share of them with typographic marks; the same ones in every run."""
    return [
        text
        if hash_share(text_hash(text.text)) < 1 - fraction
        else replace(text, fields=tuple(map(typographic, text.fields)))
        for text in texts
    ]


def read_whole(source: SourceConfig, recipe: Recipe, checkpoint: Checkpoint) -> LabelledTexts:
    """Read a source as the service would read it for this classifier.

    Raises:
        SourceError: as `read_labelled`.
    """
    texts, config = whole_source(source, recipe), as_served(recipe.finetune, checkpoint)
    return _labelled(source_name(source), texts, config, checkpoint.tokenizer)


def as_served(config: FinetuneConfig, checkpoint: Checkpoint) -> FinetuneConfig:
    """The recipe's settings, but for the lengths that the service reads with this classifier."""
    shape = checkpoint.config
    return config.model_copy(
        update={"max_length": shape.max_position_embeddings, "truncation": shape.truncation}
    )


def split_sources(recipe: Recipe) -> list[tuple[str, list[Document], list[Document]]]:
    """Name, train and dev part of each training source, by a hash of each text's group, or of the text itself.

    Texts that `finetune.test` has, too, in whatever case or spacing, are left out, and of the train parts those
    that any dev part has.

    Raises:
        SourceError: a source, also one of `finetune.test`, names no column of labels; a label is missing or not
            in `finetune.labels`.
        RunError: no text is left to train on that has one of the labels.
    """
    config, parts = recipe.finetune, []
    tested = {text_hash(text.text) for source in config.test for text in whole_source(source, recipe)}
    for source in config.train:
        name = source_name(source)
        kept = _without(tested, whole_source(source, recipe), name, "test")
        held_out = hold_out(map(group_hash, kept), config.dev_fraction)
        split: tuple[list[Document], list[Document]] = ([], [])
        for document in kept:
            split[group_hash(document) in held_out].append(document)
        if len(split[1]) > MUCH_DEV * config.dev_fraction * len(kept) and len(split[1]) > FULL_VOICE:
            logger.warning(
                "%s: %d of %d texts are in dev, since no group is split; should another column be its `group`?",
                *(name, len(split[1]), len(kept)),
            )
        parts.append((name, *split))
    judging = {text_hash(document.text) for _, _, dev in parts for document in dev}
    parts = [(name, _without(judging, train, name, "dev"), dev) for name, train, dev in parts]
    trained = {document.label for _, train, _ in parts for document in train}
    if parts and (missing := [label for label in config.label_names if label not in trained]):
        raise RunError(
            f"no text of finetune.train is labelled {', '.join(map(repr, missing))}; is a file sorted by its "
            "labels, and cut by limit, or are all its texts in finetune.test, too?"
        )
    return parts


def _without(judging: set[int], texts: Sequence[Document], name: str, part: str) -> list[Document]:
    """The texts that are not among those that judge."""
    kept = [document for document in texts if not is_contaminated(document, judging)]
    if len(kept) < len(texts):
        logger.info("%s: %d texts stand in %s too: left out", name, len(texts) - len(kept), part)
    return kept


def whole_source(source: SourceConfig, recipe: Recipe) -> list[Document]:
    """All documents of a labelled source, with the labels of the model.

    Raises:
        SourceError: the source names no column of labels; a label is missing or not in `finetune.labels`.
    """
    if not source.is_labelled:
        raise SourceError(
            f"{source_name(source)}: fine-tuning needs the source's `label`, the column of labels"
        )
    found = documents(source, recipe.data, hub_cache=recipe.hub_cache)
    return list(with_model_labels(found, recipe.finetune.labels))


def _labelled(
    name: str, texts: Sequence[Document], config: FinetuneConfig, tokenizer: Tokenizer
) -> LabelledTexts:
    one_hot = dict(zip(config.label_names, np.eye(len(config.label_names), dtype=np.float32), strict=True))
    return encode(name, texts, [one_hot[str(text.label)] for text in texts], config, tokenizer)


def encode(
    name: str,
    texts: Sequence[Document],
    targets: Sequence[Floats],
    config: FinetuneConfig,
    tokenizer: Tokenizer,
) -> LabelledTexts:
    """Texts as token ids, cut to `finetune.max_length`, with the probabilities of their labels."""
    ids, types = [], []
    for at in range(0, len(texts), 1000):
        columns = zip(*(document.fields for document in texts[at : at + 1000]), strict=True)
        for halves in zip(*(tokenizer.ids_batch(column) for column in columns), strict=True):
            sequence = assemble(halves, config, tokenizer)
            ids.append(sequence[0])
            types.append(sequence[1])
    return LabelledTexts(name, ids, types, list(targets))


def assemble(
    halves: Sequence[list[int]], config: FinetuneConfig, tokenizer: Tokenizer
) -> tuple[NDArray[np.int32], NDArray[np.int8]]:
    """`[CLS] a [SEP]` or `[CLS] a [SEP] b [SEP]`, cut to `max_length`: (length,) ids and types."""
    ids, types = [tokenizer.cls_id], [0]
    kept = cuts([len(half) for half in halves], config)
    for segment, (half, (head, tail)) in enumerate(zip(halves, kept, strict=True)):
        ids += [*half[:head], *half[tail:], tokenizer.sep_id]
        types += [segment] * (len(ids) - len(types))
    return np.array(ids, dtype=np.int32), np.array(types, dtype=np.int8)  # millions of texts stay in memory


def cuts(lengths: Sequence[int], config: FinetuneConfig) -> list[tuple[int, int]]:
    """How many tokens of each half stay at its beginning, and from which on they stay at its end."""
    keeps = truncate_longest_first(lengths, config.max_length - 1 - len(lengths))
    return [kept_ends(length, keep, config.truncation) for length, keep in zip(lengths, keeps, strict=True)]


def joined(parts: Sequence[LabelledTexts], name: str) -> LabelledTexts:
    """Several sources as one."""
    whole = LabelledTexts(name, [], [], [])
    for part in parts:
        whole.input_ids.extend(part.input_ids)
        whole.token_type_ids.extend(part.token_type_ids)
        whole.targets.extend(part.targets)
    return whole
