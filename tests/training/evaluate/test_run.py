"""`evaluate`: reports of runs that have one model, the other, both or none."""

from __future__ import annotations

import csv
import json
import logging
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from model import BertForSequenceClassification, Tokenizer, load_checkpoint, save_checkpoint
from tests.conftest import MakeCheckpoint
from tests.training.conftest import MakeRecipe
from tests.training.stages import made, put_network
from tests.training.texts import review, squeezed
from training.corpus.fingerprint import checkpoint_hash
from training.corpus.parts import Part
from training.corpus.reader import PreparedText
from training.errors import RunError
from training.evaluate.run import evaluate
from training.finetune.task import classifier_from
from training.pipeline import Pipeline
from training.pretrain.run import new_model
from training.recipe import CorpusConfig, Recipe, SourceConfig


def changed(recipe: Recipe, **changes: object) -> Recipe:
    return recipe.model_copy(update={"finetune": recipe.finetune.model_copy(update=changes)})


def save_models(recipe: Recipe, folder: Path | None = None, *names: str, **result: object) -> None:
    """Save checkpoints with new weights into a folder, or where the stages of the run leave theirs.

    Args:
        result: figures of each seed of the classifier on dev.
    """
    tokenizer, pipeline = Tokenizer.load(recipe.folder / "tokenizer"), Pipeline(recipe)
    network = new_model(recipe, tokenizer)
    models = {"pretrained": network, "classifier": classifier_from(network, recipe.finetune, 1)}
    if folder is not None:
        for name in names:
            save_checkpoint(folder / name, models[name], tokenizer)
        return
    if "pretrained" in names:
        put_network(pipeline.pretrain, network, tokenizer)
    for seed, stage in pipeline.seeds.items() if "classifier" in names else ():
        figures = {"seed": seed, "dev_score": None, "dev_loss": None, "dev_error": None} | result
        put_network(stage, models["classifier"], tokenizer, result=figures)


def evaluate_squeezed(recipe: Recipe, weights: Path | None = None) -> str:
    return squeezed(evaluate(Pipeline(recipe), weights))


def figures_of(recipe: Recipe) -> dict[str, Any]:
    figures: dict[str, Any] = json.loads((recipe.folder / "report.json").read_text())
    return figures


# --- which models --------------------------------------------------------------------------------------------------


