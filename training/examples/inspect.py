"""`inspect`: prints decoded examples, and the balance of masks and labels."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from model.tokenizer import Tokenizer
from training.corpus.parts import TRAIN
from training.corpus.reader import PreparedText
from training.examples.masking import Examples, Vocabulary, mask
from training.examples.pairs import IGNORE_INDEX, IS_NEXT, LABELS, PairKind, sample_pairs
from training.recipe import Recipe

COUNTED = 4000
"""Examples over which shares are counted."""

_LABELS = {IS_NEXT: "next", IGNORE_INDEX: "no label"}


def inspect(recipe: Recipe, tokenizer: Tokenizer, corpus: Path, examples: int) -> str:
    """Some examples like those of the recipe's run, and shares over some thousand examples.

    Args:
        corpus: folder that `prepare` wrote.
    """
    text, rng = PreparedText.open(corpus, use=TRAIN), np.random.default_rng(recipe.seed)
    window, config = next(text.windows(recipe.seed, 0)), recipe.pretrain.examples
    pairs, vocabulary = sample_pairs(window, config, rng)[: max(COUNTED, examples)], Vocabulary.of(tokenizer)
    shown = [
        mask(window, pairs[i : i + 1], config.mask_fraction, vocabulary, rng) for i in range(examples)[: len(pairs)]
    ]
    counted = mask(window, pairs[:COUNTED], config.mask_fraction, vocabulary, rng)
    return "\n".join([*(decode(example, tokenizer) for example in shown), *shares(counted, tokenizer)])


def decode(example: Examples, tokenizer: Tokenizer) -> str:
    """One example as text. A masked token is followed by its replacement: `was[MASK]` or `was[other]`."""
    was = dict(zip(example.masked_positions.tolist(), example.masked_ids.tolist(), strict=True))
    text = ""
    for position, token_id in enumerate(example.input_ids.tolist()):
        token = tokenizer.token(token_id)
        if position in was:
            token = f"{tokenizer.token(was[position])}[{token.strip('[]')}]"
        text += token.removeprefix("##") if token.startswith("##") else f" {token}"
    (kind,) = map(PairKind, example.kinds)
    label = _LABELS.get(int(LABELS[kind]), "not next")
    return f"{label} ({_name(kind)}), {len(example.input_ids)} tokens:{text}\n"


def shares(examples: Examples, tokenizer: Tokenizer) -> list[str]:
    """Shares of kinds, labels and masks over many examples, a line each."""
    kinds, lengths = examples.kinds, examples.lengths
    labels = LABELS[kinds[kinds != PairKind.SINGLE]]
    was, shown = examples.masked_ids, examples.input_ids[examples.masked_positions]
    special = 3 * len(examples) - int((kinds == PairKind.SINGLE).sum())
    hidden, kept = shown == tokenizer.mask_id, shown == was
    by_kind = ", ".join(f"{_name(kind)} {(kinds == kind).mean():.1%}" for kind in PairKind)
    follows = f"{(labels == IS_NEXT).mean():.1%}" if len(labels) else "none"
    return [
        f"{len(examples):,} examples, {lengths.mean():.1f} tokens on average, {lengths.max()} at most",
        f"kinds: {by_kind}",
        f"of the labelled pairs, next: {follows}",
        f"masked: {len(was) / (lengths.sum() - special):.1%} of the tokens; of these {hidden.mean():.1%} "
        f"as [MASK], {kept.mean():.1%} as they were, {(~hidden & ~kept).mean():.1%} as another token",
    ]


def _name(kind: PairKind) -> str:
    return kind.name.lower().replace("_", " ")
