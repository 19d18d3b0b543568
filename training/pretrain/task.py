"""What a step of pretraining is made of: masked LM and next sentence over packed pairs."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.heads import BertForPreTraining
from model.packing import recurring_rows
from model.tokenizer import Tokenizer
from training.errors import RunError
from training.examples.batches import PretrainingBatch
from training.examples.loader import Share, Step, stream
from training.examples.pairs import IGNORE_INDEX, ExampleMaker, Text, Vocabulary
from training.loop.checkpoint import Progress
from training.loop.flops import pretraining_flops
from training.recipe import ExamplesConfig, PretrainConfig, Recipe
from training.runtime.compile import (
    checkpoint_layers,
    compile_if_it_pays,
    without_trace,
)
from training.runtime.device import autocast, choose_precision
from training.runtime.distributed import Processes

logger = logging.getLogger(__name__)

GPU_WORKERS = 4
"""One process makes close to a million tokens of examples a second; a GPU eats one to two."""

TRIAL_BATCHES = 4
"""Of different sizes, as in training."""


class PretrainingTask:
    """Batches of masked pairs, first short, then (phase 1) long."""

    figures: tuple[str, ...] = ("loss", "mlm_loss", "nsp_loss")

    def __init__(
        self,
        model: BertForPreTraining,
        corpus: Text,
        tokenizer: Tokenizer,
        recipe: Recipe,
        processes: Processes | None = None,
    ) -> None:
        config = recipe.pretrain
        self.processes = processes or Processes()
        if config.batch < self.processes.world:
            raise RunError(f"pretrain.batch is {config.batch}, fewer than {self.processes.world} processes")
        self.model: nn.Module = model
        self.bert = model
        self.config = config
        self.device = next(model.parameters()).device
        self.micro_batch = config.micro_batch or -(-config.batch // self.processes.world)
        vocabulary = Vocabulary.of(tokenizer)
        self.makers = [
            ExampleMaker(corpus, vocabulary, examples, recipe.seed + phase)
            for phase, examples in enumerate(phases(config))
        ]
        self._stream: tuple[tuple[int, int, int], Iterator[Step]] | None = None

    def prepare(self) -> None:
        """Choose what is fastest on this machine: size of a micro-batch, compiled layers or not."""
        if self.config.gradient_checkpointing:
            checkpoint_layers(self.bert.encoder)
        with without_trace(self.bert):
            batches = self._first_batches()
            if not self.config.gradient_checkpointing:  # a compiler passes over what is computed again
                compile_if_it_pays(self.bert.encoder, self.config.compile, lambda: self._pass(next(batches)))

    def micro_batches(self, progress: Progress, spent: float) -> Sequence[PretrainingBatch]:
        """This process's share of the next examples."""
        phase = int(len(self.makers) > 1 and spent >= 1 - self.config.long_fraction)
        if phase != progress.phase:  # back to 0: a run that was over goes on with a larger budget
            progress.change_phase()
        place = (progress.phase, progress.epoch, progress.position)
        if self._stream is None or self._stream[0] != place:
            self._stream = (place, self._steps_from(progress))
        steps = self._stream[1]
        step = next(steps)
        progress.epoch, progress.position = step.epoch, step.position
        self._stream = ((progress.phase, progress.epoch, progress.position), steps)
        return [batch.to(self.device) for batch in step.batches]

    def losses(self, batch: PretrainingBatch, counts: Sequence[float]) -> Tensor:
        """Part of the step's mean losses, in nats."""
        return pretraining_losses(self.bert, batch, counts, self.config.next_weight)

    def flops(self, batch: PretrainingBatch) -> int:
        """Of the forward and backward pass."""
        return pretraining_flops(self.bert.config, batch.packed, len(batch.masked_ids))

    def _steps_from(self, progress: Progress) -> Iterator[Step]:
        on_gpu = self.device.type == "cuda"
        workers = self.config.workers
        if workers is None:
            workers = GPU_WORKERS if on_gpu else 0
        maker, share = self.makers[progress.phase], self._share(progress.phase)
        return stream(maker, share, progress.epoch, progress.position, workers=workers, pin=on_gpu)

    def _share(self, phase: int) -> Share:
        """Fewer examples when they are long, so that a step keeps its number of tokens."""
        lengths = [maker.config.sequence_length for maker in self.makers]
        step, micro = (size * lengths[0] // lengths[phase] for size in (self.config.batch, self.micro_batch))
        world = self.processes.world
        return Share(max(world, step), max(1, micro), self.processes.rank, world)

    def _first_batches(self) -> Iterator[PretrainingBatch]:
        """A few micro-batches over and over: a trial is not to time the making of examples."""
        steps = itertools.islice(stream(self.makers[0], self._share(0), 0, 0), TRIAL_BATCHES)
        yield from itertools.cycle([step.batches[0].to(self.device) for step in steps])

    def _pass(self, batch: PretrainingBatch) -> None:
        with autocast(self.bert, choose_precision(self.device)):
            loss = self.losses(batch.to(self.device), batch.counts)[0]
        loss.backward()


def pretraining_losses(
    model: BertForPreTraining, batch: PretrainingBatch, counts: Sequence[float], next_weight: float = 1.0
) -> Tensor:
    """Sum of both losses, masked LM and next sentence (Devlin et al. 2018, section 3.1): (3,), in nats.

    `counts` says how many masked tokens and labelled pairs they are means over. In the sum, next sentence has
    `next_weight`; beside it stand both without a weight.
    """
    masked, labelled = counts
    hidden = model(batch.packed)  # (num_reads, hidden)
    rows, ids = batch.masked_rows, batch.masked_ids
    if rows.device.type == "cpu":  # oneDNN has no kernels yet for a number of rows that is new
        unmasked = (0, recurring_rows(len(rows)) - len(rows))
        rows, ids = F.pad(rows, unmasked), F.pad(ids, unmasked, value=IGNORE_INDEX)
    logits = model.masked_lm(hidden.index_select(0, rows))
    mlm = F.cross_entropy(logits.float(), ids, ignore_index=IGNORE_INDEX, reduction="sum") / masked
    assert model.next_sentence is not None
    follows = model.next_sentence(hidden.index_select(0, batch.cls_rows)).float()
    nsp = F.cross_entropy(follows, batch.next_labels, ignore_index=IGNORE_INDEX, reduction="sum")
    nsp = nsp / max(1.0, labelled)
    return torch.stack([mlm + next_weight * nsp, mlm, nsp])


def phases(config: PretrainConfig) -> list[ExamplesConfig]:
    """How examples are made at first, and at the end of the run if they get longer there."""
    short = config.examples
    long = short.model_copy(update={"sequence_length": config.long_length})
    return [short, long] if config.long_fraction else [short]
