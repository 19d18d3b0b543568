"""The command line: text in, directories out that others open; errors in one line."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForPreTraining, AutoModelForSequenceClassification, AutoTokenizer

from model import BertForPreTraining, PackedBatch, load_checkpoint
from tests.training.commands import finish, start
from tests.training.conftest import MakeRecipe
from training import __main__ as command_line
from training.__main__ import main
from training.recipe import Recipe

SENTENCES = ("The old sailor found a green boat.", "It was brilliant.")


@pytest.fixture(scope="module")
def trained(recipe_file: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of `python -m training all`, from text to exported directories."""
    run = tmp_path_factory.mktemp("all")
    places = ["--data", str(data), f"run={run}", "export.dtype=float32"]
    status, out, errors = finish(start("all", str(recipe_file), *places))
    assert status == 0, errors
    assert "| stories |" in out
    return run / "tiny"


def test_transformers_opens_the_pretrained_directory_with_equal_logits(trained: Path) -> None:
    directory = trained / "export" / "pretrained"
    ours = load_checkpoint(directory)
    assert isinstance(ours.model, BertForPreTraining)
    theirs = AutoModelForPreTraining.from_pretrained(directory).eval()
    encoded = AutoTokenizer.from_pretrained(directory)(*SENTENCES, return_tensors="pt")
    encoding = ours.tokenizer.encode(*SENTENCES)
    assert encoding.input_ids == encoded["input_ids"][0].tolist()
    assert encoding.token_type_ids == encoded["token_type_ids"][0].tolist()
    with torch.no_grad():
        wanted = theirs(**encoded)
        hidden = ours.model(PackedBatch.pack([encoding.input_ids], [encoding.token_type_ids]))
        assert ours.model.next_sentence is not None
        torch.testing.assert_close(ours.model.masked_lm(hidden), wanted.prediction_logits[0])
        torch.testing.assert_close(ours.model.next_sentence(hidden[:1]), wanted.seq_relationship_logits)


def test_transformers_opens_the_classifier_with_equal_logits(trained: Path) -> None:
    directory = trained / "export" / "sentiment"
    ours = load_checkpoint(directory)
    theirs = AutoModelForSequenceClassification.from_pretrained(directory).eval()
    encoded = AutoTokenizer.from_pretrained(directory)(SENTENCES[1], return_tensors="pt")
    batch = PackedBatch.pack([ours.tokenizer.encode(SENTENCES[1]).input_ids], outputs=[[0]])
    with torch.no_grad():
        torch.testing.assert_close(ours.model(batch), theirs(**encoded).logits)
    assert theirs.config.id2label == {0: "NEGATIVE", 1: "POSITIVE"}


def test_the_report_has_tables_figures_and_plots(trained: Path) -> None:
    figures = json.loads((trained / "report.json").read_text())
    assert figures["labels"] == ["NEGATIVE", "POSITIVE"]
    assert figures["classification"]["reviews"]["examples"] == 20
    report = (trained / "report.md").read_text()
    for name in ("pretrain-loss", "finetune-loss", "confusion-reviews", "reliability-reviews"):
        assert f"]({name}.png)" in report
        assert (trained / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_the_model_card_has_figures_settings_and_no_broken_links(trained: Path) -> None:
    card = (trained / "export" / "pretrained" / "README.md").read_text()
    assert card.startswith("---\npipeline_tag: fill-mask")
    assert "| stories |" in card
    assert '"learning_rate": 0.001' in card
    pictures = re.findall(r"\]\((\S+\.png)\)", card)
    assert pictures == ["pretrain-loss.png"]
    sentiment = (trained / "export" / "sentiment" / "README.md").read_text()
    pictures += re.findall(r"\]\((\S+\.png)\)", sentiment)
    assert pictures[1:] == ["finetune-loss.png", "reliability-reviews.png"]
    folders = [trained / "export" / name for name in ("pretrained", "sentiment", "sentiment")]
    assert all((folder / file).is_file() for folder, file in zip(folders, pictures, strict=True))
    assert "CPU thread" in card
    assert "CPU thread" in sentiment


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["pretrain", "nothing"], "no such recipe"),
        (["pretrain", "quick", "pretrain.steps=3"], "pretrain.steps"),
        (["pretrain", "quick", "pretrain"], "not of the form key=value"),
        (["pretrain", "quick", "run=/nowhere"], "holds neither tokenizer.json nor vocab.txt"),
        (["finetune", "quick", "run=/nowhere"], "/nowhere/quick/pretrained is missing; run pretrain first"),
        (["evaluate", "quick", "run=/nowhere"], "holds no trained model; run pretrain first"),
        (["export", "quick", "run=/nowhere"], "holds no trained model; run pretrain first"),
    ],
)
def test_a_mistake_is_one_clear_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 1
    errors = capsys.readouterr().err
    assert errors.startswith("error: ")
    assert message in errors
    assert len(errors.splitlines()) == 1


