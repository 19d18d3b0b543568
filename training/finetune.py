"""Fine-tuning: a classifier on top of the pretrained encoder."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.checkpoint import load_checkpoint
from model.heads import BertForPreTraining, BertForSequenceClassification
from model.tokenizer import Tokenizer
from training.batches import ClassificationBatch
from training.classification import LabelledTexts, joined, read_labelled
from training.config import FinetuneConfig, Recipe
from training.directory import write_directory
from training.distributed import Processes, processes
from training.errors import RunError
from training.evaluation import classification_report, predict_classification
from training.flops import classification_flops
from training.hardware import choose_device, choose_precision, matmul_peak
from training.loop import Budget, Loop
from training.optimizer import make_optimizer
from training.run_state import Progress, RunState, identity
from training.tensorboard import Board
from training.watch import RunLog

logger = logging.getLogger(__name__)


def finetune(recipe: Recipe) -> bool:
    """Train the classifier from the exported pretrained model; continues an interrupted run."""
    folder = recipe.folder / "pretrained"
    if not folder.is_dir():
        raise RunError(f"{folder} is missing; run pretrain first")
    source = load_checkpoint(folder)
    if not isinstance(source.model, BertForPreTraining):
        raise RunError(f"{source.path} is no pretrained model, but a {type(source.model).__name__}")
    with processes() as group:
        device = choose_device(recipe.device, group.local_rank)
        torch.manual_seed(recipe.seed)
        model = classifier_from(source.model, recipe.finetune, recipe.seed).to(device)
        train, dev = read_all(recipe, source.tokenizer)
        task = ClassificationTask(model, joined(train, "train"), recipe.finetune, recipe.seed, group)
        loop = _loop(recipe, task, dev, fingerprint(source.model), group)
        if loop.spent < 1:
            loop.peak_flops = matmul_peak(device, loop.precision)
        finished = loop.run()
        if finished and group.first:
            model.config = model.config.replace(temperature=fit_temperature(model, joined(dev, "dev")))
            write_directory(recipe.folder / "sentiment", model.cpu(), source.tokenizer, torch.float32)
        group.wait()
    return finished


def _loop(
    recipe: Recipe, task: ClassificationTask, dev: list[LabelledTexts], start: str, group: Processes
) -> Loop[ClassificationBatch]:
    """The loop, set to where an earlier run stopped."""
    config = recipe.finetune
    steps = max(1, round(config.epochs * len(task.texts) / config.batch))
    logger.info("%d texts, %s tokens per epoch, %d steps", len(task.texts), f"{task.texts.tokens:,}", steps)
    who = identity(
        seed=recipe.seed,
        finetune=config.model_dump(mode="json", exclude={"log_steps", "checkpoint_minutes", "train", "test"}),
        texts=len(task.texts),
        tokens=task.texts.tokens,
        pretrained=start,
    )
    folder = recipe.folder / "finetune"
    board = Board(folder / "tensorboard") if recipe.tensorboard and group.first else None
    loop: Loop[ClassificationBatch] = Loop(
        task=task,
        optimizer=make_optimizer(task.model, config),
        budget=Budget(minutes=config.minutes, steps=steps),
        learning_rate=config.learning_rate,
        warmup_fraction=config.warmup_fraction,
        clip_norm=config.clip_norm,
        precision=choose_precision(task.device),
        log=RunLog(folder / "log.jsonl", board),
        log_steps=config.log_steps,
        state=RunState(folder, who),
        checkpoint_minutes=config.checkpoint_minutes,
        evaluate=lambda _: {text.name: report for text, report in _reports(task.classifier, dev)},
        processes=group,
    )
    loop.resume()
    return loop


def classifier_from(
    pretrained: BertForPreTraining, config: FinetuneConfig, seed: int
) -> BertForSequenceClassification:
    """The pretrained encoder and pooler under a fresh classifier."""
    shape = pretrained.config.replace(
        hidden_dropout_prob=config.dropout,
        attention_probs_dropout_prob=config.dropout,
        id2label=dict(enumerate(config.labels.values())),
        truncation=config.truncation,
    )
    model = BertForSequenceClassification(shape)
    model.initialise(torch.Generator().manual_seed(seed))
    model.encoder.load_state_dict(pretrained.encoder.state_dict())
    if pretrained.next_sentence is not None:
        model.pooler.load_state_dict(pretrained.next_sentence.pooler.state_dict())
    return model.train()


def read_all(recipe: Recipe, tokenizer: Tokenizer) -> tuple[list[LabelledTexts], list[LabelledTexts]]:
    """Train and dev part of every training source."""
    parts = [read_labelled(s, recipe.data, recipe.finetune, tokenizer) for s in recipe.finetune.train]
    if not parts:
        raise RunError("finetune.train names no source")
    return [train for train, _ in parts], [dev for _, dev in parts if len(dev)]


class ClassificationTask:
    """Batches of random texts; every text once per epoch."""

    figures: tuple[str, ...] = ("loss", "accuracy")

    def __init__(
        self,
        model: BertForSequenceClassification,
        texts: LabelledTexts,
        config: FinetuneConfig,
        seed: int,
        processes: Processes | None = None,
    ) -> None:
        self.model: nn.Module = model
        self.classifier = model
        self.texts = texts
        self.config = config
        self.seed = seed
        self.processes = processes or Processes()
        self.device = next(model.parameters()).device
        if min(config.batch, len(texts)) < self.processes.world:
            raise RunError(f"{len(texts)} texts in batches of {config.batch}: too few for all processes")
        self._epoch = (-1, np.empty(0, dtype=np.int64))

    def micro_batches(self, progress: Progress, spent: float) -> Sequence[ClassificationBatch]:
        """This process's share of the next `batch` texts of the epoch."""
        del spent
        if len(self.texts) - progress.position < self.processes.world:  # not a text for each process
            progress.epoch, progress.position = progress.epoch + 1, 0
        order = self._order(progress.epoch)
        chosen = order[progress.position : progress.position + self.config.batch]
        progress.position += len(chosen)
        own = chosen[self.processes.rank :: self.processes.world]
        return [self.texts.batch(own.tolist()).to(self.device)]

    def losses(self, batch: ClassificationBatch, counts: Sequence[float]) -> Tensor:
        """Part of the step's mean cross-entropy in nats, and of its share of right answers."""
        logits = self.model(batch.packed).float()
        loss = F.cross_entropy(logits, batch.labels, reduction="sum")
        right = (logits.argmax(1) == batch.labels).float().sum()
        return torch.stack([loss, right]) / counts[0]

    def flops(self, batch: ClassificationBatch) -> int:
        """Of the forward and backward pass."""
        return classification_flops(self.classifier.config, batch.packed)

    def _order(self, epoch: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        if self._epoch[0] != epoch:
            order = np.random.default_rng((self.seed, epoch)).permutation(len(self.texts))
            self._epoch = (epoch, order)
        return self._epoch[1]


def fingerprint(model: nn.Module) -> str:
    """Equal for equal weights."""
    digest = hashlib.blake2b(digest_size=16)
    for tensor in model.state_dict().values():
        digest.update(tensor.contiguous().view(torch.uint8).numpy())
    return digest.hexdigest()


def fit_temperature(model: BertForSequenceClassification, dev: LabelledTexts) -> float:
    """The temperature with the lowest loss on dev (Guo et al. 2017, section 4.2)."""
    if not len(dev):
        return 1.0
    logits, labels = predict_classification(model, dev.batches())
    candidates = torch.logspace(-1, 1, 401, base=5.0).tolist()  # 0.2 to 5
    losses = [F.cross_entropy(logits / temperature, labels).item() for temperature in candidates]
    temperature = round(candidates[int(np.argmin(losses))], 4)
    before, after = (classification_report(logits / t, labels) for t in (1.0, temperature))
    logger.info(
        "temperature %.3f: calibration error on dev %.4f before, %.4f after",
        temperature,
        before.expected_calibration_error,
        after.expected_calibration_error,
    )
    return temperature


def _reports(
    model: BertForSequenceClassification, texts: Sequence[LabelledTexts]
) -> list[tuple[LabelledTexts, dict[str, Any]]]:
    return [
        (part, classification_report(*predict_classification(model, part.batches())).summary())
        for part in texts
    ]


def read_test(recipe: Recipe, tokenizer: Tokenizer) -> list[LabelledTexts]:
    """The test sources, whole."""
    config = recipe.finetune.model_copy(update={"dev_fraction": 0.0})
    return [read_labelled(source, recipe.data, config, tokenizer)[0] for source in config.test]
