"""Pretraining: masked LM and next sentence, from random weights or from an earlier checkpoint."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch
from torch import nn

from model.checkpoint import Checkpoint, load_checkpoint
from model.config import BertConfig
from model.heads import BertForPreTraining
from model.tokenizer import Tokenizer
from training.corpus.prepare import Corpus, check_recipe
from training.errors import CorpusError, RunError
from training.evaluate.metrics import evaluate_pretraining
from training.examples.batches import PretrainingBatch
from training.export.checkpoint_dir import check_target, write_directory
from training.loop.advice import LEFT_PLATEAU, Advisor
from training.loop.checkpoint import Progress, RunState, alone, fingerprint, identity
from training.loop.log import RunLog
from training.loop.optimizer import make_optimizer
from training.loop.tensorboard import Board
from training.loop.trainer import Budget, Loop
from training.pretrain.init import attend_to_neighbours, zero_residual
from training.pretrain.samples import sample_predictions
from training.pretrain.task import PretrainingTask, phases
from training.recipe import Recipe
from training.runtime.compile import uncompiled
from training.runtime.device import choose_device, choose_precision, machine, matmul_peak
from training.runtime.distributed import Processes, processes

logger = logging.getLogger(__name__)


def pretrain(recipe: Recipe) -> bool:
    """Train until the budget is spent; continues where an interrupted run stopped. True when finished."""
    tokenizer = Tokenizer.load(recipe.folder / "tokenizer")
    corpus = Corpus.open(recipe.folder / "corpus" / "train")
    corpus.check_tokenizer(tokenizer)
    check_recipe(recipe)
    check_target(recipe.folder / "pretrained")
    with processes() as group, alone(recipe.folder / "pretrain", group):
        device = choose_device(recipe.device, group.local_rank)
        model = new_model(recipe, tokenizer).to(device)
        task = PretrainingTask(model, corpus, tokenizer, recipe, group)
        loop = _loop(recipe, task, corpus, tokenizer, group)
        _describe(loop, corpus)
        if loop.spent < 1:
            task.prepare()
            loop.peak_flops = matmul_peak(device, loop.precision)
            if group.first:
                loop.log.write("machine", loop.progress, {"machine": machine(device)})
        finished = loop.run()
        if finished and group.first:
            with uncompiled(model):
                write_directory(recipe.folder / "pretrained", model.cpu(), tokenizer, torch.float32)
        group.wait()
    return finished


def _loop(
    recipe: Recipe, task: PretrainingTask, corpus: Corpus, tokenizer: Tokenizer, group: Processes
) -> Loop[PretrainingBatch]:
    """The loop, set to where an earlier run stopped."""
    config = recipe.pretrain
    heldout = open_heldout(recipe)

    board = Board(recipe.folder / "pretrain" / "tensorboard") if recipe.tensorboard and group.first else None
    if board is not None:
        board.graph(task.bert)

    def evaluate(progress: Progress) -> dict[str, Any]:
        if board is not None:
            for name, text in heldout.items():
                filled = sample_predictions(task.bert, text, tokenizer, config.examples)
                board.write("samples", progress, {name: filled})
        reports = evaluate_pretraining(
            task.bert, heldout, tokenizer, config.examples, examples=config.evaluate_examples
        )
        return {name: report.summary() for name, report in reports.items()}

    state = RunState(recipe.folder / "pretrain", _identity(recipe, corpus, task.model))
    loop: Loop[PretrainingBatch] = Loop(
        task=task,
        optimizer=make_optimizer(task.model, config),
        budget=Budget(minutes=config.minutes, tokens=config.tokens),
        learning_rate=config.learning_rate,
        warmup_fraction=config.warmup_fraction,
        decay_fraction=config.decay_fraction,
        average_fraction=config.average_fraction,
        clip_norm=config.clip_norm,
        precision=choose_precision(task.device),
        log=RunLog(recipe.folder / "pretrain" / "log.jsonl", board),
        log_steps=config.log_steps,
        state=state,
        checkpoint_minutes=config.checkpoint_minutes,
        evaluate=evaluate,
        evaluate_minutes=config.evaluate_minutes,
        advisor=Advisor(corpus.unigram_entropy),
        processes=group,
    )
    loop.resume()
    loop.advisor.left_plateau = any(line["event"] == LEFT_PLATEAU for line in loop.log)
    return loop


def _describe(loop: Loop[PretrainingBatch], corpus: Corpus) -> None:
    logger.info(
        "%s parameters, %s tokens of text, unigram entropy %.2f nats, %s",
        f"{sum(p.numel() for p in loop.task.model.parameters()):,}",
        f"{corpus.num_tokens:,}",
        corpus.unigram_entropy,
        loop.precision,
    )


def new_model(recipe: Recipe, tokenizer: Tokenizer) -> BertForPreTraining:
    """What the recipe's pretraining starts from: fresh weights, the same for the same seed, or those of
    `pretrain.start`.

    Raises:
        RunError: `pretrain.start` is no checkpoint of masked LM and next sentence, too short, or of another
            vocabulary.
    """
    if recipe.pretrain.start is None:
        return fresh_model(recipe.model.bert(tokenizer.vocab_size), recipe)
    begun, checkpoint = load_pretrained(recipe.pretrain.start)
    if checkpoint.tokenizer.to_json() != tokenizer.to_json():
        raise RunError(
            f"{recipe.pretrain.start} has another vocabulary than {recipe.folder / 'tokenizer'}; run tokenizer "
            "and prepare with this pretrain.start"
        )
    positions = begun.config.max_position_embeddings
    longest = max(examples.sequence_length for examples in phases(recipe.pretrain))
    if longest > positions:
        raise RunError(
            f"examples have up to {longest} tokens, but {recipe.pretrain.start} has {positions} positions"
        )
    if recipe.finetune.train and recipe.finetune.pretrained is None and recipe.finetune.max_length > positions:
        raise RunError(
            f"finetune.max_length is {recipe.finetune.max_length}, but {recipe.pretrain.start}, from which the "
            f"classifier will come, has {positions} positions"
        )
    model = fresh_model(begun.config, recipe)
    model.load_state_dict(begun.state_dict())
    return model


def load_pretrained(folder: Path) -> tuple[BertForPreTraining, Checkpoint]:
    """A checkpoint directory with both heads, and its network.

    Raises:
        RunError: it is another kind of checkpoint.
    """
    checkpoint = load_checkpoint(folder)
    if not isinstance(checkpoint.model, BertForPreTraining) or checkpoint.model.next_sentence is None:
        raise RunError(f"{folder} is no checkpoint of masked LM with next sentence")
    return checkpoint.model, checkpoint


def fresh_model(shape: BertConfig, recipe: Recipe) -> BertForPreTraining:
    """A network of any shape with the weights that the recipe's pretraining would start from."""
    dropout = recipe.pretrain.dropout
    model = BertForPreTraining(shape.replace(hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout))
    model.initialise(torch.Generator().manual_seed(recipe.seed))
    if recipe.pretrain.zero_residual:
        zero_residual(model)
    if recipe.pretrain.neighbour_attention:
        attend_to_neighbours(model.encoder)
    torch.manual_seed(recipe.seed)  # dropout
    return model.train()


