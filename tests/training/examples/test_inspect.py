"""Examples decoded for a reader."""

from __future__ import annotations

import numpy as np

from model.tokenizer import Tokenizer
from tests.training.conftest import MakeRecipe
from training.examples.inspect import decode, inspect
from training.examples.masking import Examples
from training.examples.pairs import PairKind
from training.recipe import Recipe

Row = tuple[list[str], dict[int, str], PairKind]


def examples(tokenizer: Tokenizer, *rows: Row) -> Examples:
    """Examples of shown tokens, the tokens before masking by position, and kinds."""
    lengths = np.array([len(shown) for shown, _, _ in rows])
    starts = lengths.cumsum() - lengths
    ids = np.array([tokenizer.token_id(token) for shown, _, _ in rows for token in shown])
    was = np.array([tokenizer.token_id(token) for _, masked, _ in rows for token in masked.values()])
    positions = np.array([start + i for start, (_, masked, _) in zip(starts, rows, strict=True) for i in masked])
    return Examples(ids, np.zeros_like(ids), lengths, positions, was, np.array([kind for _, _, kind in rows]))


def test_decode_shows_masks_beside_the_tokens_they_hide(tokenizer: Tokenizer) -> None:
    shown = ["[CLS]", "it", "[MASK]", "good", "[SEP]", "i", "walk", "##ing", "[SEP]"]
    text = decode(examples(tokenizer, (shown, {2: "was", 5: "a", 7: "##ing"}, PairKind.SWAPPED)), tokenizer)
    assert "[CLS] it was[MASK] good [SEP] a[i] walking[##ing] [SEP]" in text
    assert text.startswith("not next (swapped), 9 tokens:")


def test_decode_of_a_single_segment_says_so(tokenizer: Tokenizer) -> None:
    text = decode(examples(tokenizer, (["[CLS]", "it", "[SEP]"], {1: "it"}, PairKind.SINGLE)), tokenizer)
    assert text.startswith("no label (single)")
    assert "it[it]" in text


def inspected(recipe: Recipe, count: int) -> str:
    return inspect(recipe, Tokenizer.load(recipe.folder / "tokenizer"), recipe.folder / "corpus", count)


def test_inspect_prints_as_many_examples_as_asked(make_recipe: MakeRecipe) -> None:
    assert inspected(make_recipe(), 3).count("[CLS]") == 3


def test_inspect_of_more_examples_than_there_are_shows_all(make_recipe: MakeRecipe) -> None:
    assert inspected(make_recipe(), 100_000).count("[CLS]") > 100
