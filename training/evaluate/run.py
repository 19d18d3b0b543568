"""`evaluate`: figures of a run's models, each beside its baselines, as Markdown, JSON and plots."""

from __future__ import annotations

import csv
import logging
import re
import shlex
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from model.checkpoint import Checkpoint, load_checkpoint
from model.heads import BertForSequenceClassification
from training.corpus.encode import target_rows
from training.corpus.fingerprint import checkpoint_hash
from training.corpus.parts import Part
from training.corpus.reader import PreparedText
from training.errors import MissingTextError, RunError
from training.evaluate.classifier import BAG, OURS, Scores, report_on
from training.evaluate.plots import plot
from training.evaluate.tables import Report, tables, title_of, wrong_answers
from training.examples.labelled import is_unlabelled
from training.finetune.selection import SeedResult, best_seed
from training.loop.log import RunLog
from training.metrics.classification import check_reading, load_classifier, predict_classification
from training.metrics.pretraining import evaluate_pretraining
from training.metrics.texts import EvaluatedTexts, evaluated_texts, reported_texts
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

PREDICTIONS = "predictions.csv"
"""File with the answers to all texts of dev and test."""

logger = logging.getLogger(__name__)


def evaluate(pipeline: Pipeline, weights: Path | None = None) -> str:
    """Evaluate the run's models, write `report.json`, `report.md`, `predictions.csv` and plots into its folder, and
    return the Markdown.

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
    folder.mkdir(parents=True, exist_ok=True)
    (folder / PREDICTIONS).unlink(missing_ok=True)
    figures: dict[str, Any] = {}
    reasons: dict[str, str] = {}
    for name, model in found.items():
        try:
            figures_of = _pretraining if name == "pretrained" else _classification
            figures |= figures_of(pipeline, model, folder, is_own=not weights)
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


def _pretraining(pipeline: Pipeline, network: Path, _folder: Path, *, is_own: bool) -> dict[str, Any]:
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


def _classification(pipeline: Pipeline, classifier: Path, folder: Path, *, is_own: bool) -> dict[str, Any]:
    """The fields of a report about the classifier; see `_pretraining`. Writes its predictions into the folder."""
    recipe = pipeline.recipe
    checkpoint = load_classifier(classifier, recipe.finetune)
    labelled = pipeline.labelled if is_own else pipeline.labelled_for(checkpoint.tokenizer)
    labelled.ensure(DistContext())
    bag = pipeline.bag if is_own else pipeline.bag_of(labelled)
    store = PreparedText(labelled.folder, places=[bag.folder])
    test = reported_texts(store, recipe.finetune)
    for source in recipe.finetune.tested:
        if source_name(source) not in test:
            reason = "finetune.labels leaves out all of its texts" if recipe.finetune.test else "it has only one group"
            logger.warning("%s is not evaluated: %s", source_name(source), reason)
    if not test:
        logger.warning("there is nothing to evaluate the classifier on: give finetune.test, or a finetune.dev_fraction")
    problem, results = problem_of(recipe.finetune.problem_type, store.labels), pipeline.results() if is_own else {}
    seed = best_seed(list(results.values())).seed if results else None
    models = {OURS: _scores(recipe, checkpoint, problem)}
    if recipe.finetune.train:
        bag.ensure(DistContext())
        models[BAG] = _bag_scores(store, problem)
    _write_predictions(folder / PREDICTIONS, models, store)
    return {
        "classification": {name: report_on(models, texts) for name, texts in test.items()},
        "problem_type": recipe.finetune.problem_type,
        "labels": list(problem.names),
        "thresholds": dict(zip(checkpoint.config.labels, checkpoint.config.thresholds or (), strict=False)),
        "origin": " ".join(
            [*_origin(pipeline, store, test, seed), *map("{}.".format, (labelled.record or {})["advice"])]
        ),
        "seed": seed,
        "passes": (pipeline.seeds[seed].record or {}).get("passes") if seed is not None else None,
        "seeds": {i: _seed_figures(pipeline, problem, each, test) for i, each in results.items() if len(results) > 1},
    }


def _seed_figures(
    pipeline: Pipeline, problem: Problem, result: SeedResult, test: Mapping[str, EvaluatedTexts]
) -> dict[str, Figure]:
    scores_of = _scores(pipeline.recipe, load_checkpoint(pipeline.seeds[result.seed].folder / "model"), problem)
    score = None if result.dev_score is None else abs(result.dev_score)
    figures = {f"{title_of(problem.chosen)} on dev": Figure(score, result.dev_error)}
    for name, texts in test.items():
        found = report_on({OURS: scores_of}, texts)
        figures[name] = next(iter(found.figures[OURS].values()))
        if found.domains:
            figures[f"{name}, mean over {found.domains.count} domains"] = found.domains.means[OURS]
    return figures


def _scores(recipe: Recipe, checkpoint: Checkpoint, problem: Problem) -> Scores:
    """A classifier with its outputs in the order of the problem's. It reads texts as the service does: up to its
    positions. It computes the scores of a text once."""
    model, config = checkpoint.model, checkpoint.config
    assert isinstance(model, BertForSequenceClassification)
    model.to(choose_device(recipe.device))
    order = [config.labels.index(name) for name in problem.names]
    problem = replace(problem, thresholds=tuple(config.thresholds[i] for i in order) if config.thresholds else ())
    known: dict[str, Tensor] = {}

    def scores_of(texts: EvaluatedTexts) -> tuple[Problem, Tensor]:
        check_reading(checkpoint, texts.read)
        scores = known.setdefault(texts.read, torch.full((texts.store.documents, len(order)), torch.nan))
        if len(rows := texts.rows[scores[texts.rows, 0].isnan().numpy()]):
            logger.info("evaluating on %s texts of %s", f"{len(rows):,}", texts.store.shards[texts.shards[0]].source)
            examples = replace(texts, rows=rows).examples(checkpoint.tokenizer, config.max_position_embeddings)
            scores[rows] = predict_classification(model, examples).scores[:, order]
        return problem, scores[texts.rows]

    return scores_of


def _bag_scores(store: PreparedText, problem: Problem) -> Scores:
    """The bag of words. Its thresholds are chosen on dev, as the classifier's."""
    scores, dev = torch.from_numpy(store.column("target_probs")), (store.column("parts") == Part.DEV).nonzero()[0]
    targets = torch.from_numpy(target_rows(store.column("labels")[dev], len(store.labels)))
    problem = problem.tuned(scores[dev], targets)
    return lambda texts: (problem, scores[texts.rows])


