"""`pretrain`: masked LM and next sentence, from random weights or from a checkpoint."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch

from model.checkpoint import Checkpoint, load_checkpoint
from model.config import BertConfig
from model.heads import BertForPreTraining
from model.tokenizer import Tokenizer
from training.corpus.prepare import check_corpus_settings
from training.corpus.reader import PreparedText
from training.errors import CorpusError, RunError
from training.evaluate.pretraining import evaluate_pretraining
from training.examples.batches import PretrainingBatch
from training.examples.masking import Vocabulary
from training.examples.pretraining import PretrainingStream
from training.loop.advice import LEFT_PLATEAU, Advisor
from training.loop.checkpoint import Checkpointer, fingerprint, identity
from training.loop.log import RunLog
from training.loop.state import TrainState
from training.loop.tensorboard import Board
from training.loop.trainer import TrainConfig, Trainer, measure_speed
from training.pretrain.init import mimetic_attention_init, zero_residual
from training.pretrain.task import PretrainingTask
from training.recipe import Recipe, write_resolved
from training.runtime.checkpoint_dir import check_target, checkpoint_size, write_checkpoint_dir
from training.runtime.device import choose_device, maybe_compile
from training.runtime.distributed import DistContext, distributed
from training.runtime.files import read_json, write_json
from training.runtime.lock import run_lock

EVALUATED_EXAMPLES = 256
"""Held-out examples per source in an evaluation on the way."""

MAX_EVALUATIONS, TOKENS_PER_EVALUATION = 20, 1_000_000
"""An evaluation of four sources costs as much as 80,000 tokens of training, so short runs have few."""

BUDGET_SHARE = 0.95
"""Share of a budget in minutes that steps get; evaluations and checkpoints take the rest."""

logger = logging.getLogger(__name__)


def pretrain(recipe: Recipe, next_command: str = "finetune, or evaluate and export") -> bool:
    """Pretrain until the budget is spent, or continue an interrupted run. True when finished.

    Args:
        next_command: for the last line of the log.

    Raises:
        CorpusError: the text is not prepared, or was prepared from another recipe.
        RunError: `pretrain.start` does not fit, or the run in the folder is another one.
    """
    tokenizer = Tokenizer.load(recipe.folder / "tokenizer")
    text = PreparedText.open(recipe.folder / "corpus" / "train")
    text.check_tokenizer(tokenizer)
    check_corpus_settings(recipe)
    target = recipe.folder / "pretrained"
    check_target(target)
    with distributed() as dist, run_lock(recipe.folder / "pretrain" / f"rank-{dist.rank}"):
        device = choose_device(recipe.device, dist.local_rank)
        model = new_model(recipe, tokenizer).to(device)
        examples = recipe.pretrain.examples
        stream = PretrainingStream(text, Vocabulary.of(tokenizer), examples, recipe.seed, recipe.micro_batch_tokens)
        task = PretrainingTask(model, stream)
        maybe_compile(task.loss)
        recipe = _resolve_budget(recipe, task, dist)
        trainer = _trainer(recipe, task, text, tokenizer, dist)
        if dist.is_main and not trainer.is_finished:
            write_resolved(recipe, recipe.folder / "pretrain")
        finished = trainer.run()
        if finished and dist.is_main:
            write_checkpoint_dir(target, model.cpu(), tokenizer, torch.float32)
            logger.info("network of %s in %s; next: %s", checkpoint_size(target), target, next_command)
    return finished


def _resolve_budget(recipe: Recipe, task: PretrainingTask, dist: DistContext) -> Recipe:
    """The recipe with its budget in tokens. A budget in minutes is converted once, and remembered for resumes."""
    minutes = recipe.pretrain.minutes
    if minutes is None:
        return recipe
    file = recipe.folder / "pretrain" / "budget.json"
    known = read_json(file) if dist.is_main else None
    if known is None or known["minutes"] != minutes:
        speed = measure_speed(task, min(10.0, 6 * minutes)) * dist.world_size  # at most a tenth of the budget
        tokens = max(recipe.pretrain.batch_tokens, round(speed * 60 * minutes * BUDGET_SHARE))
        known = {"minutes": minutes, "tokens": tokens, "tokens_per_second": round(speed)}
        if dist.is_main:
            write_json(file, known)
    known = dist.all_gather(known)[0]
    logger.info(
        "%g minutes at %s tokens/s: %s tokens",
        minutes,
        *(f"{known[key]:,}" for key in ("tokens_per_second", "tokens")),
    )
    changes = {"tokens": known["tokens"], "minutes": None}
    return recipe.model_copy(update={"pretrain": recipe.pretrain.model_copy(update=changes)})


def _trainer(
    recipe: Recipe, task: PretrainingTask, text: PreparedText, tokenizer: Tokenizer, dist: DistContext
) -> Trainer[PretrainingBatch]:
    """The trainer, at the step where an earlier run stopped."""
    config, folder = recipe.pretrain, recipe.folder / "pretrain"
    heldout = open_heldout(recipe)
    model = task.model
    assert isinstance(model, BertForPreTraining)
    assert config.tokens is not None
    board = Board(folder / "tensorboard") if recipe.tensorboard and dist.is_main else None

    def evaluate(_state: TrainState) -> dict[str, Any]:
        reports = evaluate_pretraining(model, heldout, tokenizer, config.examples, count=EVALUATED_EXAMPLES)
        return {name: report.summary() for name, report in reports.items()}

    trainer: Trainer[PretrainingBatch] = Trainer(
        task=task,
        config=TrainConfig(
            budget_tokens=config.tokens,
            batch_tokens=config.batch_tokens,
            micro_batch_tokens=recipe.micro_batch_tokens,
            learning_rate=config.learning_rate,
            warmup_fraction=config.warmup_fraction,
            decay_fraction=config.decay_fraction,
            average_fraction=config.average_fraction,
            optimizer=config.optimizer,
            seed=recipe.seed,
            checkpoint_minutes=recipe.checkpoint_minutes,
            evaluations=max(1, min(MAX_EVALUATIONS, config.tokens // TOKENS_PER_EVALUATION)),
        ),
        log=RunLog(folder / "log.jsonl", board),
        checkpointer=Checkpointer(folder, _identity(recipe, text, model), dist),
        evaluate=evaluate,
        advisor=Advisor(text.unigram_entropy),
        dist=dist,
    )
    trainer.advisor.left_plateau = any(line["event"] == LEFT_PLATEAU for line in trainer.log)
    return trainer


def new_model(recipe: Recipe, tokenizer: Tokenizer) -> BertForPreTraining:
    """The network that pretraining starts from: new weights, the same for the same seed, or those of
    `pretrain.start`.

    Raises:
        RunError: `pretrain.start` has no next-sentence head, too few positions, or another vocabulary.
    """
    start = recipe.pretrain.start
    if start is None:
        return initial_model(recipe.model.bert(tokenizer.vocab_size, recipe.positions), recipe)
    loaded, checkpoint = load_pretrained(start)
    if checkpoint.tokenizer.to_json() != tokenizer.to_json():
        raise RunError(
            f"{start} has another vocabulary than {recipe.folder / 'tokenizer'}; run tokenizer and prepare with this "
            "pretrain.start"
        )
    positions, longest = loaded.config.max_position_embeddings, recipe.pretrain.examples.longest
    if longest > positions:
        raise RunError(f"examples have up to {longest} tokens, but {start} has {positions} positions")
    model = initial_model(loaded.config, recipe)
    model.load_state_dict(loaded.state_dict())
    return model


def load_pretrained(folder: Path) -> tuple[BertForPreTraining, Checkpoint]:
    """Network and checkpoint of a directory with both pretraining heads.

    Raises:
        RunError: it is another kind of checkpoint.
    """
    checkpoint = load_checkpoint(folder)
    if not isinstance(checkpoint.model, BertForPreTraining) or checkpoint.model.next_sentence is None:
        raise RunError(f"{folder} is not a checkpoint with masked-LM and next-sentence heads")
    return checkpoint.model, checkpoint


def initial_model(shape: BertConfig, recipe: Recipe) -> BertForPreTraining:
    """A network of some shape with the initial weights of the recipe's seed."""
    model = BertForPreTraining(
        shape.replace(hidden_dropout_prob=recipe.pretrain.dropout, attention_probs_dropout_prob=0.0)
    )
    model.initialise(torch.Generator().manual_seed(recipe.seed))
    zero_residual(model)
    mimetic_attention_init(model.encoder)
    return model.train()


def open_heldout(recipe: Recipe) -> dict[str, PreparedText]:
    """The held-out text by the name of its source."""
    folder = recipe.folder / "corpus" / "heldout"
    manifests = sorted(folder.glob("*/manifest.json"))
    if not manifests:
        raise CorpusError(
            f"{folder} is empty: there is no text to evaluate on. Name some as corpus.heldout, or set "
            "corpus.heldout_fraction above 0 for text of two documents or more (a blank line, or a row, ends one); "
            "then run prepare again"
        )
    return {file.parent.name: PreparedText.open(file.parent) for file in manifests}


_MAY_CHANGE = {"tokens", "minutes", "decay_fraction", "average_fraction", "warmup_fraction", "start"}
"""Settings that a continued run may change."""


def _identity(recipe: Recipe, text: PreparedText, model: BertForPreTraining) -> dict[str, Any]:
    return identity(
        seed=recipe.seed,
        micro_batch_tokens=recipe.micro_batch_tokens,
        pretrain=recipe.pretrain.model_dump(mode="json", exclude=_MAY_CHANGE),
        initial_weights=fingerprint(model),
        tokenizer=text.tokenizer_hash,
        text=text.checksum,
    )
