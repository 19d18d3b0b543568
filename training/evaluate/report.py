"""`evaluate`: all figures, each beside a trivial guess, as Markdown, JSON and plots."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from model.checkpoint import Checkpoint, load_checkpoint
from model.heads import BertForSequenceClassification
from model.tokenizer import Tokenizer
from training.corpus.prepare import Corpus, prepare
from training.errors import RunError
from training.evaluate.baselines import Baseline, bags_of_words
from training.evaluate.metrics import (
    ClassificationReport,
    PretrainingReport,
    evaluate_classification,
    evaluate_pretraining,
)
from training.evaluate.plots import plot_confusion, plot_losses, plot_reliability
from training.finetune.dataset import LabelledTexts, read_whole
from training.finetune.run import from_scratch_model
from training.finetune.seeds import SeedResult, chosen_folder, load_results, mean_and_spread, seed_folder
from training.loop.checkpoint import fingerprint
from training.loop.log import RunLog
from training.pretrain.run import load_pretrained, open_heldout
from training.recipe import Recipe
from training.runtime.device import choose_device

logger = logging.getLogger(__name__)

EXAMPLES = 2000
"""Held-out examples per source in a final report."""

FEW = 1000
"""Masked tokens: a standard error of accuracy is above 0.01 then."""

PLOTS = "## Plots"
"""Heading of the part of `report.md` that needs the PNG files beside it."""


@dataclass(frozen=True, slots=True)
class SeedReport:
    """One seed's accuracies."""

    result: SeedResult
    test: dict[str, float]
    """By name of the test set"""


@dataclass(frozen=True, slots=True)
class Report:
    """What is known of a run's models; empty where a model does not exist yet."""

    pretraining: dict[str, PretrainingReport] = field(default_factory=dict)
    """By name of the held-out source"""
    classification: dict[str, ClassificationReport] = field(default_factory=dict)
    """By name of the test set"""
    labels: list[str] = field(default_factory=list)
    bags: Baseline | None = None
    from_scratch: dict[str, float] = field(default_factory=dict)
    """Accuracy of the network without pretraining, by name of the test set"""
    seeds: list[SeedReport] = field(default_factory=list)
    """Each seed's run, where there were several"""
    weights: dict[str, str] = field(default_factory=dict)
    """Fingerprints of what was evaluated, by name of the model"""


def evaluate(recipe: Recipe, weights: Path | None = None) -> str:
    """Evaluate the run's models, write `report.json`, `report.md` and plots beside them, return the Markdown.

    Args:
        weights: Folder with other checkpoints to evaluate on the recipe's texts: `pretrained`, `sentiment`.

    Raises:
        RunError: there is no model yet, or one of another kind, or of other labels than the recipe's.
        CorpusError: the held-out text is not in the model's vocabulary.
    """
    models = weights or recipe.folder
    found = [name for name in ("pretrained", "sentiment") if (models / name).is_dir()]
    if not found:
        raise RunError(f"{models} holds no trained model; run pretrain first")
    if weights:
        recipe = _apart(recipe, weights)
    folder = recipe.folder
    report = Report(
        _pretraining(recipe, models / "pretrained"),
        **_classification(recipe, models / "sentiment"),
        weights={name: fingerprint(load_checkpoint(models / name).model) for name in found},
    )
    text = tables(report)
    plots = [f"![{file.stem}]({file.name})" for file in _plot(recipe, report)]
    (folder / "report.md").write_text("\n".join([text, PLOTS, "", *plots, ""]), encoding="utf-8")
    (folder / "report.json").write_text(to_json(report))  # last: it says of which weights all of it is
    return text


def _apart(recipe: Recipe, weights: Path) -> Recipe:
    """The recipe to evaluate others' weights by: in a folder of its own within the run's, with held-out text in
    their vocabulary."""
    corpus = recipe.corpus
    if corpus.heldout:  # else it is a part of the sources
        corpus = corpus.model_copy(update={"sources": ()})
    recipe = recipe.model_copy(update={"name": "evaluation", "run": recipe.folder, "corpus": corpus})
    recipe.folder.mkdir(parents=True, exist_ok=True)
    if (weights / "pretrained").is_dir() and (corpus.sources or corpus.heldout):
        prepare(recipe, Tokenizer.load(weights / "pretrained"))
    return recipe


def to_json(report: Report) -> str:
    """Every figure; one that a source cannot have is null."""
    figures = asdict(report)
    return json.dumps(figures, indent=2, allow_nan=False) + "\n"


def tables(report: Report) -> str:
    """All tables as Markdown."""
    lines = []
    if report.pretraining:
        lines += [
            "| held-out text | examples | masked-LM loss | unigram entropy | masked-LM accuracy "
            "| unigram guess | next sentence, mixed | next sentence, random negatives | coin |",
            "|---|---|---|---|---|---|---|---|---|",
            *(_pretraining_row(name, r) for name, r in report.pretraining.items()),
            "",
        ]
    if report.classification:
        lines += [
            "| test set | texts | accuracy | majority | TF-IDF + logistic regression "
            "| naive Bayes bag of this source alone | without pretraining | calibration error | by chance |",
            "|---|---|---|---|---|---|---|---|---|",
            *(_classification_row(name, report) for name in report.classification),
            "",
        ]
    if report.seeds:
        names = list(report.seeds[0].test)
        lines += [
            f"| seed | best step | dev | {' | '.join(names)} |",
            "|---" * (3 + len(names)) + "|",
            *(_seed_row(seed) for seed in report.seeds),
            _spread_row(report.seeds),
            "",
        ]
    return "\n".join(lines)