def _origin(pipeline: Pipeline, store: PreparedText, test: Mapping[str, EvaluatedTexts], seed: int | None) -> list[str]:
    """Sentences about the texts and the training."""
    config, parts, labelled = pipeline.recipe.finetune, store.column("parts"), ~is_unlabelled(store.column("labels"))
    train, dev, tested = (f"{((parts == part) & labelled).sum():,}" for part in (Part.TRAIN, Part.DEV, Part.TEST))
    how = "from a table of their own" if config.test else "held out by hash, the same share of each label"
    how = how if config.tested else "so these figures are those of dev, which chose the seed and the calibration"
    found = [f"Texts: {train} to train on, {dev} for dev, {tested} to test, {how}."]
    log = RunLog(pipeline.seeds[seed].folder / "log.jsonl") if seed is not None else ()
    lengths = [line["text"].partition(":")[0] for line in log if line["event"] == "budget"]
    found += [f"Seed {seed}: {length}." for length in lengths[-1:]]  # each process of an interrupted run writes one
    if seed is not None and pipeline.final:
        count = (pipeline.final.record or {}).get("texts", 0)
        found.append(f"The exported classifier is trained with the same settings on all {count:,} texts.")
    for name, texts in test.items():
        repeats = f"{name}: {texts.repeats:,} repeats of texts do not count; {texts.relabelled:,} have another label."
        found += [repeats] * bool(texts.repeats)
    return found


def _write_predictions(file: Path, models: Mapping[str, Scores], store: PreparedText) -> None:
    """Write a CSV file with the label, the answers and the highest score of each text of dev and test, repeats
    included."""
    with file.open("w", encoding="utf-8", errors="replace", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["file", "line", "part", "label", "answer", "score", "bag_answer"][: 5 + len(models)])
        kept = [(part, each) for part in (Part.DEV, Part.TEST) for each in evaluated_texts(store, part).values()]
        for part, each in kept:
            texts = each.readings()[0]
            (problem, scores), *others = (scores_of(texts) for scores_of in models.values())
            labels, answers = problem.words(torch.from_numpy(texts.targets)), problem.words(scores)
            columns = map("{:.7g}".format, scores.amax(1).tolist()), *(bag.words(found) for bag, found in others)
            for document, *cells in zip(texts.documents(), labels, answers, *columns, strict=True):
                file_name, *line = re.split(r", (?:line|row) (\d+)$", document.place)
                writer.writerow([file_name, *(line[:1] or [""]), part.name.lower(), *cells])


# --- plots ---------------------------------------------------------------------------------------------------------


def _plot(pipeline: Pipeline, models: Mapping[str, Path], folder: Path, report: Report) -> list[Path]:
    """Write a plot for each network, in place of an earlier report's.

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
