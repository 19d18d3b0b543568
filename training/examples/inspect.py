"""`inspect`: prints decoded examples."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from model.tokenizer import Tokenizer
from training.corpus.parts import TRAIN
from training.corpus.reader import PreparedText
from training.examples.masking import Examples, Vocabulary, mask
from training.examples.pairs import IGNORE_INDEX, IS_NEXT, LABELS, PairKind, sample_pairs
from training.recipe import Recipe

_LABELS = {IS_NEXT: "next", IGNORE_INDEX: "no label"}


def inspect(recipe: Recipe, tokenizer: Tokenizer, corpus: Path, examples: int) -> str:
    """Some examples like those of the recipe's run.

    Args:
        corpus: folder that `prepare` wrote.
    """
    text, rng = PreparedText(corpus, use=TRAIN), np.random.default_rng(recipe.seed)
    window, config = next(text.windows(recipe.seed, 0)), recipe.pretrain.examples
    pairs, vocabulary = sample_pairs(window, config, rng)[:examples], Vocabulary.of(tokenizer)
    shown = (mask(window, pairs[i : i + 1], config.mask_fraction, vocabulary, rng) for i in range(len(pairs)))
    return "\n".join(decode(example, tokenizer) for example in shown)


def decode(example: Examples, tokenizer: Tokenizer) -> str:
    """One example as text. A masked token is followed by its replacement: `was[MASK]` or `was[other]`."""
    tokens = [tokenizer.token(token_id) for token_id in example.input_ids.tolist()]
    for position, was in zip(example.masked_positions.tolist(), example.masked_ids.tolist(), strict=True):
        tokens[position] = f"{tokenizer.token(was)}[{tokens[position].strip('[]')}]"
    text = " ".join(tokens).replace(" ##", "")
    (kind,) = map(PairKind, example.kinds)
    label, name = _LABELS.get(int(LABELS[kind]), "not next"), kind.name.lower().replace("_", " ")
    return f"{label} ({name}), {len(tokens)} tokens: {text}\n"
