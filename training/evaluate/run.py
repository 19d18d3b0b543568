"""`evaluate`: figures of a run's models, each beside its baselines, as Markdown, JSON and plots."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from model.checkpoint import Checkpoint, load_checkpoint
from model.heads import BertForSequenceClassification
from training.corpus.fingerprint import checkpoint_hash
from training.corpus.reader import PreparedText
from training.errors import MissingTextError, RunError
from training.evaluate.classifier import BAG, OURS, report_on
from training.evaluate.plots import plot
from training.evaluate.tables import Report, tables, title_of, wrong_answers
from training.finetune.selection import SeedResult, best_seed
from training.loop.log import RunLog
from training.metrics.classification import check_reading, load_classifier, predict_classification
from training.metrics.pretraining import evaluate_pretraining
from training.metrics.texts import EvaluatedTexts, reported_texts
from training.pipeline import Pipeline
from training.pretrain.run import load_pretrained, open_heldout
from training.problems.base import Problem
from training.problems.choose import problem_of
from training.problems.estimates import Figure
from training.recipe import Recipe, source_name
from training.runtime.device import choose_device
from training.runtime.distributed import DistContext
from training.runtime.files import read_json, write_json
from training.stage import follow

EXAMPLES = 2000
"""Held-out examples per source."""

logger = logging.getLogger(__name__)


def evaluate(pipeline: Pipeline, weights: Path | None = None) -> str:
    """Evaluate the run's models, write `report.json`, `report.md` and plots into its folder, and return the Markdown.

    Args:
        weights: folder of other checkpoint directories to evaluate on the recipe's texts: a classifier, a pretrained
            network or both. If one of the two does not fit the recipe, the report says why.

    Raises:
        RunError: the model is missing, or of another kind or with other labels than the recipe's.
    """
    recipe = pipeline.recipe
    found = _models_in(weights) if weights else pipeline.models()
    if not found:
        raise RunError(f"--weights {weights}: the folder must hold checkpoint directories, as model/weights does")
    folder = recipe.folder / "evaluation" if weights else recipe.folder
    figures: dict[str, Any] = {}
    reasons: dict[str, str] = {}
    for name, model in found.items():
        try:
            figures_of = _pretraining if name == "pretrained" else _classification
            figures |= figures_of(pipeline, model, is_own=not weights)
        except RunError as error:
            if not weights:
                raise
            reasons[name] = str(error)
        except MissingTextError as error:
            logger.warning("%s is not evaluated: %s; run evaluate where its test texts are", name, error)
            reasons[name] = str(error)
    if weights and reasons and not any(figures.values()):
        raise RunError("; ".join(reasons.values()))
    hashes = {name: checkpoint_hash(model) for name, model in found.items() if name not in reasons}
    report = Report(**figures, weights=hashes, not_evaluated=reasons)
    text_of = tables(report)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "report.md"
    notes = [f"**{name} is not evaluated: {reason}.**\n" for name, reason in reasons.items()]
    parts = [text_of.get("classifier"), wrong_answers(report), text_of.get("pretrained"), *notes]
    text = "\n".join(filter(None, parts))
    served = found.get("classifier") if weights else recipe.exported("classifier")
    command = f"BERT_SENTIMENT={shlex.quote(str(served))} bert-serve"
    serve = f"\nTo serve it:\n\n    {command}\n" if report.classification else ""
    drawn = _plot(pipeline, {} if weights else found, folder, report)
    plots = "\n".join(f"![{each.stem}]({each.name})" for each in drawn)
    file.write_text(f"{text}\n## Plots\n\n{plots}\n{serve}", encoding="utf-8")
    # Written last, because it names the weights of all figures.
    write_json(file.with_suffix(".json"), asdict(report) | {"tables": text_of})
    logger.info("report in %s", file)
    return f"{text}{serve}"


def _models_in(folder: Path) -> dict[str, Path]:
    """The checkpoint directories in a folder: `pretrained`, `classifier`."""
    found = {}
    for model in map(follow, sorted(folder.glob("*"))):
        if config := read_json(model / "config.json"):
            is_classifier = "ForSequenceClassification" in str(config.get("architectures"))
            found["classifier" if is_classifier else "pretrained"] = model
    return found


# --- figures -------------------------------------------------------------------------------------------------------


def _pretraining(pipeline: Pipeline, network: Path, *, is_own: bool) -> dict[str, Any]:
    """The fields of a report about the pretrained network; empty without text.

    Args:
        is_own: whether the run made it. For other networks, held-out text is prepared in their vocabulary.
    """
    recipe = pipeline.recipe
    if not (recipe.corpus.sources or recipe.corpus.heldout):
        return {}
    model, checkpoint = load_pretrained(network)
    corpus = pipeline.corpus if is_own else pipeline.heldout(checkpoint.tokenizer)
    if is_own:
        corpus.check()
    else:
        corpus.ensure(DistContext())
    heldout = open_heldout(corpus.folder)
    model = model.to(choose_device(recipe.device))
    logger.info("evaluating on held-out text: %s", ", ".join(heldout))
    reports = evaluate_pretraining(model, heldout, checkpoint.tokenizer, recipe.pretrain.examples, count=EXAMPLES)
    return {"pretraining": reports}


def _classification(pipeline: Pipeline, classifier: Path, *, is_own: bool) -> dict[str, Any]:
    """The fields of a report about the classifier; see `_pretraining`."""
    recipe, loaded = pipeline.recipe, load_checkpoint(classifier)
    checkpoint = load_classifier(classifier, recipe.finetune.in_order_of(loaded.config.labels))
    labelled = pipeline.labelled if is_own else pipeline.labelled_for(checkpoint.tokenizer)
    labelled.ensure(DistContext())
    bag = pipeline.bag_of(labelled)
    store = PreparedText(labelled.folder, places=[bag.folder])
    test = reported_texts(store, recipe.finetune)
    for source in recipe.finetune.tested:
        if source_name(source) not in test:
            reason = "finetune.labels leaves out all of its texts" if recipe.finetune.test else "it has only one group"
            logger.warning("%s is not evaluated: %s", source_name(source), reason)
    of_bag = {}
    if recipe.finetune.train:
        bag.ensure(DistContext())
        of_bag = {name: torch.from_numpy(store.column("target_probs")[part.rows]) for name, part in test.items()}
    if not test:
        logger.warning("there is nothing to evaluate the classifier on: give finetune.test, or a finetune.dev_fraction")
    elif not recipe.finetune.tested:
        logger.warning(
            "the recipe has no finetune.test or finetune.test_fraction: figures are those of dev, which chose the seed "
            "and the temperature"
        )
    problem, results = problem_of(recipe.finetune.problem_type, store.labels), pipeline.results() if is_own else {}
    models = {OURS: _scores(recipe, checkpoint, test), BAG: of_bag}
    reports = {
        name: report_on(problem, {model: found[name] for model, found in models.items() if name in found}, part)
        for name, part in test.items()
    }
    return {
        "classification": reports,
        "problem_type": recipe.finetune.problem_type,
        "labels": list(problem.names),
        "seed": best_seed(list(results.values())).seed if results else None,
        "all_rows": (pipeline.final.record or {}).get("texts", 0) if is_own and pipeline.final else 0,
        "seeds": {i: _seed_figures(pipeline, problem, each, test) for i, each in results.items() if len(results) > 1},
    }


def _seed_figures(
    pipeline: Pipeline, problem: Problem, result: SeedResult, test: Mapping[str, EvaluatedTexts]
) -> dict[str, Figure]:
    scores = _scores(pipeline.recipe, load_checkpoint(pipeline.seeds[result.seed].folder / "model"), test)
    score = None if result.dev_score is None else abs(result.dev_score)
    figures = {f"{title_of(problem.chosen)} on dev": Figure(score, result.dev_error)}
    for name, each in scores.items():
        found = report_on(problem, {OURS: each}, test[name])
        figures[name] = found.figures[OURS][problem.compared]
        if found.domains:
            figures[f"{name}, mean over {found.domains.count} domains"] = found.domains.means[OURS]
    return figures


def _scores(recipe: Recipe, checkpoint: Checkpoint, test: Mapping[str, EvaluatedTexts]) -> dict[str, Tensor]:
    """(texts, outputs) scores of a classifier by the name of the test set, with its outputs in the order of the store.
    It reads texts as the service does: up to its positions."""
    model, labels = checkpoint.model, checkpoint.config.labels
    assert isinstance(model, BertForSequenceClassification)
    model.to(choose_device(recipe.device))
    scores = {}
    for name, texts in test.items():
        check_reading(checkpoint, texts.read)
        logger.info("evaluating on %s: %s texts", name, f"{len(texts):,}")
        examples = texts.examples(checkpoint.tokenizer, checkpoint.config.max_position_embeddings)
        order = [labels.index(label) for label in texts.store.labels]
        scores[name] = predict_classification(model, examples).scores[:, order]
    return scores


# --- plots ---------------------------------------------------------------------------------------------------------


def _plot(pipeline: Pipeline, models: Mapping[str, Path], folder: Path, report: Report) -> list[Path]:
    """Write a figure for each network, in place of an earlier report's.

    Args:
        models: the run's own networks, whose losses are plotted.
    """
    written = []
    for name, tests in (("pretrained", {}), ("classifier", report.classification)):
        file, own = folder / f"{name}.png", models.get(name)
        file.unlink(missing_ok=True)
        log = RunLog(own.parent / "log.jsonl") if own else ()
        entropy = PreparedText(pipeline.corpus.folder).unigram_entropy if own and name == "pretrained" else None
        if plot(file, log, entropy, tests, report.labels):
            written.append(file)
    return written
