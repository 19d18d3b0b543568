"""Pretraining: masked LM and next sentence, from random weights."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.checkpoint import save_checkpoint
from model.heads import BertForPreTraining
from model.tokenizer import Tokenizer
from training.batches import PretrainingBatch, collate_pretraining
from training.config import ExamplesConfig, PretrainConfig, Recipe
from training.corpus import Corpus
from training.errors import CorpusError
from training.evaluation import evaluate_pretraining
from training.examples import IGNORE_INDEX, Example, ExampleMaker, Vocabulary
from training.loop import Budget, Loop, choose_device, choose_precision
from training.optimizer import make_optimizer
from training.run_state import Progress, RunState
from training.watch import RunLog

logger = logging.getLogger(__name__)


def pretrain(recipe: Recipe) -> bool:
    """Train until the budget is spent; continues where an interrupted run stopped. True when finished."""
    config = recipe.pretrain
    tokenizer = Tokenizer.load(recipe.folder / "tokenizer")
    corpus = Corpus.open(recipe.folder / "corpus" / "train")
    corpus.check_tokenizer(tokenizer)
    device = choose_device(recipe.device)
    model = new_model(recipe, tokenizer).to(device)
    task = PretrainingTask(model, corpus, tokenizer, recipe)
    log = RunLog(recipe.folder / "pretrain" / "log.jsonl")
    heldout = open_heldout(recipe)

    def evaluate(_: Progress) -> dict[str, Any]:
        reports = evaluate_pretraining(
            model, heldout, tokenizer, config.examples, examples=config.evaluate_examples
        )
        return {name: report.summary() for name, report in reports.items()}

    loop = Loop(
        task=task,
        optimizer=make_optimizer(model, config),
        budget=Budget(minutes=config.minutes, tokens=config.tokens),
        learning_rate=config.learning_rate,
        warmup_fraction=config.warmup_fraction,
        clip_norm=config.clip_norm,
        precision=choose_precision(device),
        log=log,
        log_steps=config.log_steps,
        state=RunState(recipe.folder / "pretrain", _identity(recipe, corpus)),
        checkpoint_minutes=config.checkpoint_minutes,
        evaluate=evaluate,
        evaluate_minutes=config.evaluate_minutes,
    )
    assert loop.state is not None
    loop.progress = loop.state.resume(model, loop.optimizer)
    parameters = sum(p.numel() for p in model.parameters())
    logger.info(
        "%s parameters, %s tokens of text, unigram entropy %.2f nats, %s in %s",
        f"{parameters:,}",
        f"{corpus.num_tokens:,}",
        corpus.unigram_entropy,
        loop.precision,
        device,
    )
    finished = loop.run()
    save_checkpoint(recipe.folder / "pretrained", model.cpu(), tokenizer)
    return finished


def new_model(recipe: Recipe, tokenizer: Tokenizer) -> BertForPreTraining:
    """A network with fresh weights, the same for the same seed."""
    shape = recipe.model.bert(tokenizer.vocab_size)
    dropout = recipe.pretrain.dropout
    model = BertForPreTraining(shape.replace(hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout))
    model.initialise(torch.Generator().manual_seed(recipe.seed))
    if recipe.pretrain.zero_residual:
        zero_residual(model)
    torch.manual_seed(recipe.seed)  # dropout
    return model.train()


def zero_residual(model: nn.Module) -> None:
    """Zero the last linear of each residual branch, so that every layer starts as the identity."""
    for name, part in model.named_modules():
        if name.endswith((".attention_output", ".output")) and isinstance(part, nn.Linear):
            nn.init.zeros_(part.weight)


def open_heldout(recipe: Recipe) -> dict[str, Corpus]:
    """The held-out corpora by the name of their source."""
    folders = sorted((recipe.folder / "corpus" / "heldout").glob("*/manifest.json"))
    if not folders:
        raise CorpusError(f"{recipe.folder / 'corpus' / 'heldout'} is empty; run prepare again")
    return {file.parent.name: Corpus.open(file.parent) for file in folders}


class PretrainingTask:
    """Batches of masked pairs, first short, then (phase 1) long."""

    def __init__(self, model: BertForPreTraining, corpus: Corpus, tokenizer: Tokenizer, recipe: Recipe) -> None:
        config = recipe.pretrain
        self.model: nn.Module = model
        self.bert = model
        self.config = config
        self.device = next(model.parameters()).device
        vocabulary = Vocabulary.of(tokenizer)
        self.makers = [
            ExampleMaker(corpus, vocabulary, examples, recipe.seed + phase)
            for phase, examples in enumerate(phases(config))
        ]

    def micro_batches(self, progress: Progress, spent: float) -> Sequence[PretrainingBatch]:
        """The next `batch` examples, in micro-batches of about equally many tokens."""
        if progress.phase == 0 and spent >= 1 - self.config.long_fraction:
            progress.phase, progress.epoch, progress.position = 1, 0, 0
        examples = [self._next(progress) for _ in range(self._examples(progress.phase))]
        size = max(1, len(examples) * (self.config.micro_batch or self.config.batch) // self.config.batch)
        cuts = range(0, len(examples), size)
        return [collate_pretraining(examples[at : at + size]).to(self.device) for at in cuts]

    def _next(self, progress: Progress) -> Example:
        maker = self.makers[progress.phase]
        if progress.position >= len(maker.starts(progress.epoch)):
            progress.epoch, progress.position = progress.epoch + 1, 0
        progress.position += 1
        return maker(progress.epoch, progress.position - 1)

    def loss(self, batch: PretrainingBatch, of: Sequence[PretrainingBatch]) -> tuple[Tensor, dict[str, float]]:
        """Mean masked-LM loss plus mean next-sentence loss over the whole step, in nats."""
        masked = sum(len(b.masked_rows) for b in of)
        labelled = max(1, sum(int((b.next_labels != IGNORE_INDEX).sum()) for b in of))
        hidden = self.bert(batch.packed)  # (num_reads, hidden)
        logits = self.bert.masked_lm(hidden.index_select(0, batch.masked_rows))
        mlm = F.cross_entropy(logits.float(), batch.masked_ids, reduction="sum") / masked
        assert self.bert.next_sentence is not None
        follows = self.bert.next_sentence(hidden.index_select(0, batch.cls_rows))
        nsp = (
            F.cross_entropy(follows.float(), batch.next_labels, ignore_index=IGNORE_INDEX, reduction="sum")
            / labelled
        )
        return mlm + nsp, {"loss": (mlm + nsp).item(), "mlm_loss": mlm.item(), "nsp_loss": nsp.item()}

    def _examples(self, phase: int) -> int:
        """Examples of a step: fewer when they are long, so that a step keeps its number of tokens."""
        lengths = [maker.config.sequence_length for maker in self.makers]
        return max(1, self.config.batch * lengths[0] // lengths[phase])


def phases(config: PretrainConfig) -> list[ExamplesConfig]:
    """How examples are made at first, and at the end of the run."""
    short = config.examples
    return [short, short.model_copy(update={"sequence_length": config.long_length})]


def _identity(recipe: Recipe, corpus: Corpus) -> dict[str, Any]:
    """What a resumed run must have in common with the one it continues."""
    watching = {"evaluate_minutes", "evaluate_examples", "checkpoint_minutes", "log_steps", "compile"}
    return {
        "seed": recipe.seed,
        "model": recipe.model.model_dump_json(),
        "pretrain": recipe.pretrain.model_dump_json(exclude=watching),
        "tokenizer": corpus.tokenizer_hash,
        "corpus": corpus.num_tokens,
    }
