"""The command line: text in, directories out that others open; errors in one line."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path

import httpx
import pytest
import torch
from transformers import AutoModelForPreTraining, AutoModelForSequenceClassification, AutoTokenizer

from model import BertForPreTraining, BertForSequenceClassification, PackedBatch, load_checkpoint
from tests.docs.answers import service
from tests.training.commands import PATIENCE, environment_of, finish, set_ranks, start
from tests.training.conftest import MakeRecipe
from tests.training.texts import squeezed
from training import command as command_line
from training.command import main
from training.pipeline import Pipeline
from training.recipe import load_recipe

ROOT = Path(__file__).parents[2]
SENTENCES = ("The old sailor found a green boat.", "It was brilliant.")


@pytest.fixture(scope="module")
def trained(recipe_file: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of `bert-train all`, from text to exported directories."""
    run = tmp_path_factory.mktemp("all")
    train_all(run, recipe_file, data)
    return run / "tiny"


def train_all(run: Path, recipe_file: Path, data: Path) -> None:
    torch.set_num_threads(1)
    places = ["--data", str(data), f"run={run}"]
    changes = ["pretrain.tokens=5120", "finetune.passes=0.5"]
    with redirect_stdout(io.StringIO()) as printed:
        assert main(["all", str(recipe_file), *places, *changes]) == 0
    assert "| stories " in printed.getvalue()


# --- all -----------------------------------------------------------------------------------------------------------


def test_all_pretrained_directory_has_equal_logits_in_transformers(trained: Path) -> None:
    directory = trained / "export" / "pretrained"
    ours = load_checkpoint(directory, dtype=torch.float32)
    assert isinstance(ours.model, BertForPreTraining)
    theirs = AutoModelForPreTraining.from_pretrained(directory, dtype=torch.float32).eval()
    encoded = AutoTokenizer.from_pretrained(directory)(*SENTENCES, return_tensors="pt")
    encoding = ours.tokenizer.encode(*SENTENCES)
    assert encoding.input_ids == encoded["input_ids"][0].tolist()
    assert encoding.token_type_ids == encoded["token_type_ids"][0].tolist()
    with torch.no_grad():
        wanted = theirs(**encoded)
        hidden = ours.model.eval()(PackedBatch.pack([encoding.input_ids], [encoding.token_type_ids]))
        assert ours.model.next_sentence is not None
        torch.testing.assert_close(ours.model.masked_lm(hidden), wanted.prediction_logits[0])
        torch.testing.assert_close(ours.model.next_sentence(hidden[:1]), wanted.seq_relationship_logits)


def test_all_classifier_has_equal_logits_in_transformers_and_is_served(trained: Path) -> None:
    directory = trained / "export" / "classifier"
    ours = load_checkpoint(directory, dtype=torch.float32)
    theirs = AutoModelForSequenceClassification.from_pretrained(directory, dtype=torch.float32).eval()
    encoded = AutoTokenizer.from_pretrained(directory)(SENTENCES[1], return_tensors="pt")
    batch = PackedBatch.pack([ours.tokenizer.encode(SENTENCES[1]).input_ids], outputs=[[0]])
    assert isinstance(ours.model, BertForSequenceClassification)
    with torch.no_grad():
        logits = ours.model.eval()(batch)
        torch.testing.assert_close(logits, theirs(**encoded).logits)
    assert theirs.config.id2label == {0: "NEGATIVE", 1: "POSITIVE"}
    settings = {"BERT_PRETRAINED": str(trained / "export" / "pretrained"), "BERT_SENTIMENT": str(directory)}
    with service(**settings) as client:
        answer = client.post("/sentiment", json={"inputs": [SENTENCES[1]]})
        assert answer.status_code == httpx.codes.OK, answer.text
        scores = {entry["label"]: entry["score"] for entry in answer.json()["results"][0]["predictions"]}
    assert scores == pytest.approx(dict(zip(ours.config.labels, logits.softmax(1)[0].tolist(), strict=True)), abs=0.01)


def test_all_repeated_trains_nothing_again(trained: Path, recipe_file: Path, data: Path) -> None:
    def made() -> dict[Path, bytes]:
        return {file: file.read_bytes() for name in ("log.jsonl", "*.safetensors") for file in trained.rglob(name)}

    before = made()
    train_all(trained.parent, recipe_file, data)
    assert len(before) >= 6
    assert made() == before


