"""`evaluate`: all figures of a run's models, each beside its baselines, as Markdown, JSON and plots."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor

from model.checkpoint import Checkpoint, load_checkpoint
from model.tokenizer import Tokenizer
from training.corpus.inputs import reading_of
from training.corpus.prepare import (
    check_corpus_settings,
    check_labelled_settings,
    prepare,
    trained_on_files_of,
)
from training.corpus.reader import PreparedText
from training.errors import MissingTextError, RunError
from training.evaluate.classification import Answers, classify, load_classifier
from training.evaluate.pretraining import evaluate_pretraining
from training.finetune.selection import SeedResult, chosen_folder, load_results, seed_folder
from training.loop.checkpoint import weights_hash
from training.loop.log import RunLog
from training.pretrain.run import load_pretrained, open_heldout
from training.problems.base import Problem
from training.problems.choose import problem_of
from training.problems.estimates import Figure
from training.recipe import SINGLE_LABEL, Recipe, source_name
from training.report.baselines import DEV, PAIR, Labelled, evaluate_bag, read_test
from training.report.classifier import OURS, report_on
from training.report.plots import plot_confusion, plot_losses, plot_reliability
from training.report.tables import Report, tables, title_of, wrong_answers
from training.runtime.device import choose_device
from training.runtime.files import write_json

EXAMPLES = 2000
"""Held-out examples per source."""

SHIPPED = Path(__file__).parents[2] / "model" / "weights" / "sentiment"
"""The shipped classifier, beside `model` in a checkout and in a wheel."""

logger = logging.getLogger(__name__)


def evaluate(recipe: Recipe, weights: Path | None = None) -> str:
    """Evaluate the run's models, write `report.json`, `report.md` and plots into its folder, and return the Markdown.

    Args:
        weights: folder with other checkpoints to evaluate on the recipe's texts: `pretrained/`, `sentiment/`. If one
            of the two does not fit the recipe, the report says why.

    Raises:
        RunError: the model is missing, or of another kind or with other labels than the recipe's, or the run's
            classifier may have been trained on the texts.
        CorpusError: the held-out text was prepared with another vocabulary.
    """
    models = weights or recipe.folder
    found = _models_in(models)
    if not found:
        raise _no_models(recipe, weights)
    folder = recipe.folder if models.resolve() == recipe.folder.resolve() else recipe.folder / "evaluation"
    figures: dict[str, Any] = {}
    reasons: dict[str, str] = {}
    for name in found:
        try:
            figures_of = _pretraining if name == "pretrained" else _classification
            figures |= figures_of(recipe, models / name, folder)
        except RunError as error:
            if not weights:
                raise
            reasons[name] = str(error)
        except MissingTextError as error:
            logger.warning("%s is not evaluated: %s; run evaluate where its test texts are", name, error)
            reasons[name] = str(error)
    if weights and reasons and not any(figures.values()):
        raise RunError("; ".join(reasons.values()))
    hashes = {name: weights_hash(load_checkpoint(models / name).model) for name in found if name not in reasons}
    report = Report(**figures, weights=hashes, not_evaluated=reasons)
    text_of = tables(report)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "report.md"
    notes = [f"**{name} is not evaluated: {reason}.**\n" for name, reason in reasons.items()]
    classifier, network = (text_of.get(name, "") for name in ("sentiment", "pretrained"))
    text = "\n".join(filter(None, [classifier, wrong_answers(report), network, *notes]))
    serve = _serve_line(recipe, models) if report.classification else ""
    plots = "\n".join(f"![{file.stem}]({file.name})" for file in _plot(recipe, folder, report))
    file.write_text(f"{text}\n## Plots\n\n{plots}\n{serve}", encoding="utf-8")
    # Last, because it names the weights of all of it.
    write_json(file.with_suffix(".json"), asdict(report) | {"tables": text_of})
    logger.info("report in %s", file)
    return f"{text}{serve}"


def _serve_line(recipe: Recipe, models: Path) -> str:
    """The command that serves the classifier: as exported, or as it is if it is not the run's own."""
    is_own = models.resolve() == recipe.folder.resolve()
    folder = recipe.exported("sentiment") if is_own else models / "sentiment"
    return f"\nTo serve it{' after `export`' * is_own}:\n\n    BERT_SENTIMENT={shlex.quote(str(folder))} bert-serve\n"


