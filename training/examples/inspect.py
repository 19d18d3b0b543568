"""`inspect`: prints decoded examples, and the balance of masks and labels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from model.tokenizer import Tokenizer
from training.corpus.reader import PreparedText
from training.examples.masking import Example, Vocabulary
from training.examples.pairs import IGNORE_INDEX, IS_NEXT, PairKind
from training.examples.pretraining import MaskedPairs
from training.recipe import Recipe

COUNTED = 4000
"""Examples over which shares are counted."""

_LABELS = {IS_NEXT: "next", IGNORE_INDEX: "no label"}


def inspect(recipe: Recipe, tokenizer: Tokenizer, corpus: Path, examples: int) -> str:
    """The first examples of the recipe's run, and shares over some thousand examples.

    Args:
        corpus: folder that `prepare` wrote.
    """
    text = PreparedText.open(corpus / "train")
    window = text.window(text.shuffled_windows(recipe.seed, 0)[0])
    pairs = MaskedPairs(window, Vocabulary.of(tokenizer), recipe.pretrain.examples, (recipe.seed, 0, 0))
    shown = [pairs.make(i) for i in range(min(examples, len(pairs)))]
    counted = [pairs.make(i) for i in range(min(COUNTED, len(pairs)))]
    return "\n".join([*(decode(example, tokenizer) for example in shown), *shares(counted, tokenizer)])


def decode(example: Example, tokenizer: Tokenizer) -> str:
    """One example as text. A masked token is followed by its replacement: `was[MASK]` or `was[other]`."""
    was = dict(zip(example.masked_positions.tolist(), example.masked_ids.tolist(), strict=True))
    text = ""
    for position, token_id in enumerate(example.input_ids.tolist()):
        token = tokenizer.token(token_id)
        if position in was:
            token = f"{tokenizer.token(was[position])}[{token.strip('[]')}]"
        text += token.removeprefix("##") if token.startswith("##") else f" {token}"
    label = _LABELS.get(example.kind.label, "not next")
    return f"{label} ({_name(example.kind)}), {len(example.input_ids)} tokens:{text}\n"


def shares(examples: Sequence[Example], tokenizer: Tokenizer) -> list[str]:
    """Shares of kinds, labels and masks over many examples, a line each."""
    kinds = np.array([example.kind for example in examples])
    labels = np.array([example.kind.label for example in examples if example.kind != PairKind.SINGLE])
    lengths = np.array([len(example.input_ids) for example in examples])
    was = np.concatenate([example.masked_ids for example in examples])
    shown = np.concatenate([example.input_ids[example.masked_positions] for example in examples])
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