def test_all_goes_from_prepared_text_to_report_and_export_where_the_text_is_not(
    recipe_file: Path, data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recipe = tmp_path / "soft.toml"
    recipe.write_text(recipe_file.read_text() + "\n[soft_labels]\nfolds = 2\n")
    places = [str(recipe), "--data", str(data), f"run={tmp_path / 'here'}"]
    for command in ("tokenizer", "prepare"):
        assert main([command, *places]) == 0
    (tmp_path / "here").rename(tmp_path / "there")
    places = [str(recipe), "--data", str(tmp_path / "nothing"), f"run={tmp_path / 'there'}"]
    changes = ["pretrain.tokens=5120", "finetune.passes=0.5"]
    with redirect_stdout(io.StringIO()) as printed:
        assert main(["all", *places, *changes]) == 0
    assert "reviews.jsonl: no such file" in caplog.text
    assert "| stories " in printed.getvalue(), "held-out text is prepared"
    assert "| reviews " in printed.getvalue(), "labelled texts are prepared"
    for name in ("pretrained", "classifier"):
        load_checkpoint(tmp_path / "there" / "tiny" / "export" / name)


def test_all_from_a_pretrained_network_pretrains_no_other(
    make_recipe: MakeRecipe, recipe_file: Path, pretrained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = make_recipe()
    places = [f"data={recipe.data}", f"run={recipe.run}", "name=alone"]
    changes = [f"finetune.pretrained={pretrained}", "finetune.passes=0.2"]
    assert main(["all", str(recipe_file), *places, *changes]) == 0
    assert "| reviews | 20 |" in squeezed(capsys.readouterr().out)
    assert [path.name for path in (recipe.run / "alone" / "export").iterdir()] == ["classifier"]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ('finetune.train=[{path="misspelt.jsonl",label="label"}]', "misspelt.jsonl: no such file"),
        ('finetune.test=[{path="test.jsonl"}]', "test: fine-tuning needs the source's `label`"),
        ('finetune.labels={"0"="BAD","9"="GOOD"}', "label '1' is not in finetune.labels ('0', '9')"),
        ('finetune.labels={"0"="BAD","1"="GOOD","9"="FINE"}', "finetune.train has no text labelled FINE"),
        ("soft_labels.teacher=nowhere", "nowhere"),
        ("finetune.pretrained=nowhere", "finetune.pretrained: nowhere is missing"),
    ],
)
def test_all_finds_mistakes_before_it_trains(
    make_recipe: MakeRecipe,
    recipe_file: Path,
    capsys: pytest.CaptureFixture[str],
    override: str,
    message: str,
) -> None:
    recipe = make_recipe()
    assert main(["all", str(recipe_file), f"data={recipe.data}", f"run={recipe.run}", override]) == 1
    assert message in capsys.readouterr().err
    assert not list(recipe.folder.glob("stages/pretrain-*"))


