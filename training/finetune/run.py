"""`finetune`: a classifier on top of the pretrained encoder."""

from __future__ import annotations

import logging
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from model.checkpoint import Checkpoint, load_checkpoint
from model.heads import BertForSequenceClassification
from training.corpus.inputs import reading_of
from training.corpus.parts import ALL_ROWS, Part
from training.corpus.reader import PreparedText
from training.examples.labelled import Fold, LabelledStream, LabelledTexts, is_unlabelled, pass_size
from training.finetune.calibration import calibrate, divide_logits
from training.finetune.plan import PLANNED, planned, with_whole_micro_batches
from training.finetune.selection import SeedResult, dev_figures
from training.finetune.task import ClassificationLoss, classifier_from, keeps_last_layer
from training.loop.advice import FINETUNING_REMEDY, Advisor
from training.loop.checkpoint import TrainState
from training.loop.trainer import TrainConfig, Trainer
from training.metrics.classification import check_reading, predict_classification
from training.metrics.texts import evaluated_texts
from training.problems.base import Problem
from training.problems.choose import problem_of
from training.recipe import Recipe, read_resolved, write_resolved
from training.runtime.checkpoint_dir import write_checkpoint_dir
from training.runtime.device import choose_device, maybe_compile
from training.runtime.distributed import DistContext
from training.runtime.files import DONE, read_json

WARMUP_FRACTION = 0.1
"""Share of the budget in which the learning rate rises; then it falls linearly to 0 (Devlin et al. 2018, A.3)."""

EVALUATIONS, EVALUATED_TEXTS = 4, 1000
"""Number of evaluations on dev, evenly spaced over the run, and maximum texts of each source; for the log only."""

BUDGET_SHARE = 0.85
"""Share of a budget in minutes that steps get. Evaluations take the rest: a token of dev takes about half the time of a
token of a step, so an evaluation after each `3 * dev_tokens` takes a sixth of the steps' time."""

logger = logging.getLogger(__name__)


def finetune(
    recipe: Recipe,
    start: Checkpoint,
    labelled: Path,
    soft_labels: Path | None,
    folder: Path,
    left_out: Fold | None,
    dist: DistContext,
    seed: int,
    first: Path | None = None,
) -> dict[str, Any] | None:
    """Train a classifier, or continue an interrupted run. The classifier goes into `model/`.

    Args:
        start: network or classifier to start from.
        labelled: folder of the labelled text.
        soft_labels: folder with the probabilities of teachers or of a bag of words.
        folder: folder of the log, the checkpoints and the classifier.
        left_out: texts that are not trained on.
        first: folder of a training whose plan, calibration and configuration this one takes, to train on all rows.

    Returns:
        The figures on dev, the temperature, the number of texts and the passes, to record; None if a signal stopped
        the run.

    Raises:
        RunError: the network to start from does not fit the recipe.
    """
    check_start(recipe, start)
    store = PreparedText(labelled, places=[*filter(None, (soft_labels, first and labelled / ALL_ROWS))])
    dist.check_equal([store.tokenizer_hash, store.checksum])
    recipe = _plan(recipe, start, store, first or folder, dist, with_unlabelled=soft_labels is not None)
    dev, config = open_dev(start, store), recipe.finetune
    stream = LabelledStream(
        store,
        start.tokenizer,
        max_length=config.max_length,
        teacher_weight=_soft_label_weight(recipe, soft_labels),
        seed=seed,
        micro_batch_tokens=recipe.micro_tokens(config),
        left_out=left_out,
    )
    logger.info(f"{stream.documents:,} texts with {stream.tokens:,} tokens")
    loss = _loss(recipe, start, _fitted_problem(recipe, store), stream, dist)
    model, trainer = loss.model, _trainer(recipe, loss, stream, dev, folder, dist)
    if dist.is_main:
        write_resolved(recipe, folder)
    if not trainer.run():
        return None
    loss.problem.fold(model)
    answers = {name: predict_classification(model, texts) for name, texts in dev.items()}
    temperature = calibrate(model, answers)
    if dist.is_main:
        if first:
            model.config = load_checkpoint(first / "model").config
            temperature = (read_json(first / DONE) or {})["temperature"]
            divide_logits(model, temperature)
        trainer.log.write("calibration", trainer.state, {"temperature": temperature})
        write_checkpoint_dir(folder / "model", model.cpu(), start.tokenizer)
    result = SeedResult(seed, **dev_figures(answers)) if answers else SeedResult(seed, None, None, None)
    texts, passes = pass_size(store, config.max_length)[0], (trainer.state.budget_tokens or 0) / stream.tokens
    return {"result": asdict(result), "temperature": temperature, "texts": texts, "passes": passes}


