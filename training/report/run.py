"""`evaluate`: all figures of a run's models, each beside its baselines, as Markdown, JSON and plots."""

from __future__ import annotations

import logging
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any

from model.checkpoint import load_checkpoint
from model.tokenizer import Tokenizer
from training.corpus.inputs import reading_of
from training.corpus.prepare import (
    check_corpus_settings,
    check_labelled_settings,
    prepare,
    trained_on_files_of,
)
from training.corpus.reader import PreparedText
from training.errors import RunError
from training.evaluate.classification import Answers, ClassificationReport, classify, load_classifier
from training.evaluate.pretraining import PretrainingReport, evaluate_pretraining
from training.finetune.selection import SeedResult, chosen_folder, load_results, seed_folder
from training.loop.checkpoint import weights_hash
from training.loop.log import RunLog
from training.pretrain.run import load_pretrained, open_heldout
from training.recipe import Recipe, source_name
from training.report.baselines import DEV, PAIR, Figures, Labelled, balanced_by_domain, evaluate_baselines, read_test
from training.report.plots import plot_confusion, plot_losses, plot_reliability
from training.runtime.device import choose_device
from training.runtime.files import write_json

EXAMPLES = 2000
"""Held-out examples per source."""

WEAKEST_LABELS = 20
"""Most rows of a table of labels."""

MIN_OF_EACH_LABEL = 50
"""Texts of each label that a domain needs to count as the worst one."""

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
class Report:
    """What is known of a run's models; empty where a model does not exist."""

    pretraining: dict[str, PretrainingReport] = field(default_factory=dict)
    """By name of the held-out source."""
    classification: dict[str, SourceReport] = field(default_factory=dict)
    """By name of the test source; with `PAIR` for those of its texts that are also read as pairs."""
    labels: list[str] = field(default_factory=list)
    baselines: dict[str, dict[str, Figures]] = field(default_factory=dict)
    """By name of the baseline and of the test source."""
    seeds: dict[int, dict[str, float]] = field(default_factory=dict)
    """Accuracies of each seed by test source, after the balanced accuracy on dev, where there are several seeds."""
    weights: dict[str, str] = field(default_factory=dict)
    """Hashes of the evaluated weights, by name of the model."""
    not_evaluated: dict[str, str] = field(default_factory=dict)
    """Why a model is not evaluated, by its name."""


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
    if reasons and not any(figures.values()):
        raise RunError("; ".join(reasons.values()))
    hashes = {name: weights_hash(load_checkpoint(models / name).model) for name in found if name not in reasons}
    report = Report(**figures, weights=hashes, not_evaluated=reasons)
    text_of = tables(report)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "report.md"
    notes = [f"**{name} is not evaluated: {reason}.**\n" for name, reason in reasons.items()]
    text = "\n".join([*text_of.values(), *label_tables(report), *notes])
    plots = "\n".join(f"![{file.stem}]({file.name})" for file in _plot(recipe, folder, report))
    file.write_text(f"{text}\n## Plots\n\n{plots}\n", encoding="utf-8")
    # Last, because it names the weights of all of it.
    write_json(file.with_suffix(".json"), asdict(report) | {"tables": text_of})
    logger.info("report in %s", file)
    return text


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
            logger.warning("no baselines: the files of finetune.train have changed since the classifier was trained")
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
    return {
        "classification": _test_reports(recipe, classifier, test),
        "labels": recipe.finetune.label_names,
        "baselines": evaluate_baselines(recipe, test) if test and train else {},
        "seeds": seeds,
    }


def _seed_figures(recipe: Recipe, result: SeedResult, test: Mapping[str, Labelled]) -> dict[str, float]:
    reports = _test_reports(recipe, seed_folder(recipe, result.seed) / "model", test)
    on_test = {name: report.figures.accuracy for name, report in reports.items()}
    return {"balanced accuracy on dev": result.dev_accuracy or 0.0} | on_test


def _test_reports(recipe: Recipe, folder: Path, test: Mapping[str, Labelled]) -> dict[str, SourceReport]:
    """Figures of the classifier in a folder, by test source and reading."""
    checkpoint = load_classifier(folder, recipe.finetune.label_names)
    checkpoint.model.to(choose_device(recipe.device))
    reports = {}
    for source in recipe.finetune.tested or recipe.finetune.train:
        name, read = source_name(source), reading_of(source)
        name += DEV * (not recipe.finetune.tested)
        readings = {name: "text", name + PAIR: "pair"} if read == "both" else {name: read}
        for title in filter(test.__contains__, readings):
            documents, labels = zip(*test[title], strict=True)
            logger.info("evaluating on %s: %s texts", title, f"{len(documents):,}")
            answers = classify(checkpoint, documents, labels, readings[title])
            reports[title] = _test_report(answers, test[title])
    return reports


def _test_report(answers: Answers, part: Labelled) -> SourceReport:
    mean, scores = balanced_by_domain(answers.logits.argmax(1), part)
    texts = Counter((document.domain, label) for document, label in part)
    labels = range(answers.logits.shape[1])
    large = [name for name in scores if name and all(texts[name, i] >= MIN_OF_EACH_LABEL for i in labels)]
    worst = min(large, key=scores.__getitem__, default=None)
    return SourceReport(answers.report(), mean, worst, scores[worst] if worst else None)


# --- tables and plots ----------------------------------------------------------------------------------------------


def tables(report: Report) -> dict[str, str]:
    """The tables of each model as Markdown, by its name."""
    found = {}
    if report.pretraining:
        found["pretrained"] = _pretraining_table(report.pretraining)
    if report.classification:
        parts = [_classification_table(report), *_domain_sentences(report), *_verdicts(report)]
        found["sentiment"] = "\n".join([*parts, *([_seed_table(report.seeds)] if report.seeds else [])])
    return found


