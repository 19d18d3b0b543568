"""`evaluate`: all figures, each beside a trivial guess, as Markdown, JSON and plots."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from model.checkpoint import load_checkpoint
from model.heads import BertForPreTraining, BertForSequenceClassification
from training.config import Recipe
from training.corpus import Corpus
from training.errors import RunError
from training.evaluation import (
    ClassificationReport,
    PretrainingReport,
    evaluate_classification,
    evaluate_pretraining,
)
from training.finetune import read_test
from training.hardware import choose_device
from training.plots import plot_confusion, plot_losses, plot_reliability
from training.pretrain import open_heldout
from training.watch import RunLog

EXAMPLES = 2000
"""Held-out examples per source in a final report."""

PLOTS = "## Plots"
"""Heading of the part of `report.md` that needs the PNG files beside it."""


@dataclass(frozen=True, slots=True)
class Report:
    """What is known of a run's models; empty where a model does not exist yet."""

    pretraining: dict[str, PretrainingReport] = field(default_factory=dict)
    """By name of the held-out source"""
    classification: dict[str, ClassificationReport] = field(default_factory=dict)
    """By name of the test set"""
    labels: list[str] = field(default_factory=list)


def evaluate(recipe: Recipe) -> str:
    """Evaluate the run's models, write `report.json`, `report.md` and plots beside them, return the Markdown.

    Raises:
        RunError: there is no model yet.
    """
    folder = recipe.folder
    pretraining = _pretraining(recipe, folder / "pretrained")
    classification, labels = _classification(recipe, folder / "sentiment")
    if not pretraining and not labels:
        raise RunError(f"{folder} holds no trained model; run pretrain first")
    report = Report(pretraining, classification, labels)
    (folder / "report.json").write_text(to_json(report))
    text = tables(report)
    plots = [f"![{file.stem}]({file.name})" for file in _plot(recipe, report)]
    (folder / "report.md").write_text("\n".join([text, PLOTS, "", *plots, ""]))
    return text


def to_json(report: Report) -> str:
    """Every figure; one that a source cannot have is null."""
    figures: dict[str, Any] = {
        "pretraining": {name: asdict(r) for name, r in report.pretraining.items()},
        "classification": {name: asdict(r) for name, r in report.classification.items()},
        "labels": report.labels,
    }
    return json.dumps(figures, indent=2, allow_nan=False) + "\n"


def tables(report: Report) -> str:
    """Both tables as Markdown."""
    lines = []
    if report.pretraining:
        lines += [
            "| held-out text | masked-LM loss | unigram entropy | masked-LM accuracy | unigram guess "
            "| next sentence, mixed | next sentence, random negatives | coin |",
            "|---|---|---|---|---|---|---|---|",
            *(_pretraining_row(name, r) for name, r in report.pretraining.items()),
            "",
        ]
    if report.classification:
        lines += [
            "| test set | texts | accuracy | majority | calibration error |",
            "|---|---|---|---|---|",
            *(_classification_row(name, r) for name, r in report.classification.items()),
            "",
        ]
    return "\n".join(lines)


def _pretraining_row(name: str, r: PretrainingReport) -> str:
    figures = (
        *(r.mlm_loss, r.unigram_entropy, r.mlm_accuracy, r.unigram_accuracy),
        *(r.nsp_accuracy, r.nsp_accuracy_random, 0.5),
    )
    return f"| {name} | " + " | ".join("–" if f is None else f"{f:.3f}" for f in figures) + " |"


def _classification_row(name: str, r: ClassificationReport) -> str:
    error = r.expected_calibration_error
    return f"| {name} | {r.examples:,} | {r.accuracy:.4f} | {r.majority_accuracy:.4f} | {error:.4f} |"


def _plot(recipe: Recipe, report: Report) -> list[Path]:
    """Write the plots; the files."""
    folder, written = recipe.folder, []
    train = folder / "corpus" / "train"
    for stage, entropy in (("pretrain", _unigram_entropy(train)), ("finetune", None)):
        file = folder / f"{stage}-loss.png"
        if plot_losses(RunLog(folder / stage / "log.jsonl"), file, entropy):
            written.append(file)
    for name, figures in report.classification.items():
        confusion, reliability = folder / f"confusion-{name}.png", folder / f"reliability-{name}.png"
        plot_confusion(figures.confusion, report.labels, confusion)
        plot_reliability(figures.reliability, reliability)
        written += [confusion, reliability]
    return written


def _unigram_entropy(train: Path) -> float | None:
    return Corpus.open(train).unigram_entropy if train.is_dir() else None


def _pretraining(recipe: Recipe, folder: Path) -> dict[str, PretrainingReport]:
    if not folder.is_dir():
        return {}
    checkpoint = load_checkpoint(folder)
    assert isinstance(checkpoint.model, BertForPreTraining)
    model = checkpoint.model.to(choose_device(recipe.device))
    heldout = open_heldout(recipe)
    return evaluate_pretraining(
        model, heldout, checkpoint.tokenizer, recipe.pretrain.examples, examples=EXAMPLES
    )


def _classification(recipe: Recipe, folder: Path) -> tuple[dict[str, ClassificationReport], list[str]]:
    """Reports by test set, and the labels of the model."""
    if not folder.is_dir():
        return {}, []
    checkpoint = load_checkpoint(folder)
    assert isinstance(checkpoint.model, BertForSequenceClassification)
    model = checkpoint.model.to(choose_device(recipe.device))
    reports = {
        text.name: evaluate_classification(model, text.batches())
        for text in read_test(recipe, checkpoint.tokenizer)
    }
    return reports, checkpoint.config.labels
