"""The examples of pretraining: share of masked tokens and batch shape."""

from __future__ import annotations

from pathlib import Path

import pytest

from model.tokenizer import Tokenizer
from training.corpus.reader import PreparedText
from training.examples.masking import Vocabulary
from training.examples.pretraining import PretrainingStream
from training.recipe import ExamplesConfig


def stream(prepared: Path, mask_fraction: float) -> PretrainingStream:
    config = ExamplesConfig(short_length=32, long_fraction=0, mask_fraction=mask_fraction)
    text = PreparedText.open(prepared / "tiny" / "corpus" / "train")
    vocabulary = Vocabulary.of(Tokenizer.load(prepared / "tiny" / "tokenizer"))
    return PretrainingStream(text, vocabulary, config, 1, 256)


def test_stream_masks_the_share_of_the_recipe(prepared: Path) -> None:
    counts = []
    for fraction in (0.2, 0.4):
        window = stream(prepared, fraction).window(0, 0)
        counts.append(sum(len(window.make(i).masked_ids) for i in range(len(window))))
    assert counts[1] == pytest.approx(2 * counts[0], rel=0.05)


def test_stream_batches_have_room_for_their_share_of_masked_tokens(prepared: Path) -> None:
    assert stream(prepared, 0.3).shape.masked == 77
