"""`finetune`: a classifier on top of the pretrained encoder, once per seed; the best seed on dev is kept."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from model.checkpoint import Checkpoint, load_checkpoint
from model.errors import CheckpointError
from model.heads import BertForSequenceClassification
from model.tokenizer import Tokenizer
from training.corpus.inputs import reading_of
from training.corpus.prepare import prepare_labelled, record_labelled
from training.corpus.reader import PreparedText, open_parts
from training.errors import RunError
from training.evaluate.classification import Answers, check_reading, predict_classification
from training.examples.labelled import Fold, LabelledStream, LabelledTexts, epoch_size, labelled_window
from training.finetune.calibration import calibrate
from training.finetune.distill import distilled_by, fold_folders, with_earlier_distill
from training.finetune.plan import planned
from training.finetune.selection import (
    SeedResult,
    best_seed,
    dev_figures,
    load_results,
    save_results,
    seed_folder,
    seeds_of,
)
from training.finetune.task import ClassificationLoss, classifier_from, keeps_last_layer
from training.loop.budget import budget_record
from training.loop.checkpoint import FINISHED, TrainState, close_run, reopen_run, weights_hash
from training.loop.trainer import TrainConfig, Trainer
from training.problems.base import Problem
from training.problems.choose import PROBLEMS, problem_of
from training.recipe import Recipe, with_earlier, write_resolved
from training.runtime.checkpoint_dir import check_target, checkpoint_size, write_checkpoint_dir
from training.runtime.device import choose_device, maybe_compile
from training.runtime.distributed import DistContext, distributed, world_size
from training.runtime.files import read_json
from training.runtime.lock import ranks_in_turn, run_lock

WARMUP_FRACTION = 0.1
"""Share of the budget in which the learning rate rises; then it falls linearly to 0 (Devlin et al. 2018, A.3)."""

EVALUATIONS, EVALUATED_TEXTS = 4, 1000
"""On dev, evenly spaced over the run, with so many texts of each source at most; for the log only."""

FEW_STEPS = 100
"""Fewer steps hardly move a network."""

BUDGET_SHARE = 0.85
"""Share of a budget in minutes that steps get; evaluations and checkpoints take the rest."""

_MAY_CHANGE = {"train", "test", "pretrained", "seeds", "problem_type", "epochs", "minutes", "bag_weight"}
"""Settings that are not part of a run's identity: texts with their targets and first weights have their own hashes, a
larger budget continues a run, and the teacher's weight is part of the identity under its own name."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Run:
    """One training of the classifier."""

    folder: Path
    seed: int
    left_out: Fold | None = None
    """Texts that are not trained on."""


@dataclass(frozen=True, slots=True)
class _Material:
    """What all runs have in common."""

    recipe: Recipe
    start: Checkpoint
    train: PreparedText
    dev: dict[str, LabelledTexts]
    """By name of the source."""
    problem: Problem
    """Fitted to the texts to train on."""
    teacher: str | None
    """Fingerprint of the teachers."""
    teacher_weight: float
    """Weight of their probabilities beside the true label."""
    dist: DistContext
    folder: Path
    """Of the runs and of the budget."""
    runs: tuple[_Run, ...]


def finetune(recipe: Recipe) -> bool:
    """Train the classifier, or continue an interrupted run. True when finished.

    Raises:
        SourceError: labelled text that cannot be read.
        RunError: the network to start from is missing, or does not fit the recipe.
    """
    recipe = with_earlier_distill(recipe)
    start, recipe = starting_point(recipe)
    recipe = _with_earlier_stages(recipe)
    target = recipe.folder / "sentiment"
    check_target(target)
    runs = [_Run(seed_folder(recipe, seed), seed) for seed in seeds_of(recipe)]
    with _material(recipe, start, "finetune", runs, distilled_by(recipe)) as material:
        recipe, dist = material.recipe, material.dist
        earlier = {result.seed: result for result in load_results(recipe)}
        if dist.is_main and (left_out := earlier.keys() - set(seeds_of(recipe))):
            every = sorted({*earlier, *seeds_of(recipe)})
            logger.warning("finished seeds %s are left out; finetune.seeds=%s chooses of all", sorted(left_out), every)
        results = []
        for run in material.runs:
            known = dist.all_gather(_finished(run, earlier))[0]
            if known is None and dist.is_main:  # its model will be another
                save_results(recipe, [result for result in load_results(recipe) if result.seed != run.seed])
            result = _train(material, run, known)
            if result is None:
                return False
            results.append(result)
        if dist.is_main:
            _keep_best(recipe, start.tokenizer, results, target)
    return True


