"""The batches of pretraining: masked pairs of segments from prepared text."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from training.corpus.reader import PreparedText
from training.errors import CorpusError
from training.examples.batches import BatchShape, PretrainingBatch, batch_bounds, collate_pretraining
from training.examples.masking import Vocabulary, mask
from training.examples.pairs import Text, sample_pairs
from training.recipe import ExamplesConfig

MIN_TOKENS_TO_CUT = 32
"""An example is cut to fill the rest of a batch if the rest has at least N tokens; a smaller rest is padding."""


class PretrainingWindow:
    """The batches of one window of text. Implements `training.examples.loader.Window`."""

    def __init__(self, text: Text, stream: PretrainingStream, key: tuple[int, ...]) -> None:
        self.text, self.stream, self.key = text, stream, key
        pairs = sample_pairs(text, stream.config, np.random.default_rng(key))
        lengths = pairs.lengths
        self._bounds = batch_bounds(lengths, stream.shape, MIN_TOKENS_TO_CUT)
        last = np.array(self._bounds[1:]) - 1
        lengths[last] -= np.maximum(0, np.add.reduceat(lengths, self._bounds[:-1]) - stream.shape.tokens)
        self.pairs = pairs.cut(lengths)

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def batch(self, number: int, progress: float) -> PretrainingBatch:
        """Make a batch of examples that begin at different places of the window."""
        stream = self.stream
        pairs = self.pairs[slice(*self._bounds[number : number + 2])]
        rng = np.random.default_rng((*self.key, 1 + number))  # numpy ignores zeros at the end
        fraction = mask_fraction_at(stream.config, progress)
        examples = mask(self.text, pairs, fraction, stream.vocabulary, rng, stream.shape.masked)
        return collate_pretraining(examples, stream.shape)


@dataclass
class PretrainingStream:
    """The batches of a pretraining run. Implements `training.examples.loader.BatchStream`.

    Raises:
        CorpusError: the text does not fill a batch.
    """

    text: PreparedText
    vocabulary: Vocabulary
    config: ExamplesConfig
    seed: int
    micro_batch_tokens: int

    def __post_init__(self) -> None:
        first = next(self.text.windows(self.seed, 0))
        lengths = sample_pairs(first, self.config, np.random.default_rng(self.seed)).lengths
        if lengths.sum() < self.micro_batch_tokens:
            raise CorpusError(
                f"{self.text.folder}: {lengths.sum()} tokens do not fill a batch of {self.micro_batch_tokens}: add "
                "text, or lower micro_batch_tokens"
            )
        self.tokens = self.text.tokens
        share = max(mask_fraction_at(self.config, progress) for progress in (0, 1))
        self.shape = BatchShape(
            self.micro_batch_tokens,
            sequences=int(1.5 * self.micro_batch_tokens / lengths.mean()) + 8,
            masked=max(1, round(self.micro_batch_tokens * share)),
            max_seqlen=self.config.longest,
            max_outputs=1 + max(1, math.ceil(self.config.longest * share)),
        )

    def windows(self) -> Iterator[PretrainingWindow]:
        """The windows of all passes over the text, one pass after another."""
        for pass_number in itertools.count():
            for number, window in enumerate(self.text.windows(self.seed, pass_number)):
                yield PretrainingWindow(window, self, (self.seed, pass_number, number))


def mask_fraction_at(config: ExamplesConfig, progress: float) -> float:
    """Share of tokens to mask at a point of the run in [0, 1].

    >>> config = ExamplesConfig(mask_fraction=0.25, final_mask_fraction=0.15)
    >>> [round(mask_fraction_at(config, progress), 3) for progress in (0, 0.5, 1)]
    [0.25, 0.2, 0.15]
    """
    first, last = config.mask_fraction, config.final_mask_fraction
    return first if last is None else (1 - progress) * first + progress * last
