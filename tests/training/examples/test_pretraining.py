"""The examples of pretraining: share of masked tokens and batch shape."""

from __future__ import annotations

import pytest

from model.tokenizer import Tokenizer
from tests.training.conftest import MakeRecipe
from training.corpus.reader import PreparedText
from training.examples.masking import Vocabulary
from training.examples.pretraining import PretrainingStream


def stream(make_recipe: MakeRecipe, mask_fraction: float) -> PretrainingStream:
    recipe = make_recipe("pretrain.examples.long_fraction=0", f"pretrain.examples.mask_fraction={mask_fraction}")
    text = PreparedText.open(recipe.folder / "corpus" / "train")
    vocabulary = Vocabulary.of(Tokenizer.load(recipe.folder / "tokenizer"))
    return PretrainingStream(text, vocabulary, recipe.pretrain.examples, 1, 256)


def test_stream_masks_the_share_of_the_recipe(make_recipe: MakeRecipe) -> None:
    counts = []
    for fraction in (0.2, 0.4):
        window = stream(make_recipe, fraction).window(0, 0)
        counts.append(sum(len(window.make(i).masked_ids) for i in range(len(window))))
    assert counts[1] == pytest.approx(2 * counts[0], rel=0.05)


def test_stream_batches_have_room_for_their_share_of_masked_tokens(make_recipe: MakeRecipe) -> None:
    assert stream(make_recipe, 0.3).shape.masked == 77