def _models_in(folder: Path) -> list[str]:
    return [name for name in ("pretrained", "sentiment") if (folder / name).is_dir()]


def _no_models(recipe: Recipe, weights: Path | None) -> RunError:
    if weights is None:
        return RunError(f"{recipe.folder} has no trained model; run pretrain or finetune first")
    holders = [place for place in (weights.parent, Path("model/weights")) if _models_in(place)]
    guess = f"; did you mean {holders[0]}?" if holders else ""
    return RunError(f"--weights {weights}: the folder must hold pretrained/ or sentiment/{guess}")


# --- figures -------------------------------------------------------------------------------------------------------


def _pretraining(recipe: Recipe, network: Path, folder: Path) -> dict[str, Any]:
    """The field of a report that is about the pretrained network; none without text.

    Args:
        folder: of the report.
    """
    if not (recipe.corpus.sources or recipe.corpus.heldout):
        return {}
    if folder == recipe.folder:
        check_corpus_settings(recipe)
    model, checkpoint = load_pretrained(network)
    heldout = _heldout(recipe, folder, checkpoint.tokenizer)
    model = model.to(choose_device(recipe.device))
    logger.info("evaluating on held-out text: %s", ", ".join(heldout))
    reports = evaluate_pretraining(model, heldout, checkpoint.tokenizer, recipe.pretrain.examples, count=EXAMPLES)
    return {"pretraining": reports}


def _heldout(recipe: Recipe, folder: Path, tokenizer: Tokenizer) -> dict[str, PreparedText]:
    """The held-out text by its source. For other models than the run's, it is prepared in their vocabulary."""
    if folder != recipe.folder:
        corpus = recipe.corpus
        if corpus.heldout:  # else the held-out text is a part of the sources
            corpus = corpus.model_copy(update={"sources": ()})
        recipe = recipe.inside(folder.name, corpus=corpus)
        prepare(recipe, tokenizer, heldout_only=True)
    heldout = open_heldout(recipe)
    for text in heldout.values():
        text.check_tokenizer(tokenizer)
    return heldout


def _classification(recipe: Recipe, classifier: Path, folder: Path) -> dict[str, Any]:
    """The fields of a report that are about the classifier; see `_pretraining`."""
    ordered = recipe.finetune.in_order_of(load_checkpoint(classifier).config.labels)
    recipe = recipe.model_copy(update={"finetune": ordered})
    is_own, train = folder == recipe.folder, recipe.finetune.train
    if is_own:
        check_labelled_settings(recipe)
        if train and not trained_on_files_of(recipe):
            logger.warning("no baselines: the files of finetune.train are not those that the classifier was trained on")
            train = ()
    test = read_test(recipe)
    if not any(test.values()):
        logger.warning("there is nothing to evaluate the classifier on: give finetune.test, or a finetune.dev_fraction")
    elif not recipe.finetune.tested:
        logger.warning(
            "the recipe has no finetune.test or finetune.test_fraction: figures are those of dev, which chose the seed "
            "and the temperature"
        )
    results = load_results(recipe) if is_own else []
    seeds = {each.seed: _seed_figures(recipe, each, test) for each in results if len(results) > 1}
    problem, answers = _problem(recipe), _answers(recipe, classifier, test)
    bag = evaluate_bag(recipe, problem, test) if test and train else {}
    models = {
        OURS: {name: each.scores for name, each in answers.items()},
        problem.bag: bag,
        "the shipped classifier": _shipped(recipe, classifier, test),
    }
    reports = {
        name: report_on(problem, {model: found[name] for model, found in models.items() if name in found}, test[name])
        for name in answers
    }
    return {
        "classification": reports,
        "problem_type": recipe.finetune.problem_type,
        "labels": list(problem.names),
        "seeds": seeds,
    }


