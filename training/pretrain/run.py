"""`pretrain`: masked LM and next sentence, from random weights or from a checkpoint."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from model.bert import BertEncoder
from model.checkpoint import Checkpoint, load_checkpoint
from model.heads import BertForPreTraining
from model.tokenizer import Tokenizer
from training.corpus.inputs import HELDOUT
from training.corpus.parts import TRAIN
from training.corpus.reader import PreparedText
from training.errors import CorpusError, RunError
from training.examples.masking import Vocabulary
from training.examples.pretraining import PretrainingStream
from training.loop.advice import Advisor
from training.loop.checkpoint import TrainState
from training.loop.trainer import TrainConfig, Trainer
from training.metrics.classification import check_reading
from training.metrics.pretraining import evaluate_pretraining
from training.pretrain.init import mimetic_attention_init, zero_residual
from training.pretrain.task import PretrainingLoss
from training.recipe import Recipe, write_resolved
from training.runtime.checkpoint_dir import write_checkpoint_dir
from training.runtime.device import choose_device, maybe_compile
from training.runtime.distributed import DistContext

EVALUATION_EXAMPLES = 256
"""Held-out examples per source in an evaluation during the run."""

MAX_EVALUATIONS, TOKENS_PER_EVALUATION = 20, 1_000_000
"""Maximum number of evaluations, and tokens between two. An evaluation of four sources costs as much as about 80,000
tokens of training: 256 examples of 115 tokens, masked and whole, without a backward pass."""

BUDGET_SHARE = 0.95
"""Share of a budget in minutes that steps get; evaluations and checkpoints take the rest."""

logger = logging.getLogger(__name__)


def pretrain(
    recipe: Recipe, tokenizer: Tokenizer, corpus: Path, folder: Path, dist: DistContext
) -> dict[str, Any] | None:
    """Pretrain until the budget is spent, or resume an interrupted run. The network goes into `model/`.

    Args:
        corpus: folder that `prepare` wrote.
        folder: folder of the log, the checkpoints and the network.

    Returns:
        Values to record; None if a signal stopped the run.

    Raises:
        CorpusError: the text is damaged.
        RunError: `pretrain.start` or `pretrain.teacher` does not fit.
    """
    text = PreparedText(corpus, use=TRAIN)
    dist.check_equal([text.tokenizer_hash, text.checksum])
    heldout = open_heldout(corpus)
    loss = PretrainingLoss(new_model(recipe, tokenizer), load_teacher(recipe, tokenizer))
    loss.to(choose_device(recipe.device, dist.local_rank))
    loss.model.encoder.half_residual = recipe.half_residual
    maybe_compile(loss, cuda_graphs=recipe.cuda_graphs)
    examples = recipe.pretrain.examples
    stream = PretrainingStream(
        text, Vocabulary.of(tokenizer), examples, recipe.seed, recipe.micro_tokens(recipe.pretrain)
    )
    logger.info(f"{text.documents:,} documents with {text.tokens:,} tokens")
    trainer = _trainer(recipe, loss, stream, tokenizer, heldout, folder, dist)
    if not trainer.run():
        return None
    if dist.is_main:
        budget = {"tokens": trainer.budget_tokens, "minutes": None}
        write_resolved(recipe.model_copy(update={"pretrain": recipe.pretrain.model_copy(update=budget)}), folder)
        write_checkpoint_dir(folder / "model", loss.model.cpu(), tokenizer)
    return {}


def _trainer(
    recipe: Recipe,
    loss: PretrainingLoss,
    stream: PretrainingStream,
    tokenizer: Tokenizer,
    heldout: Mapping[str, PreparedText],
    folder: Path,
    dist: DistContext,
) -> Trainer:
    """The trainer, at the step where an earlier run stopped."""
    config = recipe.pretrain
    entropy = None if config.start else stream.text.unigram_entropy  # trained weights have left the plateau

    def evaluate(_state: TrainState) -> dict[str, Any]:
        reports = evaluate_pretraining(loss.model, heldout, tokenizer, config.examples, count=EVALUATION_EXAMPLES)
        return {name: report.summary() for name, report in reports.items()}

    return Trainer(
        loss,
        stream,
        TrainConfig(
            budget_tokens=config.budget_tokens,
            batch_tokens=config.batch_tokens,
            micro_batch_tokens=stream.micro_batch_tokens,
            learning_rate=config.learning_rate,
            warmup_fraction=config.warmup_fraction,
            decay_fraction=config.decay_fraction,
            seed=recipe.seed,
            checkpoint_minutes=recipe.checkpoint_minutes,
            max_evaluations=MAX_EVALUATIONS,
            tokens_per_evaluation=TOKENS_PER_EVALUATION,
            minutes=config.minutes,
            step_share=BUDGET_SHARE,
        ),
        folder,
        evaluate=evaluate,
        advisor=Advisor(unigram_entropy=entropy),
        dist=dist,
    )


def new_model(recipe: Recipe, tokenizer: Tokenizer) -> BertForPreTraining:
    """The network with which pretraining starts: new weights, the same for the same seed, or those of `pretrain.start`.

    Raises:
        RunError: `pretrain.start` has no next-sentence head, too few positions, or another vocabulary.
    """
    start, shape = None, recipe.model.bert(tokenizer.vocab_size, recipe.positions)
    if recipe.pretrain.start:
        start, checkpoint = load_pretrained(recipe.pretrain.start)
        check_reading(checkpoint, "pair", recipe.pretrain.examples.longest, tokenizer)
        shape = start.config
    dropout = {"hidden_dropout_prob": recipe.pretrain.dropout, "attention_probs_dropout_prob": 0.0}
    model = BertForPreTraining(shape.replace(**dropout))
    if start:
        model.load_state_dict(start.state_dict())
        return model
    model.initialise(torch.Generator().manual_seed(recipe.seed))
    zero_residual(model)
    mimetic_attention_init(model.encoder)
    return model


def load_teacher(recipe: Recipe, tokenizer: Tokenizer) -> BertEncoder | None:
    """The encoder of `pretrain.teacher`. Raises RunError like `check_reading`."""
    if recipe.pretrain.teacher is None:
        return None
    checkpoint = load_checkpoint(recipe.pretrain.teacher, need_heads=False)
    check_reading(checkpoint, "pair", recipe.pretrain.examples.longest, tokenizer)
    return checkpoint.model.encoder


def load_pretrained(folder: Path) -> tuple[BertForPreTraining, Checkpoint]:
    """Network and checkpoint of a directory with both pretraining heads.

    Raises:
        RunError: it is another kind of checkpoint, or takes no pairs.
    """
    checkpoint = load_checkpoint(folder)
    if not isinstance(checkpoint.model, BertForPreTraining) or checkpoint.model.next_sentence is None:
        raise RunError(f"{folder} is not a checkpoint with masked-LM and next-sentence heads")
    check_reading(checkpoint, "pair")
    return checkpoint.model, checkpoint


def open_heldout(corpus: Path) -> dict[str, PreparedText]:
    """The held-out text of a corpus by the name of its source."""
    shards = (shard for shard in PreparedText(corpus, use=HELDOUT).shards if shard.tokens)
    parts = {each.source: PreparedText(corpus, use=HELDOUT, source=each.source) for each in shards}
    if not parts:
        raise CorpusError(
            f"{corpus} has no held-out text, so the network cannot be evaluated. Set corpus.heldout_fraction above 0 "
            "for text of two documents or more (a blank line, or a row, ends one) of different groups, or name some as "
            "corpus.heldout; then run prepare again"
        )
    return parts