def train_teachers(recipe: Recipe) -> bool:
    """Train a classifier for each of `distill.folds` parts of the texts, on the labels of the other parts, or continue
    interrupted runs. True when finished.

    Raises:
        SourceError, RunError: as `finetune`.
    """
    start, recipe = starting_point(recipe)
    assert recipe.distill is not None
    folds = recipe.distill.folds
    runs = [
        _Run(folder, recipe.seed + number, Fold(number, folds)) for number, folder in enumerate(fold_folders(recipe))
    ]
    with _material(recipe, start, "teachers", runs, None) as material:
        return all(_train(material, run, material.dist.all_gather(_finished(run, {}))[0]) for run in material.runs)


@contextmanager
def _material(
    recipe: Recipe, start: Checkpoint, stage: str, runs: Sequence[_Run], teacher: str | None
) -> Iterator[_Material]:
    """Prepares the texts, plans the settings for them, and holds the lock of the stage's folder.

    Args:
        teacher: fingerprint of the teachers whose probabilities are learned.
    """
    with ranks_in_turn(recipe.folder):
        folder = prepare_labelled(recipe, start.tokenizer, keep_earlier=teacher is not None)
        train = PreparedText.open(folder / "train")
        _, tokens = epoch_size(train, recipe.finetune.max_length, with_unlabelled=teacher is not None)
        recipe = planned(
            recipe,
            train.documents,
            tokens,
            from_classifier=isinstance(start.model, BertForSequenceClassification),
            has_labels=keeps_last_layer(start.model, recipe.finetune),
            world_size=world_size(),
        )
        problem = problem_of(recipe.finetune.problem_type, recipe.finetune.label_names)
        weight = recipe.distill.weight if recipe.distill else recipe.finetune.bag_weight or 0.0
        if recipe.finetune.bag_weight:
            from training.finetune.bag_teacher import label_out_of_fold  # a machine with a GPU may lack scikit-learn

            teacher = label_out_of_fold(folder / "train", problem)
    with distributed() as dist, run_lock(recipe.folder / stage / f"rank-{dist.rank}"):
        dev, labels = open_dev(recipe, start), train.column("labels")
        assert labels is not None
        problem = problem.fitted(labels)
        weight = weight if teacher else 0.0
        place = recipe.folder / stage
        yield _with_budget(_Material(recipe, start, train, dev, problem, teacher, weight, dist, place, tuple(runs)))


def _with_earlier_stages(recipe: Recipe) -> Recipe:
    """The recipe with the pretraining that the network had, for the model card."""
    if recipe.finetune.pretrained is None:
        recipe = with_earlier(recipe, recipe.folder / "pretrain", "tokenizer", "corpus", "model", "pretrain")
    return recipe


def starting_point(recipe: Recipe) -> tuple[Checkpoint, Recipe]:
    """The checkpoint that fine-tuning starts from: `finetune.pretrained`, else what this run pretrained; and the
    recipe with its labels in the order of a classifier to start from.

    Raises:
        RunError: there is none, or it does not fit the recipe.
    """
    config = recipe.finetune
    folder = config.pretrained or recipe.folder / "pretrained"
    if not folder.is_dir():
        raise RunError(f"{folder} is missing; run pretrain first, or name a checkpoint as finetune.pretrained")
    logger.info("fine-tuning starts from %s", folder)
    try:
        start = load_checkpoint(folder)
    except CheckpointError as error:
        raise RunError(f"finetune.pretrained: {error}" if folder == config.pretrained else str(error)) from error
    if isinstance(start.model, BertForSequenceClassification):
        config = config.in_order_of(start.config.labels)
        if not keeps_last_layer(start.model, config):
            logger.info("it has other labels (%s), so its last layer is new", ", ".join(start.config.labels[:5]))
    if config.max_length > (positions := start.config.max_position_embeddings):
        raise RunError(f"finetune.max_length is {config.max_length}, but {folder} has {positions} positions")
    for source in (*config.train, *config.test, *(recipe.distill.sources if recipe.distill else ())):
        check_reading(start, reading_of(source))
    return start, recipe.model_copy(update={"finetune": config})


