"""The examples of pretraining: mask fraction and batch shape over a run."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.tokenizer import Tokenizer
from training.corpus.reader import PreparedText
from training.examples.masking import Vocabulary
from training.examples.pairs import IGNORE_INDEX
from training.examples.pretraining import PretrainingStream, mask_fraction_at
from training.recipe import ExamplesConfig


def stream_of(prepared: Path, config: ExamplesConfig) -> PretrainingStream:
    text = PreparedText(prepared / "tiny" / "corpus", use="train")
    vocabulary = Vocabulary.of(Tokenizer.load(prepared / "tiny" / "tokenizer"))
    return PretrainingStream(text, vocabulary, config, 1, 256)


@given(st.floats(0.01, 1), st.none() | st.floats(0.01, 1), st.floats(0, 1))
def test_mask_fraction_stays_between_its_ends(first: float, last: float | None, progress: float) -> None:
    config = ExamplesConfig(mask_fraction=first, final_mask_fraction=last)
    low, high = sorted((first, first if last is None else last))
    assert low - 1e-6 <= mask_fraction_at(config, progress) <= high + 1e-6
    assert mask_fraction_at(config, 0) == pytest.approx(first, abs=1e-6)
    assert mask_fraction_at(config, 1) == (first if last is None else last)


def test_mask_fraction_falls_evenly() -> None:
    config = ExamplesConfig(mask_fraction=0.3, final_mask_fraction=0.15)
    fractions = [mask_fraction_at(config, progress / 10) for progress in range(11)]
    assert fractions == pytest.approx([0.3 - 0.015 * i for i in range(11)])


@pytest.mark.parametrize("rates", [(0.3, 0.15), (0.15, 0.3), (0.3, None)])
def test_stream_has_one_batch_shape_with_room_for_the_most_masks(
    prepared: Path, rates: tuple[float, float | None]
) -> None:
    first, last = rates
    config = ExamplesConfig(short_length=32, long_length=64, mask_fraction=first, final_mask_fraction=last)
    shape = stream_of(prepared, config).shape
    assert shape.masked == 77, "of 256 tokens"
    assert shape.max_outputs == 1 + 20, "of 64 tokens"


def test_window_masks_more_at_a_higher_rate(prepared: Path) -> None:
    config = ExamplesConfig(short_length=32, long_fraction=0, mask_fraction=0.2, final_mask_fraction=0.4)
    window = next(stream_of(prepared, config).windows())
    counts = []
    for progress in (0.0, 1.0):
        batches = [window.batch(i, progress) for i in range(len(window))]
        counts.append(sum(int((batch.masked_ids != IGNORE_INDEX).sum()) for batch in batches))
    assert counts[1] == pytest.approx(2 * counts[0], rel=0.05)