def open_heldout(recipe: Recipe) -> dict[str, Corpus]:
    """The held-out corpora by the name of their source."""
    folders = sorted((recipe.folder / "corpus" / "heldout").glob("*/manifest.json"))
    if not folders:
        raise CorpusError(
            f"{recipe.folder / 'corpus' / 'heldout'} is empty: no text to judge by. Name some as "
            "corpus.heldout, or let heldout_fraction find some: above 0, in text of two documents or more (a "
            "blank line, or a row, ends one); then run prepare again"
        )
    return {file.parent.name: Corpus.open(file.parent) for file in folders}


_NOT_WHAT_IS_LEARNED = {
    *("minutes", "tokens", "decay_fraction", "average_fraction", "start"),  # a run may be continued with more
    *("evaluate_minutes", "evaluate_examples", "checkpoint_minutes", "log_steps"),
    *("compile", "workers", "micro_batch", "gradient_checkpointing"),
}


def _identity(recipe: Recipe, corpus: Corpus, start: nn.Module) -> dict[str, Any]:
    """What a resumed run must have in common with the one it continues; `start` is the network before it."""
    begun = recipe.pretrain.start is not None
    return identity(
        seed=recipe.seed,
        model={"start": fingerprint(start)} if begun else recipe.model.model_dump(mode="json"),
        pretrain=recipe.pretrain.model_dump(mode="json", exclude=_NOT_WHAT_IS_LEARNED),
        tokenizer=corpus.tokenizer_hash,
        corpus_tokens=corpus.num_tokens,
    )
