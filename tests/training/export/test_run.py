"""`export`: whole directories, compared, and other files left alone; model cards of the run that was trained."""

from __future__ import annotations

import json
import logging
import re
import shlex
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from model import Tokenizer, load_checkpoint
from model.heads import BertForSequenceClassification
from tests.training.commands import occupied
from tests.training.conftest import MakeRecipe
from tests.training.stages import made, put_network, save_new_network
from tests.training.texts import squeezed
from training.command import main
from training.errors import RunError
from training.export.model_card import _portable_recipe
from training.export.run import export
from training.pipeline import Pipeline
from training.pretrain.run import new_model
from training.recipe import Recipe, load_recipe, read_resolved
from training.runtime import checkpoint_dir
from training.runtime.checkpoint_dir import check_target, replacing, write_checkpoint_dir
from training.runtime.files import read_json, write_json
from training.stage import DONE

TRAINED = ("pretrain.tokens=2560", "finetune.seeds=[5, 6]", "finetune.passes=0.5", "device=cpu")


@pytest.fixture(scope="module")
def trained(make_recipe_in: MakeRecipe, tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    """A short run with overrides, evaluated; read only."""
    run = tmp_path_factory.mktemp("trained")
    recipe = make_recipe_in(run, *TRAINED)
    torch.set_num_threads(1)
    assert made(recipe, "pretrain", "finetune", "evaluate")
    return recipe


@pytest.fixture
def run(trained: Recipe, make_recipe: MakeRecipe) -> Recipe:
    """A copy of the trained run."""
    recipe = make_recipe(*TRAINED)
    shutil.rmtree(recipe.folder)
    shutil.copytree(trained.folder, recipe.folder, symlinks=True)
    return recipe


# --- directories ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("problem_type", [None, "regression"])
def test_checkpoint_dir_is_in_float16_but_for_numbers(
    tmp_path: Path, pretrained: Path, tokenizer: Tokenizer, problem_type: str | None
) -> None:
    checkpoint = load_checkpoint(pretrained)
    config = checkpoint.config.replace(id2label={0: "stars"}, problem_type="regression")
    model = BertForSequenceClassification(config) if problem_type else checkpoint.model
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "stale.png").touch()
    write_checkpoint_dir(tmp_path / "out", model, tokenizer)
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {torch.float32 if problem_type else torch.float16}
    assert not (tmp_path / "out" / "stale.png").exists()