def _seed_figures(recipe: Recipe, result: SeedResult, test: Mapping[str, Labelled]) -> dict[str, Figure]:
    problem, answers = _problem(recipe), _answers(recipe, seed_folder(recipe, result.seed) / "model", test)
    score = None if result.dev_score is None else abs(result.dev_score)
    figures = {f"{title_of(problem.chosen)} on dev": Figure(score, result.dev_error)}
    for name, each in answers.items():
        found = report_on(problem, {OURS: each.scores}, test[name])
        figures[name] = found.figures[OURS][problem.compared]
        if found.domains:
            figures[f"{name}, mean over {found.domains.large} domains"] = found.domains.large_means[OURS]
    return figures


def _answers(recipe: Recipe, folder: Path, test: Mapping[str, Labelled]) -> dict[str, Answers]:
    """What the classifier in a folder answers, by test source and reading."""
    return _answers_of(recipe, load_classifier(folder, recipe.finetune), test)


def _shipped(recipe: Recipe, evaluated: Path, test: Mapping[str, Labelled]) -> dict[str, Tensor]:
    """(texts, labels) scores of the shipped classifier by test source and reading, if it has the recipe's labels in any
    spelling. None if it is what is evaluated."""
    if not SHIPPED.is_dir() or SHIPPED.resolve() == evaluated.resolve():
        return {}
    shipped = load_checkpoint(SHIPPED)
    theirs = [name.lower() for name in shipped.config.labels]
    names = [name.lower() for name in recipe.finetune.label_names]
    if recipe.finetune.problem_type != SINGLE_LABEL or sorted(names) != sorted(theirs):
        return {}
    order = [theirs.index(name) for name in names]
    return {name: each.scores[:, order] for name, each in _answers_of(recipe, shipped, test).items()}


def _answers_of(recipe: Recipe, checkpoint: Checkpoint, test: Mapping[str, Labelled]) -> dict[str, Answers]:
    """What a classifier answers, by test source and reading."""
    checkpoint.model.to(choose_device(recipe.device))
    answers = {}
    for source in recipe.finetune.tested or recipe.finetune.train:
        name, read = source_name(source), reading_of(source)
        name += DEV * (not recipe.finetune.tested)
        readings = {name: "text", name + PAIR: "pair"} if read == "both" else {name: read}
        for title in filter(test.__contains__, readings):
            documents, labels = zip(*test[title], strict=True)
            logger.info("evaluating on %s: %s texts", title, f"{len(documents):,}")
            answers[title] = classify(checkpoint, documents, labels, readings[title])
    return answers


def _problem(recipe: Recipe) -> Problem:
    return problem_of(recipe.finetune.problem_type, recipe.finetune.label_names)


# --- plots ---------------------------------------------------------------------------------------------------------


def _plot(recipe: Recipe, folder: Path, report: Report) -> list[Path]:
    """Write the plots, in place of an earlier report's."""
    for pattern in ("*-loss.png", "confusion-*.png", "reliability-*.png"):
        for old in folder.glob(pattern):
            old.unlink()
    written = _plot_losses(recipe) if folder == recipe.folder else []
    for name, test in report.classification.items():
        slug = name.replace(PAIR, "-pair").replace(DEV, "-dev")
        if test.confusion is not None:
            written.append(folder / f"confusion-{slug}.png")
            plot_confusion(test.confusion, report.labels, written[-1])
        if test.reliability:
            written.append(folder / f"reliability-{slug}.png")
            plot_reliability(test.reliability, written[-1])
    return written


def _plot_losses(recipe: Recipe) -> list[Path]:
    folder, train = recipe.folder, recipe.folder / "corpus" / "train"
    entropy = PreparedText.open(train).unigram_entropy if train.is_dir() else None
    pretraining, finetuning = folder / "pretrain-loss.png", folder / "finetune-loss.png"
    written = []
    if plot_losses(RunLog(folder / "pretrain" / "log.jsonl"), pretraining, entropy):
        written.append(pretraining)
    if plot_losses(RunLog(chosen_folder(recipe) / "log.jsonl"), finetuning):
        written.append(finetuning)
    return written
