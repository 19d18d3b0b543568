"""`evaluate`: one table of all figures, each beside a trivial guess, as Markdown and JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from model.checkpoint import load_checkpoint
from model.heads import BertForPreTraining, BertForSequenceClassification
from training.config import Recipe
from training.evaluation import (
    ClassificationReport,
    PretrainingReport,
    evaluate_classification,
    evaluate_pretraining,
)
from training.finetune import read_test
from training.loop import choose_device
from training.pretrain import open_heldout

EXAMPLES = 2000
"""Held-out examples per source in a final report."""


def evaluate(recipe: Recipe) -> str:
    """Evaluate the run's models, write `report.json` and `report.md` beside them, return the Markdown."""
    pretraining = _pretraining(recipe, recipe.folder / "pretrained")
    classification = _classification(recipe, recipe.folder / "sentiment")
    figures = {
        "pretraining": {name: asdict(report) for name, report in pretraining.items()},
        "classification": {name: asdict(report) for name, report in classification.items()},
    }
    (recipe.folder / "report.json").write_text(json.dumps(figures, indent=2) + "\n")
    text = markdown(pretraining, classification)
    (recipe.folder / "report.md").write_text(text)
    return text


def markdown(pretraining: dict[str, PretrainingReport], classification: dict[str, ClassificationReport]) -> str:
    """Both tables."""
    lines = []
    if pretraining:
        lines += [
            "| held-out text | masked-LM loss | unigram entropy | masked-LM accuracy | unigram guess "
            "| next sentence, mixed | next sentence, random negatives | coin |",
            "|---|---|---|---|---|---|---|---|",
        ]
        lines += [
            f"| {name} | {r.mlm_loss:.3f} | {r.unigram_entropy:.3f} | {r.mlm_accuracy:.3f} "
            f"| {r.unigram_accuracy:.3f} | {r.nsp_accuracy:.3f} | {r.nsp_accuracy_random:.3f} | 0.500 |"
            for name, r in pretraining.items()
        ]
        lines.append("")
    if classification:
        lines += [
            "| test set | texts | accuracy | majority | calibration error |",
            "|---|---|---|---|---|",
        ]
        lines += [
            f"| {name} | {r.examples:,} | {r.accuracy:.4f} | {r.majority_accuracy:.4f} "
            f"| {r.expected_calibration_error:.4f} |"
            for name, r in classification.items()
        ]
        lines.append("")
    return "\n".join(lines)


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


def _classification(recipe: Recipe, folder: Path) -> dict[str, ClassificationReport]:
    if not folder.is_dir():
        return {}
    checkpoint = load_checkpoint(folder)
    assert isinstance(checkpoint.model, BertForSequenceClassification)
    model = checkpoint.model.to(choose_device(recipe.device))
    return {
        text.name: evaluate_classification(model, text.batches())
        for text in read_test(recipe, checkpoint.tokenizer)
    }