def test_checkpoint_dir_that_is_read_back_differently_is_an_error(
    tmp_path: Path, pretrained: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(path: Path) -> object:
        loaded = load_checkpoint(path)
        next(loaded.model.parameters()).data.add_(1)
        return loaded

    monkeypatch.setattr(checkpoint_dir, "load_checkpoint", damaged)
    with pytest.raises(RunError, match=r"not what was written: bert\.embeddings.* changed on"):
        write_checkpoint_dir(tmp_path / "out", load_checkpoint(pretrained).model, tokenizer)


def test_replacing_an_older_checkpoint(tmp_path: Path, pretrained: Path) -> None:
    shutil.copytree(pretrained, tmp_path / "out")
    (tmp_path / "out" / "stale.png").touch()
    with replacing(tmp_path / "out") as folder:
        shutil.copytree(pretrained, folder)
        assert (tmp_path / "out" / "stale.png").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert not (tmp_path / "out" / "stale.png").exists()


@pytest.mark.parametrize("foreign", ["notes.txt", "data/thesis.txt", "README.md", "recipe.json"])
def test_replacing_a_directory_with_other_files_is_refused(tmp_path: Path, foreign: str) -> None:
    file = tmp_path / "out" / foreign
    file.parent.mkdir(parents=True)
    file.write_text("mine")
    message = rf"out holds other files than a checkpoint's.*: {foreign.split('/')[0]}.*move these"
    with pytest.raises(RunError, match=message), replacing(tmp_path / "out"):
        pytest.fail("the folder is asked for")
    assert file.read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_check_target_refuses_other_files_beside_a_checkpoint_and_a_file(tmp_path: Path, pretrained: Path) -> None:
    shutil.copytree(pretrained, tmp_path / "out")
    (tmp_path / "out" / "notes.txt").touch()
    with pytest.raises(RunError, match=r"deleted: notes\.txt; name another"):
        check_target(tmp_path / "out")
    with pytest.raises(RunError, match=r"notes\.txt is a file"):
        check_target(tmp_path / "out" / "notes.txt")


def test_replacing_that_is_interrupted_between_the_renames_keeps_the_old_files(
    tmp_path: Path, pretrained: Path
) -> None:
    shutil.copytree(pretrained, tmp_path / "out")
    (tmp_path / "out" / "old.png").touch()
    with pytest.raises(FileNotFoundError), replacing(tmp_path / "out"):
        pass  # a folder that is not made cannot take its place
    assert [file.name for file in tmp_path.iterdir()] == ["out"]
    assert (tmp_path / "out" / "old.png").exists()


def test_replacing_tidies_up_after_a_write_that_was_killed(tmp_path: Path, pretrained: Path) -> None:
    for folder in ("old", "checkpoint"):  # killed between the two renames
        shutil.copytree(pretrained, tmp_path / ".out.writing" / folder)
    (tmp_path / ".out.writing" / "old" / "foreign.txt").touch()
    (tmp_path / ".out-backup").mkdir()
    with occupied(tmp_path / ".out.writing"), pytest.raises(RunError, match="another process works in"):
        replacing(tmp_path / "out").__enter__()
    with pytest.raises(ValueError, match="x"), replacing(tmp_path / "out"):
        raise ValueError("x")
    assert sorted(file.name for file in tmp_path.iterdir()) == [".out-backup", "out"]
    assert (tmp_path / "out" / "foreign.txt").exists()
    (tmp_path / "out" / "foreign.txt").unlink()
    with replacing(tmp_path / "out") as folder:
        assert not folder.exists()
        shutil.copytree(pretrained, folder)
    assert sorted(file.name for file in tmp_path.iterdir()) == [".out-backup", "out"]


# --- what is exported ----------------------------------------------------------------------------------------------


def test_export_of_the_models_that_exist(make_recipe: MakeRecipe, caplog: pytest.LogCaptureFixture) -> None:
    recipe = make_recipe()
    with pytest.raises(RunError, match="has no pretrain of these settings"):
        export(Pipeline(recipe))
    written = export(Pipeline(save_new_network(recipe)))
    assert written == [recipe.folder / "export" / "pretrained"]
    assert "left out: " in caplog.text
    assert "has no finetune of these settings; run finetune first" in caplog.text


def test_export_ends_with_the_command_to_serve(run: Recipe, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    written = export(Pipeline(run))
    assert written == [run.folder / "export" / name for name in ("pretrained", "classifier")]
    assert [line.partition(": a copy of ")[0] for line in caplog.messages[-3:-1]] == list(map(str, written))
    pretrained, classifier = written
    assert caplog.messages[-1] == f"next: BERT_PRETRAINED={pretrained} BERT_SENTIMENT={classifier} bert-serve"


def test_export_can_be_repeated_and_copies_the_bytes_that_were_evaluated(run: Recipe) -> None:
    written = export(Pipeline(run))
    assert export(Pipeline(run)) == written
    for target in written:
        ours, theirs = (path / "model.safetensors" for path in (run.folder / target.name, target))
        assert ours.read_bytes() == theirs.read_bytes()
        assert not ours.samefile(theirs), "an edit of the copy must not change the run's network"


def test_export_says_where_to(run: Recipe, recipe_file: Path, tmp_path: Path) -> None:
    keys = (f"export.folder={tmp_path / 'weights'}", f"export.classifier={tmp_path / 'my model [2]'}")
    recipe = load_recipe(str(recipe_file), [*run.overrides, *keys])
    assert export(Pipeline(recipe)) == [tmp_path / "weights" / "pretrained", tmp_path / "my model [2]"]
    assert load_checkpoint(tmp_path / "my model [2]").config.labels == ["NEGATIVE", "POSITIVE"]


@pytest.mark.parametrize("key", ["folder=", "classifier=pretrained", "classifier=classifier"])
def test_export_into_the_runs_own_folder_is_refused(run: Recipe, recipe_file: Path, key: str) -> None:
    before = (run.folder / "pretrained" / "model.safetensors").read_bytes()
    name, _, path = key.partition("=")
    recipe = load_recipe(str(recipe_file), [*run.overrides, f"export.{name}={run.folder / path}"])
    with pytest.raises(RunError, match="is a network of this run, from which later stages start: export to"):
        export(Pipeline(recipe))
    assert (run.folder / "pretrained" / "model.safetensors").read_bytes() == before


def test_export_writes_nothing_if_one_directory_has_other_files(run: Recipe) -> None:
    foreign = run.folder / "export" / "classifier" / "notes.txt"
    foreign.parent.mkdir(parents=True)
    foreign.write_text("mine")
    with pytest.raises(RunError, match="holds other files than a checkpoint's"):
        export(Pipeline(run))
    assert [path.name for path in (run.folder / "export").iterdir()] == ["classifier"]
    assert foreign.read_text() == "mine"


# --- the model card ------------------------------------------------------------------------------------------------


def test_card_has_the_recipe_that_was_trained_and_not_the_command_line_of_now(run: Recipe, trained: Recipe) -> None:
    for target in export(Pipeline(run)):
        card = (target / "README.md").read_text()
        assert "\n    bert-train all recipe.json --data FOLDER\n" in card
        assert "Seconds, for tests." in card
        exported = read_resolved(target)
        assert exported is not None
        assert (exported.pretrain, exported.finetune.seeds) == (trained.pretrain, trained.finetune.seeds)
        assert "CPU thread" in card
    assert "10 steps, 2,560 tokens" in (run.folder / "export" / "pretrained" / "README.md").read_text()


def test_card_has_the_words_of_now(run: Recipe) -> None:
    changes = {"description": "Of now.", "limits": ("Irony.",), "checkpoint_minutes": 77.0}
    for table, key in (("corpus", "sources"), ("finetune", "train")):
        settings = getattr(run, table)
        sources = tuple(one.model_copy(update={"note": f"Note of {table}"}) for one in getattr(settings, key))
        changes[table] = settings.model_copy(update={key: sources})
    for target, table in zip(export(Pipeline(run.model_copy(update=changes))), ("corpus", "finetune"), strict=True):
        card = (target / "README.md").read_text()
        assert "\n\nOf now.\n\n" in card
        assert "\n## Limits\n\n- Irony.\n" in card
        assert re.findall(r"^- .*\. (Note of \w+)$", card, re.MULTILINE) == [f"Note of {table}"]
        resolved = read_resolved(target)
        assert resolved is not None
        assert resolved.checkpoint_minutes != 77


def test_card_has_figures_and_plots_of_these_weights(run: Recipe) -> None:
    cards = [squeezed((target / "README.md").read_text()) for target in export(Pipeline(run))]
    assert cards[0].startswith("---\npipeline_tag: fill-mask")
    assert cards[1].startswith("---\npipeline_tag: text-classification")
    for table, owner, other in (("| stories | ", *cards), ("| reviews | 20 |", *cards[::-1])):
        assert table in owner
        assert table not in other
    pictures = [re.findall(r"\]\((\S+\.png)\)", card) for card in cards]
    assert pictures == [["pretrained.png"], ["classifier.png"]]
    for folder, names in zip(("pretrained", "classifier"), pictures, strict=True):
        assert all((run.folder / "export" / folder / name).is_file() for name in names)


def test_card_has_no_figures_of_other_weights(run: Recipe) -> None:
    pipeline = Pipeline(run)
    tokenizer = Tokenizer.load(pipeline.tokenizer.folder)
    put_network(pipeline.pretrain, new_model(run.model_copy(update={"seed": 9}), tokenizer), tokenizer)
    (target, _) = export(Pipeline(run))
    card = (target / "README.md").read_text()
    assert "Not evaluated: run `bert-train evaluate`" in card
    assert "| stories " not in card
    assert not list(target.glob("*.png"))


def test_card_has_the_steps_of_the_seed_that_was_kept(run: Recipe) -> None:
    for kept, (seed, stage) in enumerate(Pipeline(run).seeds.items()):
        log = (stage.folder / "log.jsonl").read_text()
        last = json.loads(log.splitlines()[-1])
        (stage.folder / "log.jsonl").write_text(log + json.dumps(last | {"event": "train", "step": seed * 1111}) + "\n")
        record = read_json(stage.folder / DONE)
        figures = {"seed": seed, "dev_score": 0.1 + kept / 2, "dev_loss": 0.5, "dev_error": None}
        write_json(stage.folder / DONE, record | {"files": {}, "result": figures})
    _, target = export(Pipeline(run))
    assert "6,666 steps" in (target / "README.md").read_text()


def test_card_names_no_folder_of_this_machine(make_recipe: MakeRecipe, trained: Recipe, tmp_path: Path) -> None:
    source = trained.folder / "pretrained"
    recipe = make_recipe(*(f"finetune.pretrained={source}", "finetune.passes=0.2", f"export.folder={tmp_path / 'out'}"))
    assert made(recipe, "finetune")
    (target,) = export(Pipeline(recipe))
    card = (target / "README.md").read_text()
    assert "It starts from `tiny/pretrained`" in card
    for text in (card, (target / "recipe.json").read_text()):
        assert str(trained.run) not in text
        assert str(recipe.run) not in text
        assert str(tmp_path) not in text


def test_card_keeps_labels_that_look_like_paths() -> None:
    labels = {"0": "/r/news", "1": "/r/funny"}
    recipe = load_recipe("quick", ["finetune.pretrained=/srv/a/pretrained"])
    recipe = recipe.model_copy(update={"finetune": recipe.finetune.model_copy(update={"labels": labels})})
    portable = _portable_recipe(recipe)
    assert portable.finetune.labels == labels
    assert portable.finetune.pretrained == Path("a/pretrained")


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("finetune.pretrained=/else where/mine/first/pretrained", "runs/first/pretrained"),
        ("finetune.pretrained=/models/bert-base-uncased", "bert-base-uncased"),
        ("finetune.pretrained=/srv/reviews/model", "reviews/model"),
        ("finetune.pretrained=model/weights/pretrained", "model/weights/pretrained"),
        ("finetune.test=[{path='/my texts/shop/a.jsonl', label='label'}]", "shop/a.jsonl"),
        ("finetune.test=[{path='/b.jsonl', label='label'}]", "b.jsonl"),
    ],
)
def test_card_has_no_paths_of_one_machine(override: str, expected: str) -> None:
    found = _portable_recipe(load_recipe("quick", ["run=/else where/mine", "data=/my texts", override])).finetune
    assert expected in (str(found.pretrained), *(source.path for source in found.test))


@pytest.mark.parametrize("place", ["else where/mine", "runs"])
def test_card_command_runs(
    recipe_file: Path, data: Path, trained: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """In a folder with the card's recipe, the texts and, in `runs`, the network that it starts from."""
    here, there = (Path(shutil.copytree(data, tmp_path / name)) for name in ("here", "there"))
    for runs in (here / place, there / "runs"):
        shutil.copytree(trained.folder / "pretrained", runs / "first" / "pretrained")
    monkeypatch.chdir(here)
    start = here / place / "first" / "pretrained"
    arguments = [f"run={here / place}", f"finetune.pretrained={start}", "finetune.passes=0.1"]
    recipe = load_recipe(str(recipe_file), arguments)
    assert made(recipe, "finetune")
    (target,) = export(Pipeline(recipe))
    (command,) = re.findall(r"^    (bert-train all .*)$", (target / "README.md").read_text(), re.MULTILINE)
    shutil.copy(target / "recipe.json", there)
    monkeypatch.chdir(there)
    assert main(shlex.split(command.replace("FOLDER", "."))[1:]) == 0
    assert (there / "runs" / "tiny" / "export" / "classifier" / "README.md").is_file()