def _pretraining_row(name: str, r: PretrainingReport) -> str:
    figures = (
        *(r.mlm_loss, r.unigram_entropy, r.mlm_accuracy, r.unigram_accuracy),
        *(r.nsp_accuracy, r.nsp_accuracy_random, 0.5),
    )
    return f"| {name} | {r.examples:,} | {_cells(figures, 3)} |"


def _cells(figures: Iterable[float | None], digits: int = 4) -> str:
    return " | ".join("–" if figure is None else f"{figure:.{digits}f}" for figure in figures)


def _classification_row(name: str, report: Report) -> str:
    r, bags = report.classification[name], report.bags
    together, alone = (bags.accuracy.get(name), bags.alone.get(name)) if bags else (None, None)
    figures = (
        *(r.accuracy, r.majority_accuracy, together, alone),
        *(report.from_scratch.get(name), r.expected_calibration_error, r.calibration_error_by_chance),
    )
    return f"| {name} | {r.examples:,} | {_cells(figures)} |"


def _seed_row(report: SeedReport) -> str:
    result = report.result
    figures = (result.dev_accuracy or 0.0, *report.test.values())
    return f"| {result.seed} | {result.step} | {_cells(figures)} |"


def _spread_row(seeds: Sequence[SeedReport]) -> str:
    """Mean and sample standard deviation of each column."""
    columns = zip(*((s.result.dev_accuracy or 0.0, *s.test.values()) for s in seeds), strict=True)
    cells = ("{:.4f} ± {:.4f}".format(*mean_and_spread(column)) for column in columns)
    return f"| mean | | {' | '.join(cells)} |"


def _plot(recipe: Recipe, report: Report) -> list[Path]:
    """Write the plots in place of an earlier report's; the files."""
    folder, written = recipe.folder, []
    for pattern in ("*-loss.png", "confusion-*.png", "reliability-*.png"):
        for old in folder.glob(pattern):
            old.unlink()  # its test set may not be in this report
    train = folder / "corpus" / "train"
    runs = ((folder / "pretrain", _unigram_entropy(train)), (chosen_folder(recipe), None))
    for stage, (run, entropy) in zip(("pretrain", "finetune"), runs, strict=True):
        file = folder / f"{stage}-loss.png"
        if plot_losses(RunLog(run / "log.jsonl"), file, entropy):
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
    if not (folder.is_dir() and (recipe.corpus.sources or recipe.corpus.heldout)):
        return {}
    model, checkpoint = load_pretrained(folder)
    heldout = open_heldout(recipe)
    for corpus in heldout.values():
        corpus.check_tokenizer(checkpoint.tokenizer)
    model = model.to(choose_device(recipe.device))
    reports = evaluate_pretraining(
        model, heldout, checkpoint.tokenizer, recipe.pretrain.examples, examples=EXAMPLES
    )
    for name, report in reports.items():
        if report.masked < FEW:
            logger.warning(
                "%s: its figures are of %d examples with %d masked tokens, and so mostly chance; hold more out "
                "(corpus.heldout, corpus.heldout_fraction)",
                *(name, report.examples, report.masked),
            )
    return reports


def _classification(recipe: Recipe, folder: Path) -> dict[str, Any]:
    """The fields of a report that are about the classifier; none where there is no classifier."""
    if not folder.is_dir():
        return {}
    model, checkpoint = _classifier(recipe, folder)
    config = recipe.finetune
    texts = [read_whole(source, recipe, checkpoint) for source in config.test]
    results = load_results(recipe)
    scratch = from_scratch_model(recipe)
    return {
        "classification": {text.name: evaluate_classification(model, text.batches()) for text in texts},
        "labels": checkpoint.config.labels,
        "bags": bags_of_words(recipe),
        "from_scratch": _accuracies(recipe, scratch, texts) if scratch else {},
        "seeds": [
            SeedReport(result, _accuracies(recipe, seed_folder(recipe, result.seed) / "model", texts))
            for result in results
            if len(results) > 1
        ],
    }


def _accuracies(recipe: Recipe, folder: Path, texts: Sequence[LabelledTexts]) -> dict[str, float]:
    model, _ = _classifier(recipe, folder)
    return {text.name: evaluate_classification(model, text.batches()).accuracy for text in texts}


def _classifier(recipe: Recipe, folder: Path) -> tuple[BertForSequenceClassification, Checkpoint]:
    checkpoint, labels = load_checkpoint(folder), recipe.finetune.label_names
    if not isinstance(checkpoint.model, BertForSequenceClassification):
        raise RunError(f"{folder} is no classifier")
    if checkpoint.config.labels != labels:
        raise RunError(
            f"{folder} is a classifier of {checkpoint.config.labels}, but finetune.labels are {labels}"
        )
    return checkpoint.model.to(choose_device(recipe.device)), checkpoint
