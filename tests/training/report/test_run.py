"""Reports of runs that have one model, the other, both or none."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from training.evaluate.baselines import Baseline
from training.evaluate.metrics import ClassificationReport, PretrainingReport
from training.evaluate.report import Report, SeedReport, evaluate, tables, to_json
from training.finetune.seeds import SeedResult, seed_folder

from model import Tokenizer, save_checkpoint
from tests.conftest import MakeCheckpoint
from tests.training.conftest import MakeRecipe
from training.errors import CorpusError, RunError
from training.export.run import export
from training.finetune.run import finetune, from_scratch_model
from training.finetune.task import classifier_from
from training.pretrain.run import new_model
from training.recipe import CorpusConfig

LINE = PretrainingReport(10, 100, 3.0, 0.4, 6.0, 0.1, None, None, {})
CLASSES = ClassificationReport(10, 0.9, 0.5, 0.3, 0.02, 0.01, [[5, 0], [1, 4]], [])


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


def test_plots_of_test_sets_that_are_not_in_the_report_are_gone(make_recipe: MakeRecipe) -> None:
    recipe = make_recipe()
    tokenizer = Tokenizer.load(recipe.folder / "tokenizer")
    model = classifier_from(new_model(recipe, tokenizer), recipe.finetune, 1)
    save_checkpoint(recipe.folder / "sentiment", model, tokenizer)
    test = recipe.finetune.test[0].model_copy(update={"name": "old-test"})
    evaluate(recipe.model_copy(update={"finetune": recipe.finetune.model_copy(update={"test": (test,)})}))
    evaluate(recipe)
    plots = sorted(file.name for file in recipe.folder.glob("*.png"))
    assert plots == ["confusion-reviews.png", "reliability-reviews.png"]
    (target,) = export(recipe)
    assert "old-test" not in (target / "README.md").read_text()


def test_exported_weights_are_evaluated_apart_from_the_run(make_recipe: MakeRecipe, tmp_path: Path) -> None:
    recipe = make_recipe("pretrain.tokens=500", "finetune.epochs=0.2")
    recipe = recipe.model_copy(
        update={"corpus": recipe.corpus.model_copy(update={"heldout": recipe.corpus.sources})}
    )
    tokenizer = Tokenizer.load(recipe.folder / "tokenizer")
    network = new_model(recipe, tokenizer)
    save_checkpoint(tmp_path / "pretrained", network, tokenizer)
    save_checkpoint(tmp_path / "sentiment", classifier_from(network, recipe.finetune, 1), tokenizer)
    text = evaluate(recipe, tmp_path)
    assert "| stories |" in text
    assert "| reviews | 20 |" in text
    assert (recipe.folder / "evaluation" / "report.json").is_file()
    assert not (recipe.folder / "report.json").exists()


def test_weights_are_evaluated_on_labelled_texts_alone(make_recipe: MakeRecipe, tmp_path: Path) -> None:
    recipe = make_recipe()
    tokenizer = Tokenizer.load(recipe.folder / "tokenizer")
    network = new_model(recipe, tokenizer)
    save_checkpoint(tmp_path / "pretrained", network, tokenizer)
    save_checkpoint(tmp_path / "sentiment", classifier_from(network, recipe.finetune, 1), tokenizer)
    text = evaluate(recipe.model_copy(update={"corpus": CorpusConfig()}), tmp_path)
    assert "| reviews | 20 |" in text
    assert "held-out" not in text


def test_a_classifier_of_other_labels_is_refused(make_recipe: MakeRecipe, sentiment: Path) -> None:
    recipe = make_recipe("finetune.labels={0='POSITIVE',1='NEGATIVE'}")
    (recipe.folder / "sentiment").symlink_to(sentiment)
    with pytest.raises(
        RunError, match=r"is a classifier of \['NEGATIVE', 'POSITIVE'\], but finetune.labels are"
    ):
        evaluate(recipe)


def test_weights_of_another_kind_are_refused(
    make_recipe: MakeRecipe, sentiment: Path, save_pretrained: MakeCheckpoint, tmp_path: Path
) -> None:
    recipe = make_recipe()
    (tmp_path / "pretrained").symlink_to(save_pretrained("no-nsp", next_sentence=False))
    with pytest.raises(RunError, match="is no checkpoint of masked LM with next sentence"):
        evaluate(recipe, tmp_path)
    (tmp_path / "pretrained").rename(tmp_path / "sentiment")
    with pytest.raises(RunError, match="is no classifier"):
        evaluate(recipe, tmp_path)


def test_heldout_text_in_another_vocabulary_is_refused(make_recipe: MakeRecipe, pretrained: Path) -> None:
    recipe = make_recipe()
    (recipe.folder / "pretrained").symlink_to(pretrained)
    with pytest.raises(CorpusError, match="made with another tokenizer; run prepare again"):
        evaluate(recipe)


def test_a_figure_that_cannot_be_is_null_and_a_dash() -> None:
    report = Report({"tweets": LINE}, {"reviews": CLASSES}, ["NEGATIVE", "POSITIVE"])
    assert json.loads(to_json(report))["pretraining"]["tweets"]["nsp_accuracy"] is None
    assert f"| tweets | {LINE.examples:,} | 3.000 | 6.000 | 0.400 | 0.100 | – | – | 0.500 |" in tables(report)


def test_every_figure_stands_beside_its_trivial_guess() -> None:
    text = tables(Report({"tweets": LINE}, {"reviews": CLASSES}, []))
    for guess in (
        "unigram entropy",
        "unigram guess",
        "coin",
        "majority",
        "TF-IDF",
        "naive Bayes",
        "without pretraining",
    ):
        assert guess in text


def test_tables_have_as_many_columns_everywhere() -> None:
    text = tables(Report({"tweets": LINE}, {"reviews": CLASSES}, []))
    for table in text.strip().split("\n\n"):
        assert len({line.count("|") for line in table.splitlines()}) == 1, table


def test_calibration_error_is_reported() -> None:
    assert "| 0.0200 | 0.0100 |" in tables(Report({}, {"reviews": CLASSES}, []))


def test_baselines_stand_in_the_row_of_their_test_set() -> None:
    bag = Baseline(100, 50, 1.0, 0.1, {"reviews": 0.8}, {"reviews": 0.85})
    text = tables(Report({}, {"reviews": CLASSES}, [], bag, {"reviews": 0.7}))
    assert "| reviews | 10 | 0.9000 | 0.5000 | 0.8000 | 0.8500 | 0.7000 |" in text


def test_several_seeds_are_reported_with_mean_and_spread() -> None:
    seeds = [
        SeedReport(SeedResult(1, 10, 0.8, 0.5), {"reviews": 0.7}),
        SeedReport(SeedResult(2, 20, 0.9, 0.4), {"reviews": 0.9}),
    ]
    report = Report({}, {"reviews": CLASSES}, [], seeds=seeds)
    assert "| 2 | 20 | 0.9000 | 0.9000 |" in tables(report)
    assert "| mean | | 0.8500 ± 0.0707 | 0.8000 ± 0.1414 |" in tables(report)
    assert json.loads(to_json(report))["seeds"][1]["result"]["dev_accuracy"] == 0.9


def test_seeds_and_the_network_without_pretraining_are_evaluated(make_recipe: MakeRecipe) -> None:
    recipe = make_recipe("finetune.seeds=[1, 2]", "finetune.from_scratch_baseline=true", "finetune.epochs=1")
    tokenizer = Tokenizer.load(recipe.folder / "tokenizer")
    save_checkpoint(recipe.folder / "pretrained", new_model(recipe, tokenizer), tokenizer)
    assert finetune(recipe)
    evaluate(recipe.model_copy(update={"finetune": recipe.finetune.model_copy(update={"seeds": ()})}))
    figures = json.loads((recipe.folder / "report.json").read_text())
    assert [seed["result"]["seed"] for seed in figures["seeds"]] == [1, 2]
    assert set(figures["from_scratch"]) == set(figures["bags"]["accuracy"]) == {"reviews"}
    assert (recipe.folder / "finetune-loss.png").is_file()


def test_the_network_without_pretraining_is_left_out_once_the_classifier_has_other_settings(
    make_recipe: MakeRecipe, caplog: pytest.LogCaptureFixture
) -> None:
    recipe = make_recipe("finetune.seeds=[2]", "finetune.from_scratch_baseline=true", "finetune.epochs=1")
    tokenizer = Tokenizer.load(recipe.folder / "tokenizer")
    save_checkpoint(recipe.folder / "pretrained", new_model(recipe, tokenizer), tokenizer)
    assert finetune(recipe)
    scratch = recipe.folder / "finetune" / "from-scratch"
    assert from_scratch_model(recipe) == scratch / "model"
    for epochs, comparable in ((2.0, False), (1.0, True)):
        shutil.rmtree(seed_folder(recipe, 2))
        changes = {"epochs": epochs, "from_scratch_baseline": False}
        again = recipe.model_copy(update={"finetune": recipe.finetune.model_copy(update=changes)})
        assert finetune(again)
        caplog.clear()
        evaluate(again)
        figures = json.loads((recipe.folder / "report.json").read_text())
        assert set(figures["from_scratch"]) == ({"reviews"} if comparable else set())
        assert ("finetune.from_scratch_baseline=true again" in caplog.text) is not comparable
