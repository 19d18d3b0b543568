"""Evaluates a network on masked words and next sentences in held-out text, beside trivial guesses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from model.heads import BertForPreTraining
from model.tokenizer import Tokenizer
from training.corpus.prepare import entropy
from training.corpus.reader import PreparedText
from training.examples.batches import collate_pretraining
from training.examples.masking import Examples, Vocabulary, mask
from training.examples.pairs import IS_NEXT, NOT_NEXT, PairKind, Text, sample_pairs
from training.recipe import ExamplesConfig
from training.runtime.device import check_finite, evaluating

EVALUATION_SEED = 20181011
"""Seed of masks and pairs in every evaluation, so that all networks answer the same questions."""

BATCH = 64
"""Examples per forward pass."""


@dataclass(frozen=True, slots=True)
class PretrainingReport:
    """Masked LM where 15% of the tokens are [MASK], and next sentence with nothing masked, on one held-out source."""

    examples: int
    masked: int
    """Tokens that are [MASK]."""
    mlm_loss: float
    """Nats per masked token."""
    mlm_accuracy: float
    unigram_entropy: float
    """Loss of the best guess without context: the entropy of this source's tokens, in nats."""
    unigram_accuracy: float
    """Accuracy of always answering the most frequent token."""
    nsp_accuracy: float | None
    """Accuracy over all pairs, 0.5 by chance; None if no document has two sentences."""
    nsp_accuracy_random: float | None
    """Mean recall of true pairs and of second segments from another document."""
    nsp_recall: dict[str, float]
    """Share of right answers by kind of pair."""

    def summary(self) -> dict[str, float]:
        """Figures for a line of the log."""
        names = ("mlm_loss", "unigram_entropy", "mlm_accuracy", "nsp_accuracy", "nsp_accuracy_random")
        figures = {name: getattr(self, name) for name in names}
        return {name: round(figure, 4) for name, figure in figures.items() if figure is not None}


@dataclass(frozen=True, slots=True)
class PretrainingAnswers:
    """Predictions of a network for a number of examples: words where they are masked, pairs where nothing is."""

    losses: NDArray[np.float32]
    """(masked,) nats of each masked token."""
    right: NDArray[np.bool_]
    """(masked,) whether the first guess was right."""
    follows: NDArray[np.int64]
    """(examples,) IS_NEXT or NOT_NEXT."""
    kinds: NDArray[np.int64]
    """(examples,) PairKind."""


def heldout_examples(text: Text, tokenizer: Tokenizer, config: ExamplesConfig, count: int) -> list[Examples]:
    """The first `count` examples of a held-out text, in batches.

    Only their length comes from the recipe, the rest are defaults, so that the figures of all recipes with this
    `short_length` can be compared. All tokens to predict are [MASK], as in callers' texts. Tokens that training leaves
    visible would count as understood.
    """
    config = ExamplesConfig(short_length=config.short_length, long_fraction=0.0)
    rng, vocabulary = np.random.default_rng(EVALUATION_SEED), Vocabulary.of(tokenizer)
    pairs = sample_pairs(text, config, rng)[:count]
    batches = (pairs[at : at + BATCH] for at in range(0, len(pairs), BATCH))
    made = (mask(text, batch, config.mask_fraction, vocabulary, rng) for batch in batches)
    return [examples.shown_as(tokenizer.mask_id) for examples in made]


def evaluate_pretraining(
    model: BertForPreTraining,
    heldout: Mapping[str, PreparedText],
    tokenizer: Tokenizer,
    config: ExamplesConfig,
    *,
    count: int,
) -> dict[str, PretrainingReport]:
    """Evaluate on the first `count` examples of each held-out text. Next sentence is evaluated without masks, because
    callers of next-sentence mask nothing."""
    reports = {}
    for name, text in heldout.items():
        batches = heldout_examples(text.window(), tokenizer, config, count)
        counts = text.token_counts()
        counts[tokenizer.unk_id] = 0  # masked only if a text has no other tokens
        reports[name] = pretraining_report(predict_pretraining(model, batches), counts)
    return reports


def predict_pretraining(model: BertForPreTraining, batches: Iterable[Examples]) -> PretrainingAnswers:
    """Predictions for batches of examples. Raises RunError like `check_finite`."""
    assert model.next_sentence is not None
    device = next(model.parameters()).device
    answers = []
    with evaluating(model):
        for examples in batches:
            masked = collate_pretraining(examples).to(device)
            whole = collate_pretraining(examples.shown_as(examples.masked_ids)).to(device)
            logits = model.masked_lm(model(masked.packed)[masked.masked_rows]).float()
            losses = F.cross_entropy(logits, masked.masked_ids, reduction="none")
            follows = model.next_sentence(model(whole.packed)[whole.cls_rows]).argmax(1)
            answers.append((losses, logits.argmax(1) == masked.masked_ids, follows, torch.from_numpy(examples.kinds)))
    columns = [torch.cat(column).cpu() for column in zip(*answers, strict=True)]
    check_finite(columns[0])
    return PretrainingAnswers(*(column.numpy() for column in columns))


def pretraining_report(answers: PretrainingAnswers, token_counts: NDArray[np.int64]) -> PretrainingReport:
    """Figures of answers.

    Args:
        token_counts: (vocab_size,) number of occurrences of each token that may be masked.
    """
    kinds, paired = answers.kinds, answers.kinds != PairKind.SINGLE
    correct = answers.follows == np.where(kinds == PairKind.NEXT, IS_NEXT, NOT_NEXT)
    recall = {PairKind(kind).name.lower(): float(correct[kinds == kind].mean()) for kind in np.unique(kinds[paired])}
    by_topic = [recall[kind] for kind in ("next", "random_document") if kind in recall]
    return PretrainingReport(
        examples=len(kinds),
        masked=len(answers.losses),
        mlm_loss=float(answers.losses.mean()),
        mlm_accuracy=float(answers.right.mean()),
        unigram_entropy=entropy(token_counts),
        unigram_accuracy=float(token_counts.max() / token_counts.sum()),
        nsp_accuracy=float(correct[paired].mean()) if paired.any() else None,
        nsp_accuracy_random=sum(by_topic) / 2 if len(by_topic) == 2 else None,
        nsp_recall=recall,
    )
