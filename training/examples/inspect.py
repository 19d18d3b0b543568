"""`inspect`: what the network is shown, decoded, and whether masks and labels are balanced."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from model.tokenizer import Tokenizer
from training.corpus.prepare import Corpus
from training.examples.pairs import ALONE, IGNORE_INDEX, IS_NEXT, KINDS, Example, ExampleMaker, Vocabulary
from training.recipe import Recipe

COUNTED = 4000
"""Examples over which balances are taken."""

_LABELS = {IS_NEXT: "next", IGNORE_INDEX: "no label"}


def inspect(recipe: Recipe, examples: int) -> str:
    """The first examples of the recipe's run, and the balances over some thousand."""
    tokenizer = Tokenizer.load(recipe.folder / "tokenizer")
    corpus = Corpus.open(recipe.folder / "corpus" / "train")
    corpus.check_tokenizer(tokenizer)
    maker = ExampleMaker(corpus, Vocabulary.of(tokenizer), recipe.pretrain.examples, recipe.seed)
    available = len(maker.starts(0))
    shown = [maker(0, i) for i in range(min(examples, available))]
    counted = [maker(0, i) for i in range(min(COUNTED, available))]
    return "\n".join([*(decode(example, tokenizer) for example in shown), *balances(counted, tokenizer)])


def decode(example: Example, tokenizer: Tokenizer) -> str:
    """One example as text: what is masked stands before what is shown, `was[MASK]` or `was[other]`."""
    was = dict(zip(example.masked_positions.tolist(), example.masked_ids.tolist(), strict=True))
    text = ""
    for position, token_id in enumerate(example.input_ids.tolist()):
        token = tokenizer.token(token_id)
        if position in was:
            token = f"{tokenizer.token(was[position])}[{token.strip('[]')}]"
        text += token.removeprefix("##") if token.startswith("##") else f" {token}"
    label = _LABELS.get(example.next_label, "not next")
    return f"{label} ({KINDS[example.kind]}), {len(example.input_ids)} tokens:{text}\n"


def balances(examples: Sequence[Example], tokenizer: Tokenizer) -> list[str]:
    """Shares of kinds, labels and masks over many examples, a line each."""
    kinds = np.array([example.kind for example in examples])
    labels = np.array([example.next_label for example in examples if example.kind != ALONE])
    lengths = np.array([len(example.input_ids) for example in examples])
    was = np.concatenate([example.masked_ids for example in examples])
    shown = np.concatenate([example.input_ids[example.masked_positions] for example in examples])
    special = 3 * len(examples) - int((kinds == ALONE).sum())
    hidden, kept = shown == tokenizer.mask_id, shown == was
    shares = ", ".join(f"{name} {(kinds == kind).mean():.1%}" for kind, name in enumerate(KINDS))
    follows = f"{(labels == IS_NEXT).mean():.1%}" if len(labels) else "none"
    return [
        f"{len(examples):,} examples, {lengths.mean():.1f} tokens on average, {lengths.max()} at most",
        f"kinds: {shares}",
        f"of the labelled pairs, next: {follows}",
        f"masked: {len(was) / (lengths.sum() - special):.1%} of the tokens; of these {hidden.mean():.1%} "
        f"as [MASK], {kept.mean():.1%} as they were, {(~hidden & ~kept).mean():.1%} as another token",
    ]