def test_evaluate_of_a_pretrained_network_alone(make_recipe: MakeRecipe, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    recipe = make_recipe()
    save_models(recipe, None, "pretrained")
    text = evaluate_squeezed(recipe)
    assert "| stories |" in text
    assert "test set" not in text
    figures = figures_of(recipe)
    assert figures["classification"] == {}
    weights = checkpoint_hash(recipe.folder / "pretrained")
    assert figures["weights"] == {"pretrained": weights}
    assert f"report in {recipe.folder / 'report.md'}" in caplog.messages[-1]


def test_evaluate_of_a_classifier_alone_and_its_plots(make_recipe: MakeRecipe) -> None:
    recipe = make_recipe()
    old = recipe.finetune.test[0].model_copy(update={"name": "old-test"})
    other = changed(recipe, test=(old,))
    save_models(other, None, "classifier")
    evaluate(Pipeline(other))
    save_models(recipe, None, "classifier")
    text = evaluate_squeezed(recipe)
    assert "masked-LM loss" not in text
    assert "| reviews | 20 |" in text
    figures = figures_of(recipe)
    assert (figures["seed"], figures["labels"]) == (1, ["NEGATIVE", "POSITIVE"])
    plots = sorted(file.name for file in recipe.folder.glob("*.png"))
    assert plots == ["classifier.png"]
    report = squeezed((recipe.folder / "report.md").read_text())
    body, serve = text.split("\nTo serve it:\n\n")
    assert report.startswith(body)
    assert report.endswith(serve)
    assert serve == f" BERT_SENTIMENT={recipe.folder / 'export' / 'classifier'} bert-serve\n"
    assert all(f"]({name})" in report for name in plots)


def test_evaluate_weights_of_another_folder_leaves_the_runs_report_alone(
    make_recipe: MakeRecipe, tmp_path: Path
) -> None:
    recipe = make_recipe()
    recipe = recipe.model_copy(update={"corpus": recipe.corpus.model_copy(update={"heldout": recipe.corpus.sources})})
    save_models(recipe, tmp_path, "pretrained", "classifier")
    text = evaluate_squeezed(recipe, tmp_path)
    assert "| stories |" in text
    assert "| reviews | 20 |" in text
    assert (recipe.folder / "evaluation" / "report.json").is_file()
    assert not (recipe.folder / "report.json").exists()


def test_evaluate_weights_on_labelled_texts_alone(make_recipe: MakeRecipe, tmp_path: Path) -> None:
    recipe = make_recipe()
    save_models(recipe, tmp_path, "pretrained", "classifier")
    text = evaluate_squeezed(recipe.model_copy(update={"corpus": CorpusConfig()}), tmp_path)
    assert "| reviews | 20 |" in text
    assert "held-out" not in text


def test_evaluate_of_a_classifier_with_other_labels_is_refused(
    make_recipe: MakeRecipe, sentiment: Path, tmp_path: Path
) -> None:
    (tmp_path / "classifier").symlink_to(sentiment)
    with pytest.raises(RunError, match=r"has the labels \['NEGATIVE', 'POSITIVE'\], but finetune.labels are"):
        evaluate(Pipeline(make_recipe("finetune.labels={0='BAD',1='GOOD'}")), tmp_path)


def test_evaluate_weights_that_fit_in_part_gives_their_figures_and_says_why_not_the_others(
    make_recipe: MakeRecipe, sentiment: Path, tmp_path: Path
) -> None:
    recipe = make_recipe("finetune.labels={0='BAD',1='GOOD'}")
    save_models(recipe, tmp_path, "pretrained")
    (tmp_path / "classifier").symlink_to(sentiment)
    text = evaluate_squeezed(recipe, tmp_path)
    assert "| stories |" in text
    reason = f"{sentiment} has the labels ['NEGATIVE', 'POSITIVE'], but finetune.labels are"
    assert f"**classifier is not evaluated: {reason} ['BAD', 'GOOD']; if" in text
    figures = json.loads((recipe.folder / "evaluation" / "report.json").read_text())
    assert list(figures["weights"]) == ["pretrained"]
    assert figures["classification"] == {}


def test_evaluate_of_weights_of_another_kind_is_refused(
    make_recipe: MakeRecipe, save_pretrained: MakeCheckpoint, tmp_path: Path
) -> None:
    recipe = make_recipe()
    (tmp_path / "pretrained").symlink_to(save_pretrained("no-nsp", next_sentence=False))
    with pytest.raises(RunError, match="is not a checkpoint with masked-LM and next-sentence heads"):
        evaluate(Pipeline(recipe), tmp_path)


def test_evaluate_leaves_out_a_test_source_without_a_label_of_the_recipe(
    make_recipe: MakeRecipe, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "hidden.jsonl").write_text('{"text": "good", "label": -1}\n')
    hidden = SourceConfig(path=str(tmp_path / "hidden.jsonl"), label="label")
    recipe = make_recipe()
    recipe = changed(recipe, test=(*recipe.finetune.test, hidden), labels=recipe.finetune.labels | {"-1": ""})
    save_models(recipe, None, "classifier")
    text = evaluate_squeezed(recipe)
    assert "| reviews | 20 |" in text
    assert "hidden is not evaluated: finetune.labels leaves out all of its texts" in caplog.text
    assert "hidden" not in text


def test_evaluate_without_the_texts_says_what_is_missing(
    make_recipe: MakeRecipe, caplog: pytest.LogCaptureFixture
) -> None:
    recipe = make_recipe()
    save_models(recipe, None, "classifier")
    assert made(recipe, "prepare")
    (text,) = (recipe.folder / "labelled").glob("000000/texts.jsonl.gz")
    text.unlink()
    evaluate(Pipeline(recipe))
    assert "classifier is not evaluated: " in caplog.text
    assert "texts.jsonl.gz is missing; run evaluate where its test texts are" in caplog.text


def test_evaluate_without_a_test_source_reports_on_dev_and_says_so(make_recipe: MakeRecipe) -> None:
    recipe = changed(make_recipe(), test=())
    save_models(recipe, None, "classifier")
    text = evaluate_squeezed(recipe)
    assert "| reviews (dev) | " in text
    assert " 0 to test, so these figures are those of dev, which chose the seed and the calibration." in text
    assert (recipe.folder / "classifier.png").is_file()


def test_evaluate_without_a_test_source_reports_on_the_part_that_is_held_out(
    make_recipe: MakeRecipe,
) -> None:
    recipe = changed(make_recipe(), test=(), test_fraction=0.25)
    save_models(recipe, None, "classifier")
    assert made(recipe, "prepare")
    parts = PreparedText(Pipeline(recipe).labelled.folder).column("parts")
    tested = int((parts == Part.TEST).sum())
    assert 10 <= tested <= 30
    text = evaluate_squeezed(recipe)
    assert f"| reviews | {tested} |" in text
    assert f", {tested} to test, held out by hash, the same share of each label." in text
    for other in (changed(recipe, test_fraction=0.5), changed(recipe, test_fraction=0.0)):
        with pytest.raises(RunError, match=r"has no (pretrain|finetune) of these settings"):
            evaluate(Pipeline(other))


def test_evaluate_weights_prepares_heldout_text_only_and_reuses_the_baselines(
    make_recipe: MakeRecipe, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    recipe = make_recipe()
    save_models(recipe, tmp_path, "pretrained", "classifier")
    save_models(recipe, None, "classifier")
    evaluate(Pipeline(recipe))
    caplog.clear()
    evaluate(Pipeline(recipe), tmp_path)
    assert not any(line.startswith("bag of words") for line in caplog.messages)
    (heldout,) = recipe.folder.glob("stages/heldout-*")
    assert {shard.use for shard in PreparedText(heldout).shards} == {"heldout"}
    assert len(list(recipe.folder.glob("stages/labelled-*"))) == 1


@pytest.mark.parametrize("folder", ["nowhere", "pretrained"])
def test_evaluate_weights_of_a_folder_without_models_is_refused(
    make_recipe: MakeRecipe, tmp_path: Path, folder: str
) -> None:
    recipe = make_recipe()
    save_models(recipe, tmp_path, "pretrained")
    with pytest.raises(RunError, match=rf"{folder}: the folder must hold checkpoint directories, as model/weights"):
        evaluate(Pipeline(recipe), tmp_path / folder)


def test_evaluate_weights_with_the_labels_in_another_order_has_the_same_figures(
    make_recipe: MakeRecipe, tmp_path: Path
) -> None:
    recipe = make_recipe()
    save_models(recipe, tmp_path, "classifier")
    straight = evaluate(Pipeline(recipe), tmp_path)
    loaded = load_checkpoint(tmp_path / "classifier")
    assert isinstance(loaded.model, BertForSequenceClassification)
    turned = BertForSequenceClassification(loaded.config.replace(id2label=dict(enumerate(loaded.config.labels[::-1]))))
    turned.load_state_dict(loaded.model.state_dict())
    for parameter in (turned.classifier.weight, turned.classifier.bias):
        parameter.data = parameter.data.flip(0)
    save_checkpoint(tmp_path / "classifier", turned, loaded.tokenizer)
    assert evaluate(Pipeline(recipe), tmp_path) == straight


# --- what the classifier was trained on ---------------------------------------------------------------------------


def test_evaluate_on_texts_that_the_classifier_may_have_been_trained_on_is_refused(
    make_recipe: MakeRecipe, tmp_path: Path
) -> None:
    own = tmp_path / "own.jsonl"
    recipe = make_recipe()
    shutil.copy(recipe.data / "test.jsonl", own)
    recipe = changed(recipe, test=(*recipe.finetune.test, SourceConfig(path=str(own), label="label")))
    save_models(recipe, None, "classifier")
    assert "| own | 20 |" in evaluate_squeezed(recipe)
    for other in (
        changed(recipe, test=(), dev_fraction=0.5),
        changed(recipe, test=(*recipe.finetune.test, recipe.finetune.train[0])),
    ):
        with pytest.raises(RunError, match="has no finetune of these settings; run finetune first"):
            evaluate(Pipeline(other))
    own.write_text((recipe.data / "reviews.jsonl").read_text())
    with pytest.raises(RunError, match="has no finetune of these settings; run finetune first"):
        evaluate(Pipeline(recipe))


def test_evaluate_of_a_classifier_without_any_text_says_so(
    make_recipe: MakeRecipe, caplog: pytest.LogCaptureFixture
) -> None:
    recipe = changed(make_recipe(), test=(), dev_fraction=0.0)
    save_models(recipe, None, "classifier")
    evaluate(Pipeline(recipe))
    assert "there is nothing to evaluate the classifier on" in caplog.text


def test_evaluate_weights_of_another_run_need_not_have_its_settings(make_recipe: MakeRecipe, tmp_path: Path) -> None:
    recipe = make_recipe()
    save_models(recipe, tmp_path, "classifier")
    assert "| reviews (dev) |" in evaluate_squeezed(changed(recipe, test=(), dev_fraction=0.5), tmp_path)


# --- domains, readings, seeds --------------------------------------------------------------------------------------


def test_evaluate_of_domains_and_readings_and_seeds(make_recipe: MakeRecipe, tmp_path: Path) -> None:
    rng = random.Random(2)
    rows = [
        {
            "title": "A review." if i < 130 else "",
            "text": review(rng, i % 2 == 1),
            "label": i % 2,
            "shop": "book" if i < 120 else "car",
        }
        for i in range(140)
    ]
    (tmp_path / "shops.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = SourceConfig(
        path=str(tmp_path / "shops.jsonl"), text=("title", "text"), read="both", label="label", by="shop"
    )
    recipe = changed(make_recipe(), test=(source,), seeds=(1, 2))
    save_models(recipe, None, "classifier", dev_score=0.5, dev_loss=0.7, dev_error=0.02)
    text = evaluate_squeezed(recipe)
    for name, texts in (("shops", 140), ("shops (pair)", 130)):
        assert f"| {name} | {texts} |" in text, "only texts with a title are pairs"
        assert f"{name}: mean balanced accuracy over 1 domains with 50 texts of each label 0." in text
    assert "worst domain book, 0." in text, "the other has too few texts to be the worst"
    assert text.count(" of TF-IDF + linear SVM;") == 2
    assert "| seed | balanced accuracy on dev | shops | shops, mean over 1 domains | shops (pair) |" in text
    assert "| 1 | 0.5000 ± 0.0200 | 0." in text
    assert "| mean | 0.5000 ± 0.0000 |" in text


def test_evaluate_counts_a_repeated_text_once_and_predicts_all(make_recipe: MakeRecipe, tmp_path: Path) -> None:
    recipe = make_recipe()
    rows = [json.loads(line) for line in (recipe.data / "test.jsonl").read_text().splitlines()]
    (tmp_path / "twice.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in [*rows, *rows, rows[0] | {"label": 1 - rows[0]["label"]}])
    )
    twice = SourceConfig(path=str(tmp_path / "twice.jsonl"), label="label")
    (tmp_path / "files" / "1").mkdir(parents=True)
    (tmp_path / "files" / "1" / "a, b.txt").write_text(rows[1]["text"])
    files = SourceConfig(name="files", path=str(tmp_path / "files"), format="document", label="folder")
    recipe = changed(recipe, test=(*recipe.finetune.test, twice, files))
    save_models(recipe, None, "classifier")
    text = evaluate_squeezed(recipe)
    once, again = (figures_of(recipe)["classification"][name] for name in ("reviews", "twice"))
    assert once["figures"] == again["figures"], "of the bag and of the constant answer, too"
    assert f"{again['texts']} | this model" in text
    assert "twice: 21 repeats of texts do not count; 1 have another label." in text

    with (recipe.folder / "predictions.csv").open(newline="", encoding="utf-8") as stream:
        predictions = list(csv.DictReader(stream))
    tested = [row for row in predictions if row["file"].endswith("twice.jsonl")]
    assert [int(row["line"]) for row in tested] == list(range(1, 42))
    assert [row["label"] for row in tested[:20]] == [["NEGATIVE", "POSITIVE"][row["label"]] for row in rows]
    for answer, model in (("answer", "this model"), ("bag_answer", "TF-IDF + linear SVM")):
        right = [row["label"] == row[answer] for row in tested[:20]]
        assert sum(right) / 20 == again["figures"][model]["accuracy"]["value"]
    assert [row["line"] for row in predictions if row["file"].endswith("a, b.txt")] == [""]
    assert {row["part"] for row in predictions} == {"dev", "test"}
    assert all(0.5 <= float(row["score"]) <= 1 for row in predictions)
