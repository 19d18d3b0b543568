"""Fine-tuning: a classifier on top of the pretrained encoder, once per seed; the best on dev is kept."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from model.checkpoint import Checkpoint, load_checkpoint
from model.config import BertConfig
from model.heads import BertForPreTraining, BertForSequenceClassification
from model.tokenizer import Tokenizer
from training.corpus.shards import read_json, write_json
from training.errors import RunError
from training.evaluate.metrics import classification_report, predict_classification
from training.examples.batches import ClassificationBatch
from training.export.checkpoint_dir import check_target, write_directory
from training.finetune.dataset import LabelledTexts, joined, read_labelled, voices
from training.finetune.seeds import (
    SeedResult,
    best_of,
    chosen_folder,
    load_results,
    save_results,
    seed_folder,
    seeds_of,
)
from training.finetune.selection import Best, Score
from training.finetune.task import ClassificationTask, Start, classifier_from
from training.loop.checkpoint import Progress, RunState, alone, began_with, differences, fingerprint, identity
from training.loop.log import RunLog
from training.loop.optimizer import make_optimizer
from training.loop.tensorboard import Board
from training.loop.trainer import Budget, Loop
from training.pretrain.adapt import adaptation
from training.pretrain.run import fresh_model
from training.recipe import FinetuneConfig, Recipe, load_recipe
from training.runtime.device import choose_device, choose_precision, machine, matmul_peak
from training.runtime.distributed import Processes, processes

logger = logging.getLogger(__name__)

_OF_THE_CLASSIFIER = ("finetune.", "adapt.", "adapt=")

CALIBRATION_ANSWERS = 5
"""So many of dev's must be right, and so many wrong: with none wrong, the lowest temperature is always best."""
CALIBRATION_TEXTS = 1000
"""A source with more of them in dev has no more say: what fits the largest alone need not fit the others."""


def finetune(recipe: Recipe) -> bool:
    """Train the classifier from the pretrained model; continues an interrupted run. True when finished."""
    source = _source(recipe)
    check_target(recipe.folder / "sentiment")
    with processes() as group, alone(recipe.folder / "finetune", group):
        train, dev = read_all(recipe, source)
        for part in dev:
            logger.info("%s: %d texts in dev", part.name, len(part))
        material = Material(recipe, source.tokenizer, joined(train, "train"), dev, group)
        assert isinstance(source.model, Start)
        results = []
        for seed in seeds_of(recipe):
            result = _train(material, source.model, seed, seed_folder(recipe, seed))
            if result is None:
                return False
            results.append(result)
        if recipe.finetune.from_scratch_baseline:
            blank = fresh_model(source.config, recipe)
            if _train(material, blank, seeds_of(recipe)[0], from_scratch_folder(recipe)) is None:
                return False
        if group.first:
            _keep(recipe, source.tokenizer, results)
        group.wait()
    return True


def _remember_overrides(recipe: Recipe) -> None:
    """What the command line says of the classifier, for a command that says less: the card tells it, too."""
    said = [override for override in recipe.overrides if override.startswith(_OF_THE_CLASSIFIER)]
    write_json(recipe.folder / "finetune" / "overrides.json", said)


def with_remembered(recipe: Recipe) -> Recipe:
    """The recipe with what was said when its classifier was trained, where this command says nothing else."""
    said = read_json(recipe.folder / "finetune" / "overrides.json") or []
    known = {override.partition("=")[0] for override in recipe.overrides}
    more = [override for override in said if override.partition("=")[0] not in known]
    if not (more and recipe.loaded):
        return recipe
    whole = load_recipe(recipe.loaded, [*recipe.overrides, *more])
    keys = ("finetune", "adapt", "overrides")
    return recipe.model_copy(update={key: getattr(whole, key) for key in keys})


@dataclass(frozen=True, slots=True)
class Material:
    """What the runs of all seeds have in common."""

    recipe: Recipe
    tokenizer: Tokenizer
    train: LabelledTexts
    dev: list[LabelledTexts]
    group: Processes


def from_scratch_folder(recipe: Recipe) -> Path:
    """The run of the baseline that was never pretrained."""
    return recipe.folder / "finetune" / "from-scratch"


def from_scratch_model(recipe: Recipe) -> Path | None:
    """That baseline's checkpoint; None where there is none, or one of other settings, texts or shape than the
    classifier that is kept."""
    kept, scratch = chosen_folder(recipe), from_scratch_folder(recipe)
    if not (scratch / "model").is_dir():
        return None
    if alike(kept, scratch, but=("seed", "pretrained")) and _shape(kept) == _shape(scratch):
        return scratch / "model"
    logger.warning(
        "%s was made otherwise than the classifier, so its figures are left out; delete it, and run finetune "
        "with finetune.from_scratch_baseline=true again",
        scratch,
    )
    return None


