"""`evaluate`: all figures of a run's models, each beside its baselines, as Markdown, JSON and plots."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from model.checkpoint import Checkpoint, load_checkpoint
from model.heads import BertForSequenceClassification
from model.tokenizer import Tokenizer
from training.corpus.inputs import reading_of
from training.corpus.prepare import prepare
from training.corpus.reader import PreparedText
from training.errors import RunError
from training.evaluate.classification import (
    Answers,
    ClassificationReport,
    classification_report,
    predict_classification,
)
from training.evaluate.pretraining import PretrainingReport, evaluate_pretraining
from training.examples.labelled import encode_texts
from training.finetune.selection import (
    SeedResult,
    chosen_folder,
    load_results,
    mean_and_deviation,
    seed_folder,
)
from training.finetune.task import load_classifier
from training.loop.checkpoint import fingerprint
from training.loop.log import RunLog
from training.pretrain.run import load_pretrained, open_heldout
from training.recipe import Recipe, source_name
from training.report.baselines import (
    Figures,
    Labelled,
    by_domain,
    evaluate_baselines,
    mean_balanced_accuracy,
    read_test,
)
from training.report.plots import plot_confusion, plot_losses, plot_reliability
from training.runtime.device import choose_device

EXAMPLES = 2000
"""Held-out examples per source."""

FEW_MASKED_TOKENS = 1000
"""Below this, one standard error of an accuracy is above 0.01."""

MIN_OF_EACH_LABEL = 50
"""Texts of each label that a domain needs to count as the worst one."""

PLOTS = "## Plots"
"""Heading of the part of `report.md` that needs the PNG files beside it."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SourceReport:
    """Figures of the classifier on one test source in one reading."""

    figures: ClassificationReport
    mean_balanced_accuracy: float
    """Over the domains of the source; the balanced accuracy without domains."""
    worst_domain: str | None
    """With at least `MIN_OF_EACH_LABEL` texts of each label."""
    worst_balanced_accuracy: float | None


@dataclass(frozen=True, slots=True)
class SeedReport:
    """Accuracies of one seed."""

    result: SeedResult
    test: dict[str, float]
    """By name of the test source."""


@dataclass(frozen=True, slots=True)
class Report:
    """What is known of a run's models; empty where a model does not exist."""

    pretraining: dict[str, PretrainingReport] = field(default_factory=dict)
    """By name of the held-out source."""
    classification: dict[str, SourceReport] = field(default_factory=dict)
    """By name of the test source; with ` (pair)` for sources that are also read as pairs."""
    labels: list[str] = field(default_factory=list)
    baselines: dict[str, dict[str, Figures]] = field(default_factory=dict)
    """By name of the baseline and of the test source."""
    seeds: list[SeedReport] = field(default_factory=list)
    """Of each seed, where there are several."""
    weights: dict[str, str] = field(default_factory=dict)
    """Hashes of the evaluated weights, by name of the model."""


def evaluate(recipe: Recipe, weights: Path | None = None) -> str:
    """Evaluate the run's models, write `report.json`, `report.md` and plots into its folder, and return the Markdown.

    Args:
        weights: folder with other checkpoints to evaluate on the recipe's texts: `pretrained/`, `sentiment/`.

    Raises:
        RunError: there is no model, or one of another kind or with other labels than the recipe's.
        CorpusError: the held-out text was prepared with another vocabulary.
    """
    models = weights or recipe.folder
    found = [name for name in ("pretrained", "sentiment") if (models / name).is_dir()]
    if not found:
        raise RunError(f"{models} has no trained model; run pretrain first")
    if weights:
        recipe = _for_other_weights(recipe, weights)
    report = Report(
        _pretraining(recipe, models / "pretrained"),
        **_classification(recipe, models / "sentiment"),
        weights={name: fingerprint(load_checkpoint(models / name).model) for name in found},
    )
    text, folder = tables(report), recipe.folder
    plots = [f"![{file.stem}]({file.name})" for file in _plot(recipe, report)]
    (folder / "report.md").write_text("\n".join([text, PLOTS, "", *plots, ""]), encoding="utf-8")
    figures = json.dumps(asdict(report), indent=2, allow_nan=False)
    (folder / "report.json").write_text(figures + "\n", encoding="utf-8")  # last: it names the weights of all of it
    logger.info("report in %s; next: export", folder / "report.md")
    return text