def test_overrides_may_follow_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "quick", "--data", "elsewhere", "run=/nowhere"]) == 1
    assert "/nowhere/quick" in capsys.readouterr().err


def test_all_finishes_without_labelled_texts(
    make_recipe: MakeRecipe, recipe_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = make_recipe()
    places = [f"data={recipe.data}", f"run={recipe.run}"]
    assert main(["all", str(recipe_file), *places, "pretrain.tokens=500", "finetune.train=[]"]) == 0
    assert "| stories |" in capsys.readouterr().out
    assert [path.name for path in (recipe.folder / "export").iterdir()] == ["pretrained"]
    assert "| stories |" in (recipe.folder / "export" / "pretrained" / "README.md").read_text()


def test_all_finishes_with_labelled_texts_alone(
    make_recipe: MakeRecipe, recipe_file: Path, pretrained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = make_recipe()
    places = [f"data={recipe.data}", f"run={recipe.run}", "name=alone"]
    start = [f"finetune.pretrained={pretrained}", "finetune.epochs=0.2"]
    assert main(["all", str(recipe_file), *places, *start, "corpus.sources=[]"]) == 0
    assert "| reviews | 20 |" in capsys.readouterr().out
    assert [path.name for path in (recipe.run / "alone" / "export").iterdir()] == ["sentiment"]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ('finetune.train=[{path="misspelt.jsonl",label="label"}]', "misspelt.jsonl: no such file"),
        ('finetune.test=[{path="test.jsonl"}]', "test: fine-tuning needs the source's `label`"),
        ('finetune.labels={"0"="BAD","9"="GOOD"}', "document 2: label '1' is none of '0', '9'"),
    ],
)
def test_all_finds_mistakes_in_labelled_texts_before_it_trains(
    make_recipe: MakeRecipe,
    recipe_file: Path,
    capsys: pytest.CaptureFixture[str],
    override: str,
    message: str,
) -> None:
    recipe = make_recipe()
    assert main(["all", str(recipe_file), f"data={recipe.data}", f"run={recipe.run}", override]) == 1
    assert message in capsys.readouterr().err
    assert not (recipe.folder / "pretrain").exists()


def test_all_refuses_to_overwrite_other_files_before_it_trains(
    make_recipe: MakeRecipe, recipe_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = make_recipe()
    places = [f"data={recipe.data}", f"run={recipe.run}", f"export.pretrained={recipe.run}"]
    assert main(["all", str(recipe_file), *places]) == 1
    assert "holds something else than a checkpoint, which would be deleted: tiny/" in capsys.readouterr().err
    assert not (recipe.folder / "pretrain").exists()


def test_threads_are_those_that_a_quota_leaves_to_each_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_line, "available_cpus", lambda: 6)
    for processes, wanted, threads in (("1", None, 6), ("2", None, 3), ("12", None, 1), ("2", 4, 4)):
        monkeypatch.setenv("WORLD_SIZE", processes)
        command_line._use_threads(wanted)
        assert torch.get_num_threads() == threads


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(SystemExit):
        main(["export", "quick", "--fast"])


@pytest.mark.parametrize("command", ["bench mini pretrain.optimizer=muon"])
def test_what_a_command_would_not_read_is_refused(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(command.split())
    name, *_, last = command.split()
    assert f"unrecognized arguments: {last}; {name} reads no recipe" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_preparing_says_how_to_continue(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: signal.Signals
) -> None:
    def interrupted(recipe: Recipe) -> bool:
        signal.raise_signal(number)
        return True

    monkeypatch.setitem(command_line.COMMANDS, "prepare", (interrupted, ""))
    assert main(["prepare", "quick", "run=/no where"]) == 130
    assert "to continue: python -m training prepare quick 'run=/no where'" in capsys.readouterr().err


def test_torchrun_is_refused_where_it_makes_no_sense(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["prepare", "quick"]) == 1
    assert "torchrun is for pretrain and finetune" in capsys.readouterr().err


def test_a_full_disk_while_logging_is_one_clear_line(
    make_recipe: MakeRecipe, recipe_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = make_recipe()
    (recipe.folder / "pretrain").mkdir()
    (recipe.folder / "pretrain" / "log.jsonl").symlink_to("/dev/full")
    assert main(["pretrain", str(recipe_file), f"data={recipe.data}", f"run={recipe.run}"]) == 1
    assert "error: " in capsys.readouterr().err