def check_start(recipe: Recipe, start: Checkpoint) -> None:
    """Raise RunError if a network does not fit the recipe that fine-tunes it."""
    logger.info("fine-tuning starts from %s", start.path)
    unlabelled = recipe.soft_labels.sources if recipe.soft_labels else ()
    for source in (*recipe.finetune.train, *recipe.finetune.test, *unlabelled):
        check_reading(start, reading_of(source), recipe.finetune.max_length)


def _plan(
    recipe: Recipe, start: Checkpoint, store: PreparedText, folder: Path, dist: DistContext, *, with_unlabelled: bool
) -> Recipe:
    """The recipe with all settings of `[finetune]`: those with which the run in a folder began, or else those for the
    texts."""
    texts, _ = pass_size(store, recipe.finetune.max_length)
    _, tokens = pass_size(store, recipe.finetune.max_length, with_unlabelled=with_unlabelled)
    recipe = planned(
        recipe,
        texts,
        tokens,
        from_classifier=isinstance(start.model, BertForSequenceClassification),
        has_labels=keeps_last_layer(start.model, recipe.finetune),
        world_size=dist.world_size,
    )
    return with_whole_micro_batches(_kept_plan(recipe, folder, dist), dist.world_size)


def _fitted_problem(recipe: Recipe, store: PreparedText) -> Problem:
    labels = store.column("labels")[store.column("parts") == Part.TRAIN]
    labels = labels[~is_unlabelled(labels)]
    return problem_of(recipe.finetune.problem_type, recipe.finetune.label_names).fitted(labels)


def _soft_label_weight(recipe: Recipe, soft_labels: Path | None) -> float | None:
    """Weight of the probabilities of teachers or of a bag of words; None without any."""
    if soft_labels is None:
        return None
    return recipe.soft_label_weight or recipe.finetune.bag_weight or None


def _kept_plan(recipe: Recipe, folder: Path, dist: DistContext) -> Recipe:
    """The recipe with the plan with which the run began, because a plan depends on the number of processes."""
    began = dist.all_gather(read_resolved(folder))[0]
    plan = began.finetune.model_dump(include=PLANNED) if began else {}
    return recipe.model_copy(update={"finetune": recipe.finetune.model_copy(update=plan)})


def open_dev(start: Checkpoint, text: PreparedText) -> dict[str, LabelledTexts]:
    """The dev texts by the name of their source, read as the service reads them: up to the network's positions."""
    tokenizer, positions = start.tokenizer, start.config.max_position_embeddings
    return {name: texts.examples(tokenizer, positions) for name, texts in evaluated_texts(text, Part.DEV).items()}


def _loss(
    recipe: Recipe, start: Checkpoint, problem: Problem, stream: LabelledStream, dist: DistContext
) -> ClassificationLoss:
    """The loss of a new model."""
    config = recipe.finetune
    model = classifier_from(start.model, config, stream.seed)
    if keeps_last_layer(start.model, config):
        problem.unfold(model)
    model = model.to(choose_device(recipe.device, dist.local_rank))
    model.encoder.half_residual = recipe.half_residual
    loss = ClassificationLoss(problem, model, stream.texts_per_batch)
    maybe_compile(loss, cuda_graphs=recipe.cuda_graphs)
    return loss


def _trainer(
    recipe: Recipe,
    loss: ClassificationLoss,
    stream: LabelledStream,
    dev: dict[str, LabelledTexts],
    folder: Path,
    dist: DistContext,
) -> Trainer:
    """The trainer, at the step where an earlier run stopped."""
    config = recipe.finetune
    assert config.passes
    assert config.batch_tokens
    assert config.learning_rate

    def evaluate(_state: TrainState) -> dict[str, Any]:
        answers = {
            name: replace(predict_classification(loss.model, texts, EVALUATED_TEXTS), problem=loss.problem)
            for name, texts in dev.items()
        }
        return {name: each.summary() for name, each in answers.items()} | dev_figures(answers)

    mean, test_texts = stream.tokens / stream.documents, (stream.text.column("parts") == Part.TEST).sum()
    dev_tokens = round(mean * sum(min(len(texts), EVALUATED_TEXTS) for texts in dev.values()))
    settings = TrainConfig(
        budget_tokens=round(config.passes * stream.tokens),
        batch_tokens=config.batch_tokens,
        micro_batch_tokens=stream.micro_batch_tokens,
        learning_rate=config.learning_rate,
        embedding_factor=config.embedding_factor or 1.0,
        warmup_fraction=WARMUP_FRACTION,
        seed=stream.seed,
        checkpoint_minutes=recipe.checkpoint_minutes,
        max_evaluations=EVALUATIONS,
        tokens_per_evaluation=max(1, 3 * dev_tokens) if config.minutes else 1,
        minutes=config.minutes,
        step_share=BUDGET_SHARE,
        tokens_after=2 * dev_tokens + round(mean * test_texts),
    )
    return Trainer(loss, stream, settings, folder, dist, evaluate if dev else None, Advisor(FINETUNING_REMEDY))