def _for_other_weights(recipe: Recipe, weights: Path) -> Recipe:
    """The recipe with its own folder inside the run's, and held-out text in the vocabulary of other weights."""
    corpus = recipe.corpus
    if corpus.heldout:  # else the held-out text is a part of the sources
        corpus = corpus.model_copy(update={"sources": ()})
    recipe = recipe.model_copy(update={"name": "evaluation", "run": recipe.folder, "corpus": corpus})
    recipe.folder.mkdir(parents=True, exist_ok=True)
    if (weights / "pretrained").is_dir() and (corpus.sources or corpus.heldout):
        prepare(recipe, Tokenizer.load(weights / "pretrained"))
    return recipe


# --- figures -------------------------------------------------------------------------------------------------------


def _pretraining(recipe: Recipe, folder: Path) -> dict[str, PretrainingReport]:
    if not (folder.is_dir() and (recipe.corpus.sources or recipe.corpus.heldout)):
        return {}
    model, checkpoint = load_pretrained(folder)
    heldout = open_heldout(recipe)
    for text in heldout.values():
        text.check_tokenizer(checkpoint.tokenizer)
    model = model.to(choose_device(recipe.device))
    reports = evaluate_pretraining(model, heldout, checkpoint.tokenizer, recipe.pretrain.examples, count=EXAMPLES)
    for name, report in reports.items():
        if report.masked < FEW_MASKED_TOKENS:
            logger.warning(
                "%s: its figures are of %d examples with %d masked tokens, and so mostly chance; hold out more text "
                "(corpus.heldout, corpus.heldout_fraction)",
                *(name, report.examples, report.masked),
            )
    return reports


def _classification(recipe: Recipe, folder: Path) -> dict[str, Any]:
    """The fields of a report that are about the classifier; none without a classifier."""
    if not folder.is_dir():
        return {}
    checkpoint = _load_classifier(recipe, folder)
    test = read_test(recipe)
    results = load_results(recipe)
    return {
        "classification": _test_reports(recipe, checkpoint, test),
        "labels": checkpoint.config.labels,
        "baselines": evaluate_baselines(recipe, test) if test and recipe.finetune.train else {},
        "seeds": [_seed_report(recipe, result, test) for result in results if len(results) > 1],
    }


def _load_classifier(recipe: Recipe, folder: Path) -> Checkpoint:
    """The classifier in a folder, on the recipe's device."""
    checkpoint = load_classifier(folder, recipe.finetune)
    checkpoint.model.to(choose_device(recipe.device))
    return checkpoint


def _test_reports(recipe: Recipe, checkpoint: Checkpoint, test: dict[str, Labelled]) -> dict[str, SourceReport]:
    reports = {}
    for source in recipe.finetune.test:
        name, part = source_name(source), test[source_name(source)]
        for reading in ("text", "pair") if (read := reading_of(source)) == "both" else (read,):
            title = f"{name} (pair)" if read == "both" and reading == "pair" else name
            reports[title] = _test_report(_answers(checkpoint, part, reading), part)
    return reports


def _answers(checkpoint: Checkpoint, part: Labelled, reading: str) -> Answers:
    """Answers to documents in their order, each in one reading."""
    model = checkpoint.model
    assert isinstance(model, BertForSequenceClassification)
    documents, labels = [document for document, _ in part], [label for _, label in part]
    targets = np.eye(model.config.num_labels, dtype=np.float32)[labels]
    positions = model.config.max_position_embeddings
    answers = predict_classification(model, encode_texts(documents, targets, reading, checkpoint.tokenizer, positions))
    order = torch.tensor(answers.documents).argsort()
    return Answers(answers.logits[order], torch.tensor(labels), list(range(len(part))))


def _test_report(answers: Answers, part: Labelled) -> SourceReport:
    domains = by_domain(part)
    worst: tuple[float, str] | None = None
    for name, rows in domains.items():
        counts = answers.labels[rows].bincount(minlength=answers.logits.shape[1])
        if name and int(counts.min()) >= MIN_OF_EACH_LABEL:
            report = classification_report(answers.logits[rows], answers.labels[rows])
            candidate = (report.balanced_accuracy, name)
            worst = candidate if worst is None else min(worst, candidate)
    return SourceReport(
        answers.report(),
        mean_balanced_accuracy(answers.logits, answers.labels, domains.values()),
        worst[1] if worst else None,
        worst[0] if worst else None,
    )


def _seed_report(recipe: Recipe, result: SeedResult, test: dict[str, Labelled]) -> SeedReport:
    checkpoint = _load_classifier(recipe, seed_folder(recipe, result.seed) / "model")
    reports = _test_reports(recipe, checkpoint, test)
    return SeedReport(result, {name: report.figures.accuracy for name, report in reports.items()})


# --- tables and plots ----------------------------------------------------------------------------------------------