def _verdicts(report: Report) -> list[str]:
    """A sentence for each test set on which the classifier is useless."""
    sentences = []
    for name, source in report.classification.items():
        r = source.figures
        true = [i for i, row in enumerate(r.confusion) if any(row)]
        answered = [i for i, column in enumerate(zip(*r.confusion, strict=True)) if any(column)]
        if len(answered) == 1 < len(true):
            sentences.append(f"**{name}: answers {report.labels[answered[0]]} to each text: raise finetune.epochs.**\n")
        bag = max((figures["accuracy"] for figures in _baselines(report, name).values()), default=0.0)
        if bag > r.accuracy:
            sentences.append(
                f"**{name}: a bag of words is better ({bag:.3f} against {r.accuracy:.3f}): pretrain longer, or label "
                "more texts.**\n"
            )
    return sentences


def _table(*rows: Sequence[str]) -> str:
    """A Markdown table whose first row is its head."""
    escaped = ([cell.replace("|", r"\|") for cell in row] for row in rows)
    head, *body = (f"| {' | '.join(row)} |\n" for row in escaped)
    return "".join([head, "|---" * len(rows[0]) + "|\n", *body])


def _cells(figures: Iterable[float | None], digits: int = 4) -> list[str]:
    return ["–" if figure is None else f"{figure:.{digits}f}" for figure in figures]


def _pretraining_table(reports: Mapping[str, PretrainingReport]) -> str:
    head = (
        *("held-out text", "examples", "masked-LM loss", "unigram entropy", "masked-LM accuracy"),
        *("most frequent token", "next sentence, mixed", "next sentence, random documents", "guessing"),
    )
    rows = []
    for name, r in reports.items():
        words = (r.mlm_loss, r.unigram_entropy, r.mlm_accuracy, r.unigram_accuracy)
        rows.append([name, f"{r.examples:,}", *_cells((*words, r.nsp_accuracy, r.nsp_accuracy_random, 0.5), 3)])
    return _table(head, *rows)


def _classification_table(report: Report) -> str:
    head = (
        *("test set", "texts", "accuracy ± standard error", "most frequent label", *report.baselines),
        *("balanced accuracy", "calibration error", "if calibrated"),
    )
    rows = []
    for name, source in report.classification.items():
        r, bags = source.figures, [bag["accuracy"] for bag in _baselines(report, name).values()]
        ours = (r.balanced_accuracy, r.expected_calibration_error, r.calibration_error_by_chance)
        accuracy = f"{r.accuracy:.4f} ± {r.standard_error:.4f}"
        rows.append([name, f"{r.examples:,}", accuracy, *_cells((r.majority_accuracy, *bags, *ours))])
    return _table(head, *rows)


def _baselines(report: Report, name: str) -> dict[str, Figures]:
    """The baselines of a test source: they read a pair as one text."""
    return {bag: rows[name] for bag, rows in report.baselines.items()}


def _domain_sentences(report: Report) -> list[str]:
    """A sentence for each test set with several domains."""
    sentences = []
    for name, r in report.classification.items():
        if r.worst_domain is not None:
            bags = [f"{bag} {row['balanced_accuracy']:.4f}" for bag, row in _baselines(report, name).items()]
            sentences.append(
                f"{name}: mean balanced accuracy over domains {r.mean_balanced_accuracy:.4f} ({', '.join(bags)}); "
                f"worst domain {r.worst_domain}, {r.worst_balanced_accuracy:.4f}.\n"
            )
    return sentences


def _seed_table(seeds: Mapping[int, Mapping[str, float]]) -> str:
    """Accuracies of each seed, and the mean and sample standard deviation of each column."""
    rows = [[str(seed), *_cells(figures.values())] for seed, figures in seeds.items()]
    columns = zip(*(figures.values() for figures in seeds.values()), strict=True)
    means = [f"{statistics.mean(column):.4f} ± {statistics.stdev(column):.4f}" for column in columns]
    return _table(["seed", *next(iter(seeds.values()))], *rows, ["mean", *means])


def label_tables(report: Report) -> list[str]:
    """A table for each test set with over two labels: precision, recall and F1 of its labels, the lowest F1 first."""
    if len(report.labels) <= 2:
        return []
    found = []
    for name, source in report.classification.items():
        counts = source.figures.confusion
        rows: list[tuple[float, list[str]]] = []
        for i, (label, row, column) in enumerate(zip(report.labels, counts, zip(*counts, strict=True), strict=True)):
            true, answered, right = sum(row), sum(column), row[i]
            precision, recall = (right / texts if texts else None for texts in (answered, true))
            f1 = 2 * right / (true + answered) if true + answered else None
            rows.append((2.0 if f1 is None else f1, [label, f"{true:,}", *_cells((precision, recall, f1), 3)]))
        weakest = [cells for _, cells in sorted(rows, key=itemgetter(0))[:WEAKEST_LABELS]]
        found.append(_table((f"{name}: label", "texts", "precision", "recall", "F1"), *weakest))
    return found


def _plot(recipe: Recipe, folder: Path, report: Report) -> list[Path]:
    """Write the plots, in place of an earlier report's."""
    for pattern in ("*-loss.png", "confusion-*.png", "reliability-*.png"):
        for old in folder.glob(pattern):
            old.unlink()
    written = _plot_losses(recipe) if folder == recipe.folder else []
    for name, test in report.classification.items():
        slug = name.replace(PAIR, "-pair").replace(DEV, "-dev")
        confusion, reliability = folder / f"confusion-{slug}.png", folder / f"reliability-{slug}.png"
        plot_confusion(test.figures.confusion, report.labels, confusion)
        plot_reliability(test.figures.reliability, reliability)
        written += [confusion, reliability]
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