def alike(one: Path, other: Path, but: Collection[str] = ("seed",)) -> bool:
    """Whether two finished runs had everything in common that a run must have to be resumed, but these keys."""
    mine, theirs = (_what_was_learned(folder) for folder in (one, other))
    return bool(mine and theirs) and differences(mine, theirs).keys() <= set(but)


def _what_was_learned(folder: Path) -> dict[str, Any]:
    """A finished run's identity, from its last checkpoint; empty where it cannot be known any more."""
    return began_with(folder) if (folder / "model").is_dir() else {}


def _shape(folder: Path) -> BertConfig:
    return load_checkpoint(folder / "model").config


def _source(recipe: Recipe) -> Checkpoint:
    """The checkpoint to start from.

    Raises:
        RunError: there is none, or none of a kind that can be fine-tuned with this recipe.
    """
    config = recipe.finetune
    if recipe.adapt:
        folder, command = adaptation(recipe).folder / "pretrained", "adapt"
    else:
        folder, command = config.pretrained or recipe.folder / "pretrained", "pretrain"
    if not folder.is_dir():
        raise RunError(f"{folder} is missing; run {command} first")
    source = load_checkpoint(folder)
    labels = config.label_names
    if isinstance(source.model, BertForSequenceClassification):
        if (known := source.config.labels) != labels:
            raise RunError(f"{folder} is a classifier of {known}, but finetune.labels are {labels}")
    elif not isinstance(source.model, BertForPreTraining):
        raise RunError(f"{source.path} is no model to fine-tune, but a {type(source.model).__name__}")
    if config.max_length > (positions := source.config.max_position_embeddings):
        raise RunError(f"finetune.max_length is {config.max_length}, but {folder} has {positions} positions")
    if len(config.seeds) > 1 and not config.dev_fraction:
        raise RunError("finetune.seeds: to choose among several, finetune.dev_fraction must be above 0")
    return source


def _train(material: Material, start: Start, seed: int, folder: Path) -> SeedResult | None:
    """One run, from where it stopped; its best model goes into `model` in its folder. None if stopped."""
    recipe, group = material.recipe, material.group
    device = choose_device(recipe.device, group.local_rank)
    torch.manual_seed(seed)
    model = classifier_from(start, recipe.finetune, seed).to(device)
    texts, tokenizer = material.train, material.tokenizer
    task = ClassificationTask(model, texts, tokenizer, recipe.finetune, seed, group)
    best = Best(folder / "best.pt", recipe.finetune.patience)
    loop = _loop(material, task, best, fingerprint(start), folder)
    if loop.spent < 1 and not best.enough:
        loop.peak_flops = matmul_peak(device, loop.precision)
        if group.first:
            loop.log.write("machine", loop.progress, {"machine": machine(device)})
    if not loop.run():
        return None
    if group.first:
        best.restore(model)
        calibrate(model, material.dev)
        write_directory(folder / "model", model.cpu(), material.tokenizer, torch.float32)
    group.wait()
    if best.step < 0:
        return SeedResult(seed, None, None, None)
    return SeedResult(seed, best.step, best.score.accuracy, -best.score.gain)


def _keep(recipe: Recipe, tokenizer: Tokenizer, results: Sequence[SeedResult]) -> None:
    """Make the best seed's model the run's classifier, of these and of those that were trained alike before."""
    results = _with_earlier(recipe, results)
    best = best_of(results)
    save_results(recipe, results)
    model = load_checkpoint(seed_folder(recipe, best.seed) / "model").model
    write_directory(recipe.folder / "sentiment", model, tokenizer, torch.float32)
    _remember_overrides(recipe)
    if best.step is not None:
        logger.info("kept: seed %d, step %d, %.4f on dev", best.seed, best.step, best.dev_accuracy)


def _with_earlier(recipe: Recipe, results: Sequence[SeedResult]) -> list[SeedResult]:
    """Other seeds' results of the same settings, texts and start as well: a command that names fewer forgets
    none. They stay in their order, which decides between equals."""
    known, trained = seed_folder(recipe, results[0].seed), {result.seed: result for result in results}
    earlier = {
        result.seed: result
        for result in load_results(recipe)
        if result.seed in trained
        or (result.step is not None and alike(known, seed_folder(recipe, result.seed)))  # dev has judged it
    }
    return list((earlier | trained).values())


