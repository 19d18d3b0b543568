"""Reports of runs that have one model, the other, both or none."""

from __future__ import annotations

import json

import pytest

from model import Tokenizer, save_checkpoint
from tests.training.conftest import MakeRecipe
from training.errors import RunError
from training.evaluation import ClassificationReport, PretrainingReport
from training.finetune import classifier_from
from training.pretrain import new_model
from training.report import Report, evaluate, tables, to_json

LINE = PretrainingReport(10, 100, 3.0, 0.4, 6.0, 0.1, None, None, {})
CLASSES = ClassificationReport(10, 0.9, 0.5, 0.3, 0.02, [[5, 0], [1, 4]], [])


def test_a_run_without_models_names_the_remedy(make_recipe: MakeRecipe) -> None:
    with pytest.raises(RunError, match="run pretrain first"):
        evaluate(make_recipe())


def test_a_pretrained_model_alone_is_reported(make_recipe: MakeRecipe) -> None:
    recipe = make_recipe()
    tokenizer = Tokenizer.load(recipe.folder / "tokenizer")
    save_checkpoint(recipe.folder / "pretrained", new_model(recipe, tokenizer), tokenizer)
    text = evaluate(recipe)
    assert "masked-LM loss" in text
    assert "test set" not in text
    assert json.loads((recipe.folder / "report.json").read_text())["classification"] == {}


def test_a_classifier_alone_is_reported(make_recipe: MakeRecipe) -> None:
    recipe = make_recipe()
    tokenizer = Tokenizer.load(recipe.folder / "tokenizer")
    model = classifier_from(new_model(recipe, tokenizer), recipe.finetune, 1)
    save_checkpoint(recipe.folder / "sentiment", model, tokenizer)
    text = evaluate(recipe)
    assert "masked-LM loss" not in text
    assert "| reviews | 20 |" in text
    assert (recipe.folder / "confusion-reviews.png").is_file()


def test_a_figure_that_cannot_be_is_null_and_a_dash() -> None:
    report = Report({"tweets": LINE}, {"reviews": CLASSES}, ["NEGATIVE", "POSITIVE"])
    assert json.loads(to_json(report))["pretraining"]["tweets"]["nsp_accuracy"] is None
    assert "| tweets | 3.000 | 6.000 | 0.400 | 0.100 | – | – | 0.500 |" in tables(report)


def test_every_figure_stands_beside_its_trivial_guess() -> None:
    text = tables(Report({"tweets": LINE}, {"reviews": CLASSES}, []))
    for guess in ("unigram entropy", "unigram guess", "coin", "majority"):
        assert guess in text