def open_dev(recipe: Recipe, start: Checkpoint) -> dict[str, LabelledTexts]:
    """The dev texts by the name of their source, read as the service reads them: up to the network's positions."""
    outputs, positions = len(recipe.finetune.label_names), start.config.max_position_embeddings
    found = {}
    for name, part in open_parts(recipe.folder / "labelled" / "dev").items():
        window = part.window()
        domains = window.column("domains")
        assert domains is not None
        texts = labelled_window(window, start.tokenizer, outputs, positions)
        found[name] = replace(texts, domains=[domain.decode() for domain in domains.tolist()])
    return found


def _finished(run: _Run, earlier: Mapping[int, SeedResult]) -> SeedResult | None:
    """The result of a run that has finished, and whose model is there.

    Args:
        earlier: results by seed, for runs of version 0.2.
    """
    if not (run.folder / "model").is_dir():
        reopen_run(run.folder)
        return None
    if record := read_json(run.folder / FINISHED):
        return SeedResult(**record["result"])
    return earlier.get(run.seed)


def _train(material: _Material, run: _Run, earlier: SeedResult | None) -> SeedResult | None:
    """One run, from where it stopped; its model goes into `model/` in its folder. None if it was stopped.

    Args:
        earlier: its result if it has finished before. It is not calibrated again: another processor's arithmetic could
            give another temperature, and with that the classifiers would be other teachers.
    """
    recipe, start, dist = material.recipe, material.start, material.dist
    loss, stream = _loss_and_stream(material, run)
    model, trainer = loss.model, _trainer(material, loss, stream, run)
    was_finished = trainer.is_finished
    if not was_finished and trainer.config.steps < FEW_STEPS:
        logger.warning(
            f"only {trainer.config.steps} steps of {recipe.finetune.batch_tokens} tokens hardly move a network: stop, "
            "and repeat it with more time (--minutes of classify, finetune.minutes or epochs of a recipe)"
        )
    if dist.is_main and not was_finished:
        write_resolved(recipe, run.folder)
    if not trainer.run():
        return None
    result = earlier
    if result is None or not was_finished:
        material.problem.fold(model)
        answers = {name: predict_classification(model, texts) for name, texts in material.dev.items()}
        _warn_of_one_answer(answers)
        temperature = calibrate(model, answers)
        if dist.is_main:
            trainer.log.write("calibration", trainer.state, {"temperature": temperature})
            write_checkpoint_dir(run.folder / "model", model.cpu(), start.tokenizer, torch.float32)
        result = SeedResult(run.seed, **dev_figures(answers)) if answers else SeedResult(run.seed, None, None)
    if dist.is_main:
        close_run(run.folder, result=asdict(result))
    return result


def _warn_of_one_answer(answers: Mapping[str, Answers]) -> None:
    said = {word for each in answers.values() for word in each.problem.words(each.scores)}
    true = {word for each in answers.values() for word in each.problem.words(each.targets)}
    if len(said) == 1 < len(true):
        logger.warning(
            f"it answers {said.pop()} to every dev text: repeat with more time (--minutes of classify, "
            "finetune.minutes or epochs of a recipe)"
        )


def _loss_and_stream(material: _Material, run: _Run) -> tuple[ClassificationLoss, LabelledStream]:
    """The loss of a new model, and its examples."""
    recipe, config = material.recipe, material.recipe.finetune
    stream = LabelledStream(
        material.train,
        material.start.tokenizer,
        len(config.label_names),
        max_length=config.max_length,
        teacher_weight=material.teacher_weight if material.teacher else None,
        seed=run.seed,
        micro_batch_tokens=recipe.micro_tokens(config),
        left_out=run.left_out,
    )
    model = classifier_from(material.start.model, config, run.seed)
    if keeps_last_layer(material.start.model, config):
        material.problem.unfold(model)
    model = model.to(choose_device(recipe.device, material.dist.local_rank))
    model.encoder.half_residual = recipe.half_residual
    loss = ClassificationLoss(material.problem, model, stream.texts_per_batch)
    maybe_compile(loss, cuda_graphs=recipe.cuda_graphs)
    return loss, stream