def tables(report: Report) -> str:
    """All tables as Markdown."""
    lines: list[str] = []
    if report.pretraining:
        lines += [
            "| held-out text | examples | masked-LM loss | unigram entropy | masked-LM accuracy "
            "| most frequent token | next sentence, mixed | next sentence, random documents | coin |",
            "|---|---|---|---|---|---|---|---|---|",
            *(_pretraining_row(name, r) for name, r in report.pretraining.items()),
            "",
        ]
    if report.classification:
        bags = list(report.baselines)
        lines += [
            f"| test set | texts | accuracy ± standard error | majority | {' | '.join([*bags, ''])}"
            "balanced accuracy | calibration error | by chance |",
            "|---" * (7 + len(bags)) + "|",
            *(_classification_row(name, report) for name in report.classification),
            "",
        ]
        lines += _domain_lines(report)
    if report.seeds:
        names = list(report.seeds[0].test)
        lines += [
            f"| seed | best step | dev | {' | '.join(names)} |",
            "|---" * (3 + len(names)) + "|",
            *(_seed_row(seed) for seed in report.seeds),
            _deviation_row(report.seeds),
            "",
        ]
    return "\n".join(lines)


def _pretraining_row(name: str, r: PretrainingReport) -> str:
    figures = (
        *(r.mlm_loss, r.unigram_entropy, r.mlm_accuracy, r.unigram_accuracy),
        *(r.nsp_accuracy, r.nsp_accuracy_random, 0.5),
    )
    return f"| {name} | {r.examples:,} | {_cells(figures, 3)} |"


def _classification_row(name: str, report: Report) -> str:
    r = report.classification[name].figures
    own = name.removesuffix(" (pair)")
    bags = [rows[own].accuracy if own in rows else None for rows in report.baselines.values()]
    cells = _cells((r.majority_accuracy, *bags, r.balanced_accuracy))
    errors = _cells((r.expected_calibration_error, r.calibration_error_by_chance))
    return f"| {name} | {r.examples:,} | {r.accuracy:.4f} ± {r.standard_error:.4f} | {cells} | {errors} |"


def _domain_lines(report: Report) -> list[str]:
    """A sentence for each test set with several domains."""
    lines = []
    for name, r in report.classification.items():
        if r.worst_domain is None:
            continue
        own = name.removesuffix(" (pair)")
        bags = (f"{bag} {rows[own].balanced_accuracy:.4f}" for bag, rows in report.baselines.items() if own in rows)
        lines += [
            f"{name}: mean balanced accuracy over domains {r.mean_balanced_accuracy:.4f} ({', '.join(bags)}); worst "
            f"domain {r.worst_domain}, {r.worst_balanced_accuracy:.4f}.",
            "",
        ]
    return lines


def _cells(figures: Iterable[float | None], digits: int = 4) -> str:
    return " | ".join("–" if figure is None else f"{figure:.{digits}f}" for figure in figures)


def _seed_row(report: SeedReport) -> str:
    result = report.result
    figures = (result.dev_accuracy or 0.0, *report.test.values())
    return f"| {result.seed} | {result.step} | {_cells(figures)} |"


def _deviation_row(seeds: Sequence[SeedReport]) -> str:
    """Mean and sample standard deviation of each column."""
    columns = zip(*((s.result.dev_accuracy or 0.0, *s.test.values()) for s in seeds), strict=True)
    cells = ("{:.4f} ± {:.4f}".format(*mean_and_deviation(column)) for column in columns)
    return f"| mean | | {' | '.join(cells)} |"


def _plot(recipe: Recipe, report: Report) -> list[Path]:
    """Write the plots, in place of an earlier report's."""
    folder, written = recipe.folder, []
    for pattern in ("*-loss.png", "confusion-*.png", "reliability-*.png"):
        for old in folder.glob(pattern):
            old.unlink()
    train = folder / "corpus" / "train"
    entropy = PreparedText.open(train).unigram_entropy if train.is_dir() else None
    for stage, run, line in (
        ("pretrain", folder / "pretrain", entropy),
        ("finetune", chosen_folder(recipe), None),
    ):
        file = folder / f"{stage}-loss.png"
        if plot_losses(RunLog(run / "log.jsonl"), file, line):
            written.append(file)
    for name, test in report.classification.items():
        slug = name.replace(" (pair)", "-pair")
        confusion, reliability = folder / f"confusion-{slug}.png", folder / f"reliability-{slug}.png"
        plot_confusion(test.figures.confusion, report.labels, confusion)
        plot_reliability(test.figures.reliability, reliability)
        written += [confusion, reliability]
    return written