def test_all_refuses_to_overwrite_other_files_before_it_trains(
    make_recipe: MakeRecipe, recipe_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = make_recipe()
    (tmp_path / "pretrained").mkdir()
    (tmp_path / "pretrained" / "thesis.txt").write_text("mine")
    places = [f"data={recipe.data}", f"run={recipe.run}", f"export.folder={tmp_path}"]
    assert main(["all", str(recipe_file), *places]) == 1
    assert "holds other files than a checkpoint's, which would be deleted: thesis.txt" in capsys.readouterr().err
    assert not list(recipe.folder.glob("stages/pretrain-*"))


def test_all_without_symbolic_links_makes_what_further_runs_start_from(
    without_links: None,
    recipe_file: Path,
    data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    run = tmp_path / "tiny"
    places = [str(recipe_file), f"data={data}", f"run={tmp_path}", "pretrain.tokens=2560", "finetune.passes=0.5"]
    assert main(["all", *places]) == 0
    assert len([message for message in caplog.messages if "no symbolic links here" in message]) == 1
    for name in ("pretrained", "classifier"):
        load_checkpoint(run / "export" / name)

    larger = ["pretrain.tokens=5120"]
    assert main(["pretrain", *places, *larger]) == 0

    networks = [f"finetune.pretrained={run / 'pretrained'}", f"soft_labels.teacher={run / 'classifier'}"]
    assert main(["all", *places, "name=next", *networks]) == 0
    made = json.loads(next(tmp_path.glob("next/stages/finetune-*/recipe.json")).read_text())
    assert re.fullmatch(rf"{run}/stages/pretrain-\w+/model", made["finetune"]["pretrained"])
    assert main(["evaluate", *places, "--weights", str(run)]) == 0
    assert "| stories " in capsys.readouterr().out

    start = f"pretrain.start={run / 'classifier'}"
    assert [main([command, *places, "name=third", start]) for command in ("tokenizer", "prepare", "pretrain")] == [
        0,
        0,
        1,
    ]
    assert re.search(rf"{run}/stages/finetune-\w+/model", capsys.readouterr().err), "the message has the real folder"
    assert main(["pretrain", *places, f"pretrain.start={run / 'pretrained'}"]) == 1
    assert re.search(rf"name {run}/stages/pretrain-\w+/model, or give", capsys.readouterr().err)

    assert main(["clean", *places, *larger]) == 0
    assert not (run / "classifier").exists(), "the classifier of the smaller budget is removed"
    assert (run / "pretrained").read_text().startswith("stages/pretrain-")


# --- arguments and exit codes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["pretrain", "nothing"], "no such recipe"),
        (["pretrain", "quick", "pretrain.steps=3"], "pretrain.steps"),
        (["pretrain", "quick", "pretrain"], "not of the form key=value"),
        (["pretrain", "quick", "data=nowhere"], "no such file"),
    ],
)
def test_command_line_mistake_is_one_clear_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 1
    assert_one_line(capsys.readouterr().err, message)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("prepare", "tiny has no tokenizer of these settings; run tokenizer first"),
        ("pretrain", "tiny has no tokenizer of these settings; run tokenizer first"),
        ("inspect", "tiny has no corpus of these settings; run prepare first"),
        ("soft-labels", "tiny has no tokenizer of these settings; run tokenizer first"),
        ("finetune", "tiny has no tokenizer of these settings; run tokenizer first"),
        ("evaluate", "tiny has no finetune of these settings; run finetune first"),
        ("export", "tiny has no finetune of these settings; run finetune first"),
    ],
)
def test_command_line_names_the_command_that_makes_what_is_missing(
    command: str, message: str, recipe_file: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = ["--data", str(data), f"run={tmp_path}"]
    assert main([command, str(recipe_file), *places, *["soft_labels.weight=0.5"] * (command == "soft-labels")]) == 1
    assert_one_line(capsys.readouterr().err, message)


def test_command_line_says_which_settings_another_result_has(
    make_recipe: MakeRecipe, recipe_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = make_recipe()
    places = [f"data={recipe.data}", f"run={recipe.run}"]
    assert main(["pretrain", str(recipe_file), *places, "corpus.heldout_fraction=0.2"]) == 1
    assert_one_line(capsys.readouterr().err, " has heldout_fraction 0.1 (now 0.2); run prepare first")


@pytest.mark.parametrize("lacking", ["bert_tables", "sklearn"])
def test_command_line_without_the_packages_of_training_says_what_to_install(lacking: str, tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    table.write_text("text,label\n" + "".join(f"a good film {i},good\na bad film {i},bad\n" for i in range(30)))
    program = f"import sys; sys.modules['{lacking}'] = None; from training.__main__ import main; sys.exit(main())"
    command = [sys.executable, "-c", program, "classify", str(table), "--output", str(tmp_path / "out")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert_one_line(done.stderr.splitlines()[-1] + "\n", "install the packages of training: bert-service[train]")


def assert_one_line(errors: str, message: str) -> None:
    assert errors.startswith("error: ")
    assert message in errors
    assert len(errors.splitlines()) == 1


def test_command_line_options_and_overrides_come_in_any_order(
    recipe_file: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in (
        ["--data", str(data), f"run={tmp_path}"],
        [f"run={tmp_path}", "--data", str(data), "seed=2"],
    ):
        assert main(["export", str(recipe_file), *arguments]) == 1
        assert f"{tmp_path}/tiny has no pretrain" in capsys.readouterr().err


def test_command_line_unknown_option_is_refused() -> None:
    with pytest.raises(SystemExit) as error:
        main(["export", "quick", "--fast"])
    assert error.value.code == 2


def test_command_line_inspect_prints_examples(
    make_recipe: MakeRecipe, recipe_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = make_recipe()
    places = [f"data={recipe.data}", f"run={recipe.run}"]
    assert main(["inspect", str(recipe_file), "--examples", "2", *places]) == 0
    assert capsys.readouterr().out.count(" [CLS] ") == 2


def test_command_line_tokenizer_and_prepare_end_with_what_they_made(
    recipe_file: Path, data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    places = ["--data", str(data), f"run={tmp_path}"]
    assert main(["tokenizer", str(recipe_file), *places]) == 0
    vocabulary = rf"vocabulary of \d+ pieces in {tmp_path}/tiny/stages/tokenizer-\w+"
    assert re.fullmatch(vocabulary, caplog.messages[-2])
    arguments = f"{recipe_file} --data {data} run={tmp_path}"
    assert caplog.messages[-1] == f"next: bert-train prepare {arguments}"
    assert main(["prepare", str(recipe_file), *places]) == 0
    corpus = rf"\d+ documents with [\d,]+ tokens in {tmp_path}/tiny/stages/corpus-\w+, unigram entropy \d.\d\d nats"
    assert any(re.fullmatch(corpus, message) for message in caplog.messages)
    assert (tmp_path / "tiny" / "labelled" / "parts.npy").is_file()
    assert caplog.messages[-1] == f"next: bert-train pretrain {arguments}"


@pytest.mark.parametrize(
    ("command", "overrides", "following"),
    [
        ("pretrain", [], "finetune"),
        ("pretrain", ["finetune.train=[]"], "evaluate"),
        ("pretrain", ["soft_labels.teacher=large"], "soft-labels"),
        ("evaluate", [], "export"),
    ],
)
def test_command_line_names_the_next_stage_of_the_recipe(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    command: str,
    overrides: list[str],
    following: str,
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setitem(command_line.COMMANDS, command, (lambda _pipeline, **_options: None, ""))
    assert main([command, "quick", *overrides]) == 0
    assert caplog.messages[-1].startswith(f"next: bert-train {following} quick")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_command_line_signal_while_preparing_says_how_to_continue(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: signal.Signals
) -> None:
    def interrupted(_pipeline: Pipeline) -> bool:
        signal.raise_signal(number)
        return True

    monkeypatch.setitem(command_line.COMMANDS, "prepare", (interrupted, ""))
    assert main(["prepare", "quick", "run=/no where"]) == 130
    assert "to continue: bert-train prepare quick 'run=/no where'" in capsys.readouterr().err


def test_command_line_in_the_environment_of_a_broken_launcher_is_one_clear_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    set_ranks(monkeypatch, {"RANK": "0"})
    assert main(["list", "quick"]) == 1
    assert_one_line(capsys.readouterr().err, "error: the environment variable ")


@pytest.mark.parametrize("command", ["tokenizer", "prepare", "soft-labels", "evaluate", "export", "all"])
def test_command_line_torchrun_is_refused_for_commands_of_one_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    set_ranks(monkeypatch, environment_of(0, 2))
    assert main([command, "quick"]) == 1
    assert f"{command} is for one process; torchrun is for pretrain, finetune" in capsys.readouterr().err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_command_line_full_disk_while_logging_is_one_clear_line(
    make_recipe: MakeRecipe, recipe_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = make_recipe()
    folder = Pipeline(recipe).pretrain.folder
    folder.mkdir()
    (folder / "log.jsonl").symlink_to("/dev/full")
    assert main(["pretrain", str(recipe_file), f"data={recipe.data}", f"run={recipe.run}"]) == 1
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "error: " in line]
    assert re.search(r"No space left on device: '.*log\.jsonl'; free some space on its disk$", line)


# --- the console ---------------------------------------------------------------------------------------------------

ENDLESS = "pretrain.tokens=1_000_000_000"


def until_logged(folder: Path) -> None:
    """Wait until a line with means is in the log of a training."""
    log, ends = folder / "log.jsonl", time.monotonic() + PATIENCE
    while not (log.is_file() and '"train"' in log.read_text()):
        assert time.monotonic() < ends
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("opened", "number"), [(os.pipe, signal.SIGINT), (os.openpty, signal.SIGHUP)], ids=["pipe", "terminal"]
)
def test_console_that_is_closed_loses_no_training(
    make_recipe: MakeRecipe, recipe_file: Path, opened: Callable[[], tuple[int, int]], number: signal.Signals
) -> None:
    recipe = make_recipe()
    folder = Pipeline(load_recipe(str(recipe_file), [*recipe.overrides, ENDLESS])).pretrain.folder
    reader, console = opened()
    process = start("pretrain", str(recipe_file), *recipe.overrides, ENDLESS, console=console)
    os.close(console)
    until_logged(folder)
    os.close(reader)
    process.send_signal(number)
    assert finish(process)[0] == 130
    (state,) = folder.glob("state-*.pt")
    step = json.loads((folder / "log.jsonl").read_text().splitlines()[-1])["step"]
    assert state.name == f"state-{step:09d}.pt"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_console_on_a_full_disk_loses_no_training(make_recipe: MakeRecipe, recipe_file: Path) -> None:
    recipe = make_recipe()
    with Path("/dev/full").open("w") as full:
        buffered = {"PYTHONUNBUFFERED": ""}  # buffered text is written once more at the end
        arguments = "pretrain", str(recipe_file), *recipe.overrides, "pretrain.tokens=2560"
        process = start(*arguments, environment=buffered, console=full.fileno())
    assert finish(process)[0] == 0
    load_checkpoint(recipe.folder / "pretrained")


def test_console_escapes_letters_that_it_cannot_show(recipe_file: Path, data: Path, tmp_path: Path) -> None:
    places = f"data={data}", f"run={tmp_path / 'läufe'}"
    process = start("list", str(recipe_file), *places, environment={"PYTHONIOENCODING": "ascii"})
    status, out, errors = finish(process)
    assert (status, errors) == (0, "")
    assert out.count(r"l\xe4ufe/tiny/stages/") == 6
