"""Examples decoded for a reader, and their shares."""

from __future__ import annotations

import re

import numpy as np

from model.tokenizer import Tokenizer
from tests.training.conftest import MakeRecipe
from training.examples.inspect import decode, inspect, shares
from training.examples.masking import Example
from training.examples.pairs import PairKind
from training.recipe import Recipe


def example(tokenizer: Tokenizer, shown: list[str], masked: dict[int, str], kind: PairKind) -> Example:
    ids = np.array([tokenizer.token_id(token) for token in shown])
    was = np.array([tokenizer.token_id(token) for token in masked.values()])
    return Example(ids, np.zeros_like(ids), np.array(list(masked)), was, kind)


def test_decode_shows_masks_beside_the_tokens_they_hide(tokenizer: Tokenizer) -> None:
    shown = ["[CLS]", "it", "[MASK]", "good", "[SEP]", "i", "walk", "##ing", "[SEP]"]
    text = decode(example(tokenizer, shown, {2: "was", 5: "a", 7: "##ing"}, PairKind.SWAPPED), tokenizer)
    assert "[CLS] it was[MASK] good [SEP] a[i] walking[##ing] [SEP]" in text
    assert text.startswith("not next (swapped), 9 tokens:")


def test_decode_of_a_single_segment_says_so(tokenizer: Tokenizer) -> None:
    text = decode(example(tokenizer, ["[CLS]", "it", "[SEP]"], {1: "it"}, PairKind.SINGLE), tokenizer)
    assert text.startswith("no label (single)")
    assert "it[it]" in text


def inspected(recipe: Recipe, examples: int) -> str:
    return inspect(recipe, Tokenizer.load(recipe.folder / "tokenizer"), recipe.folder / "corpus", examples)


def test_inspect_prints_examples_and_shares(make_recipe: MakeRecipe) -> None:
    text = inspected(make_recipe(), 3)
    assert text.count("[CLS]") == 3
    assert re.search(r"^masked: [\d.]+% of the tokens; of these [\d.]+% as \[MASK\]", text, re.MULTILINE)


def test_shares_of_kinds_labels_and_masks(tokenizer: Tokenizer) -> None:
    pair = ["[CLS]", "it", "[MASK]", "good", "[SEP]", "i", "walk", "##ing", "[SEP]"]
    examples = [
        example(tokenizer, pair, {2: "was", 5: "a", 7: "##ing"}, PairKind.SWAPPED),
        example(tokenizer, ["[CLS]", "it", "good", "[MASK]", "[SEP]"], {3: "it"}, PairKind.SINGLE),
        example(tokenizer, pair, {2: "was"}, PairKind.NEXT),
        example(tokenizer, pair, {2: "was"}, PairKind.NEXT),
    ]
    lines = shares(examples, tokenizer)
    assert lines[0] == "4 examples, 8.0 tokens on average, 9 at most"
    assert "swapped 25.0%" in lines[1]
    assert "single 25.0%" in lines[1]
    assert lines[2] == "of the labelled pairs, next: 66.7%"
    # 6 of 21 words are hidden: 4 as [MASK], one as it was, one as another
    assert (
        lines[3] == "masked: 28.6% of the tokens; of these 66.7% as [MASK], 16.7% as they were, 16.7% as another token"
    )


def test_inspect_of_more_examples_than_there_are_shows_all(make_recipe: MakeRecipe) -> None:
    assert inspected(make_recipe(), 100_000).count("[CLS]") > 100
