"""The examples of pretraining: masked pairs of segments from prepared text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from training.corpus.reader import PreparedText
from training.errors import CorpusError
from training.examples.batches import BatchShape, PretrainingBatch, collate_pretraining
from training.examples.loader import LANES
from training.examples.masking import Example, Vocabulary, mask
from training.examples.pairs import PairSampler, Text
from training.recipe import ExamplesConfig

SAMPLED = 256
"""Examples whose mean length determines the number of sequences for which a batch has room."""


class MaskedPairs:
    """The examples of one window of text, in an order that depends on `key`."""

    def __init__(self, text: Text, vocabulary: Vocabulary, config: ExamplesConfig, key: tuple[int, ...]) -> None:
        self.vocabulary = vocabulary
        self.config = config
        self.key = key
        self._pairs = PairSampler(text, config)
        self._starts = self._pairs.starts(np.random.default_rng(key))

    def __len__(self) -> int:
        return len(self._starts)

    def make(self, index: int, progress: float = 0.0, max_tokens: int | None = None) -> Example:
        """Make example `index`."""
        rng = np.random.default_rng((*self.key, index))
        is_long = rng.random() < self.config.long_probability
        pair = self._pairs.sample(int(self._starts[index]), rng, max_tokens, is_long=is_long)
        return mask(pair, mask_fraction_at(self.config, progress), self.vocabulary, rng)


@dataclass
class PretrainingStream:
    """The examples of a pretraining run. Implements `training.examples.loader.ExampleStream`.

    Raises:
        CorpusError: the text has fewer examples than `LANES`.
    """

    text: PreparedText
    vocabulary: Vocabulary
    config: ExamplesConfig
    seed: int
    micro_batch_tokens: int

    def __post_init__(self) -> None:
        first = self.window(0, 0)
        if self.num_windows() == 1 and len(first) < LANES:
            raise CorpusError(
                f"{self.text.folder}: {len(first)} example{'s' * (len(first) != 1)}; a run needs at least {LANES}: "
                "add text"
            )
        lengths = [len(first.make(i)) for i in range(min(SAMPLED, len(first)))]
        mean = sum(lengths) / len(lengths)
        share = max(mask_fraction_at(self.config, progress) for progress in (0, 1))
        self.shape = BatchShape(
            self.micro_batch_tokens,
            sequences=int(1.5 * self.micro_batch_tokens / mean) + 8,
            masked=max(1, round(self.micro_batch_tokens * share)),
            max_seqlen=self.config.longest,
            max_outputs=1 + max(1, math.ceil(self.config.longest * share)),
        )

    def num_windows(self) -> int:
        return len(self.text.shuffled_windows(self.seed, 0))

    def window(self, epoch: int, number: int) -> MaskedPairs:
        shards = self.text.shuffled_windows(self.seed, epoch)[number]
        return MaskedPairs(self.text.window(shards), self.vocabulary, self.config, (self.seed, epoch, number))

    def num_masked(self, example: Example) -> int:
        return len(example.masked_ids)

    def collate(self, examples: Sequence[Example]) -> PretrainingBatch:
        return collate_pretraining(examples, self.shape)


def mask_fraction_at(config: ExamplesConfig, progress: float) -> float:
    """Share of tokens to mask at a point of the run in [0, 1].

    >>> config = ExamplesConfig(mask_fraction=0.25, final_mask_fraction=0.15)
    >>> [round(mask_fraction_at(config, progress), 3) for progress in (0, 0.5, 1)]
    [0.25, 0.2, 0.15]
    """
    first, last = config.mask_fraction, config.final_mask_fraction
    return first if last is None else (1 - progress) * first + progress * last