def _loop(
    material: Material, task: ClassificationTask, best: Best, start: str, folder: Path
) -> Loop[ClassificationBatch]:
    """The loop, set to where an earlier run stopped."""
    recipe, group, config = material.recipe, material.group, material.recipe.finetune
    per_epoch = task.steps_per_epoch
    steps = max(1, round(config.epochs * per_epoch))
    logger.info("%d texts, %s tokens per epoch, %d steps", len(task.texts), f"{task.texts.tokens:,}", steps)
    board = Board(folder / "tensorboard") if recipe.tensorboard and group.first else None
    looks = -(-per_epoch // config.evaluate_steps)  # in an epoch, the last one at its end
    loop: Loop[ClassificationBatch] = Loop(
        task=task,
        optimizer=make_optimizer(task.model, config),
        budget=Budget(minutes=config.minutes, steps=steps),
        learning_rate=config.learning_rate,
        warmup_fraction=config.warmup_fraction,
        average_fraction=config.average_fraction,
        clip_norm=config.clip_norm,
        precision=choose_precision(task.device),
        log=RunLog(folder / "log.jsonl", board),
        log_steps=config.log_steps,
        state=RunState(folder, _identity(config, task, start)),
        checkpoint_minutes=config.checkpoint_minutes,
        evaluate=_look_at(material.dev, task.classifier, best, config) if material.dev else None,
        evaluate_steps=Fraction(per_epoch, looks),
        enough=lambda: best.enough,
        processes=group,
    )
    loop.resume()
    if not loop.progress.step:
        best.forget()
    best.recall(loop.log)
    return loop


_NOT_WHAT_IS_LEARNED = {
    *("train", "test", "pretrained", "seeds", "checkpoint_minutes", "log_steps", "micro_batch"),
    *("baseline_texts", "from_scratch_baseline"),
}


def _identity(config: FinetuneConfig, task: ClassificationTask, start: str) -> dict[str, Any]:
    """What a resumed run must have in common with the one it continues."""
    return identity(
        seed=task.seed,
        finetune=config.model_dump(mode="json", exclude=_NOT_WHAT_IS_LEARNED),
        texts=len(task.texts),
        tokens=task.texts.tokens,
        targets=hashlib.blake2b(np.stack(task.texts.targets).tobytes(), digest_size=16).hexdigest(),
        pretrained=start,
    )


def _look_at(
    dev: Sequence[LabelledTexts], model: BertForSequenceClassification, best: Best, config: FinetuneConfig
) -> Any:
    """The loop's `evaluate`: figures by source of some dev texts, of which the best weights are kept."""
    parts = [part.sample(config.evaluate_texts) for part in dev]
    says = voices(dev)

    def evaluate(progress: Progress) -> dict[str, Any]:
        answers = {part.name: predict_classification(model, part.batches()) for part in parts}
        figures = {name: classification_report(*answer).summary() for name, answer in answers.items()}
        accuracy, loss = (
            float(np.average([report[key] for report in figures.values()], weights=says))
            for key in ("accuracy", "loss")
        )
        best.offer(progress.step, Score(accuracy, -loss), model)
        return {**figures, "dev_accuracy": accuracy, "dev_loss": loss, "best_step": best.step}

    return evaluate


def read_all(recipe: Recipe, start: Checkpoint) -> tuple[list[LabelledTexts], list[LabelledTexts]]:
    """Train parts, as often as an epoch has them, and dev parts."""
    parts = read_labelled(recipe, start.tokenizer, start.config.max_position_embeddings)
    if not parts:
        raise RunError("finetune.train names no source")
    train = [train for train, _ in parts for _ in range(recipe.finetune.repeat.get(train.name, 1))]
    return train, [dev for _, dev in parts if len(dev)]


def calibrate(model: BertForSequenceClassification, dev: Sequence[LabelledTexts]) -> None:
    """Divide the logits by the temperature with the lowest loss on dev (Guo et al. 2017, section 4.2), in which
    no source weighs more than `CALIBRATION_TEXTS`.

    It goes into the last layer's weights: whatever loads them has calibrated scores. With too few wrong answers
    on dev, or too few right ones, nothing is changed.
    """
    if not dev:
        return
    answers = [predict_classification(model, part.batches()) for part in dev]
    right = sum(int((logits.argmax(1) == labels).sum()) for logits, labels in answers)
    texts = sum(map(len, dev))
    if min(right, texts - right) < CALIBRATION_ANSWERS:
        logger.warning("not calibrated: %d of %d answers on dev are right, too few or too many", right, texts)
        return
    candidates = torch.logspace(-1, 1, 401, base=5.0).tolist()  # 0.2 to 5
    says = [min(len(part), CALIBRATION_TEXTS) for part in dev]
    losses = [
        np.average([F.cross_entropy(z / temperature, labels).item() for z, labels in answers], weights=says)
        for temperature in candidates
    ]
    temperature = candidates[int(np.argmin(losses))]
    if temperature in (candidates[0], candidates[-1]):
        logger.warning("temperature %.1f, as far as it may go: dev hardly tells the labels apart", temperature)
    with torch.no_grad():
        model.classifier.weight.div_(temperature)
        model.classifier.bias.div_(temperature)
    for part, (logits, labels) in zip(dev, answers, strict=True):
        before, after = (classification_report(z, labels) for z in (logits, logits / temperature))
        logger.info(
            "temperature %.3f: calibration error on %s's dev %.4f before, %.4f after",
            temperature,
            part.name,
            before.expected_calibration_error,
            after.expected_calibration_error,
        )