def _with_budget(material: _Material) -> _Material:
    """With the epochs that fit into the budget in minutes, if there is one. What will be done, and how long it takes,
    is logged. The speed is measured once for a budget, so that a run goes on with the epochs that it began with."""
    recipe, config, dist = material.recipe, material.recipe.finetune, material.dist
    assert config.epochs
    assert config.batch_tokens
    loss, stream = _loss_and_stream(material, material.runs[0])
    own = config.batch_tokens // stream.micro_batch_tokens // dist.world_size
    known = budget_record(material.folder / "budget.json", config.minutes, loss, stream, dist, max(1, own))
    speed, tokens = known["tokens_per_second"], stream.tokens
    runs, epochs = len(material.runs), config.epochs
    if config.minutes:
        epochs = min(epochs, BUDGET_SHARE * 60 * config.minutes * speed / tokens / runs)
    minutes = runs * epochs * tokens / speed / 60 / BUDGET_SHARE
    steps = max(1, round(epochs * tokens / config.batch_tokens))
    logger.info(
        f"{stream.documents:,} texts with {tokens:,} tokens, read {epochs:.3g} times"
        f"{f' by each of {runs} classifiers' * (runs > 1)}: {steps:,} steps of {config.batch_tokens:,} tokens, about "
        f"{minutes:.1f} minutes at {speed:,} tokens a second"
    )
    if epochs < config.epochs:
        logger.warning(
            f"{config.epochs:.3g} passes would be better, and take {minutes * config.epochs / epochs:.1f} minutes"
        )
    changed = recipe.model_copy(update={"finetune": config.model_copy(update={"epochs": epochs})})
    return replace(material, recipe=changed)


def _trainer(material: _Material, loss: ClassificationLoss, stream: LabelledStream, run: _Run) -> Trainer:
    """The trainer, at the step where an earlier run stopped."""
    recipe, config, model = material.recipe, material.recipe.finetune, loss.model
    assert config.epochs
    assert config.batch_tokens
    assert config.learning_rate

    def evaluate(_state: TrainState) -> dict[str, Any]:
        answers = {
            name: replace(predict_classification(model, dev, EVALUATED_TEXTS), problem=material.problem)
            for name, dev in material.dev.items()
        }
        return {name: each.summary() for name, each in answers.items()} | dev_figures(answers)

    settings = TrainConfig(
        budget_tokens=max(config.batch_tokens, round(config.epochs * stream.tokens)),
        batch_tokens=config.batch_tokens,
        micro_batch_tokens=stream.micro_batch_tokens,
        learning_rate=config.learning_rate,
        embedding_factor=config.embedding_factor or 1.0,
        warmup_fraction=WARMUP_FRACTION,
        seed=run.seed,
        checkpoint_minutes=recipe.checkpoint_minutes,
        tensorboard=recipe.tensorboard,
        evaluations=EVALUATIONS,
        keep_before_decay=False,  # epochs of a finished run cannot be raised
    )
    return Trainer(
        loss,
        stream,
        settings,
        run.folder,
        identity={
            "seed": run.seed,
            "micro_batch_tokens": stream.micro_batch_tokens,
            "finetune": config.model_dump(mode="json", exclude=_MAY_CHANGE),
            "teacher": material.teacher,
            "teacher_weight": material.teacher_weight,
            "texts": material.train.checksum,
            "initial_weights": weights_hash(material.start.model),
            **({"left_out": asdict(run.left_out)} if run.left_out else {}),  # runs of version 0.2 have none
        },
        evaluate=evaluate if material.dev else None,
        dist=material.dist,
    )


def _keep_best(recipe: Recipe, tokenizer: Tokenizer, results: list[SeedResult], target: Path) -> None:
    best = best_seed(results)
    save_results(recipe, results)
    record_labelled(recipe)
    model = load_checkpoint(seed_folder(recipe, best.seed) / "model").model
    write_checkpoint_dir(target, model, tokenizer, torch.float32)
    if best.dev_score is not None:
        figure = PROBLEMS[recipe.finetune.problem_type].chosen.replace("_", " ")
        error = best.dev_error or 0.0
        logger.info("kept seed %d: %s on dev %.4f ± %.4f", best.seed, figure, abs(best.dev_score), error)
    logger.info("classifier of %s in %s", checkpoint_size(target, model), target)
