"""Exported directories: whole, compared, in the precision asked for."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from training.evaluate.report import evaluate
from training.finetune.seeds import SeedResult, save_results

from model import Tokenizer, load_checkpoint, save_checkpoint
from tests.conftest import MakeCheckpoint
from tests.training.conftest import MakeRecipe
from tests.training.finetune.test_run import with_pretrained
from training.errors import RunError
from training.export import checkpoint_dir as directory
from training.export.run import export
from training.finetune.run import finetune
from training.pretrain.run import new_model
from training.recipe import load_recipe
from training.runtime.checkpoint_dir import write_directory


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_weights_are_written_in_the_precision_asked_for(
    tmp_path: Path, pretrained: Path, tokenizer: Tokenizer, dtype: torch.dtype
) -> None:
    write_directory(tmp_path / "out", load_checkpoint(pretrained).model, tokenizer, dtype)
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {dtype}
    assert load_checkpoint(tmp_path / "out").config.vocab_size == tokenizer.vocab_size


def test_an_older_directory_is_replaced_and_nothing_left_beside(
    tmp_path: Path, pretrained: Path, tokenizer: Tokenizer
) -> None:
    shutil.copytree(pretrained, tmp_path / "out")
    (tmp_path / "out" / "stale.png").write_text("")
    write_directory(tmp_path / "out", load_checkpoint(pretrained).model, tokenizer, torch.float32)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert not (tmp_path / "out" / "stale.png").exists()


@pytest.mark.parametrize("foreign", ["notes.txt", "data/thesis.txt", "README.md"])
def test_a_directory_with_other_files_is_refused_and_left_alone(
    tmp_path: Path, pretrained: Path, tokenizer: Tokenizer, foreign: str
) -> None:
    file = tmp_path / "out" / foreign
    file.parent.mkdir(parents=True)
    file.write_text("mine")
    with pytest.raises(
        RunError, match=rf"out holds something else than a checkpoint.*: {foreign.split('/')[0]}.*move these"
    ):
        write_directory(tmp_path / "out", load_checkpoint(pretrained).model, tokenizer, torch.float32)
    assert file.read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_checkpoint_with_other_files_beside_it_is_refused(
    tmp_path: Path, pretrained: Path, tokenizer: Tokenizer
) -> None:
    shutil.copytree(pretrained, tmp_path / "out")
    (tmp_path / "out" / "notes.txt").write_text("mine")
    with pytest.raises(RunError, match=r"deleted: notes\.txt; name another"):
        write_directory(tmp_path / "out", load_checkpoint(pretrained).model, tokenizer, torch.float32)
    assert (tmp_path / "out" / "notes.txt").read_text() == "mine"


def test_a_file_is_never_replaced(tmp_path: Path, pretrained: Path, tokenizer: Tokenizer) -> None:
    (tmp_path / "out").write_text("mine")
    with pytest.raises(RunError, match="out is a file"):
        write_directory(tmp_path / "out", load_checkpoint(pretrained).model, tokenizer, torch.float32)
    assert (tmp_path / "out").read_text() == "mine"


def test_nothing_is_exported_if_one_of_the_directories_is_refused(
    make_recipe: MakeRecipe, tmp_path: Path
) -> None:
    recipe = make_recipe(f"export.sentiment={tmp_path}")
    tokenizer = Tokenizer.load(recipe.folder / "tokenizer")
    save_checkpoint(recipe.folder / "pretrained", new_model(recipe, tokenizer), tokenizer)
    with pytest.raises(RunError, match="holds something else than a checkpoint"):
        export(recipe)
    assert not (recipe.folder / "export").exists()


def test_both_models_in_one_directory_are_refused(make_recipe: MakeRecipe, tmp_path: Path) -> None:
    recipe = make_recipe(
        f"export.sentiment={tmp_path / 'w'}", f"export.pretrained={tmp_path / 'x' / '..' / 'w'}"
    )
    with pytest.raises(RunError, match="is to hold pretrained and sentiment: give each a directory"):
        export(recipe)


def test_an_export_can_be_repeated(make_recipe: MakeRecipe) -> None:
    recipe = make_recipe("pretrain.evaluate_examples=1")
    tokenizer = Tokenizer.load(recipe.folder / "tokenizer")
    save_checkpoint(recipe.folder / "pretrained", new_model(recipe, tokenizer), tokenizer)
    evaluate(recipe)
    (recipe.folder / "pretrain-loss.png").write_text("")
    assert export(recipe) == export(recipe)


def test_what_ends_the_swap_leaves_what_was_there(
    tmp_path: Path, pretrained: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_checkpoint(pretrained).model
    write_directory(tmp_path / "out", model, tokenizer, torch.float32)
    before = sorted(file.name for file in (tmp_path / "out").iterdir())

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(directory.shutil, "move", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_directory(tmp_path / "out", model, tokenizer, torch.float32)
    assert [file.name for file in tmp_path.iterdir()] == ["out"]
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == before


def test_what_changes_on_the_way_to_disk_is_no_success(
    tmp_path: Path, pretrained: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(path: Path) -> object:
        loaded = load_checkpoint(path)
        next(loaded.model.parameters()).data.add_(1)
        return loaded

    monkeypatch.setattr(directory, "load_checkpoint", damaged)
    with pytest.raises(RunError, match=r"tensors changed on the way to disk: bert\.embeddings"):
        write_directory(tmp_path / "out", load_checkpoint(pretrained).model, tokenizer, torch.float32)
    assert list(tmp_path.iterdir()) == []


def test_only_the_models_that_exist_are_exported(make_recipe: MakeRecipe) -> None:
    recipe = make_recipe()
    with pytest.raises(RunError, match="run pretrain first"):
        export(recipe)
    tokenizer = Tokenizer.load(recipe.folder / "tokenizer")
    save_checkpoint(recipe.folder / "pretrained", new_model(recipe, tokenizer), tokenizer)
    assert export(recipe) == [recipe.folder / "export" / "pretrained"]


def test_the_recipe_says_where_to(make_recipe: MakeRecipe, tmp_path: Path) -> None:
    recipe = make_recipe(f"export.pretrained={tmp_path / 'weights'}", "export.dtype=bfloat16")
    tokenizer = Tokenizer.load(recipe.folder / "tokenizer")
    save_checkpoint(recipe.folder / "pretrained", new_model(recipe, tokenizer), tokenizer)
    assert export(recipe) == [tmp_path / "weights"]
    assert "Not evaluated" in (tmp_path / "weights" / "README.md").read_text()


def test_the_card_has_the_figures_of_these_weights_alone(make_recipe: MakeRecipe) -> None:
    recipe = make_recipe("pretrain.evaluate_examples=1")
    tokenizer = Tokenizer.load(recipe.folder / "tokenizer")
    save_checkpoint(recipe.folder / "pretrained", new_model(recipe, tokenizer), tokenizer)
    evaluate(recipe)
    (recipe.folder / "pretrain-loss.png").write_text("")
    (target,) = export(recipe)
    card = (target / "README.md").read_text()
    assert "masked-LM loss" in card
    assert "pretrain-loss.png" in card
    other = new_model(recipe.model_copy(update={"seed": 9}), tokenizer)
    save_checkpoint(recipe.folder / "pretrained", other, tokenizer)
    export(recipe)
    card = (target / "README.md").read_text()
    assert "Not evaluated" in card
    assert "masked-LM loss" not in card
    assert "pretrain-loss.png" not in card


def test_the_card_names_the_seed_that_was_kept(make_recipe: MakeRecipe, sentiment: Path) -> None:
    recipe = make_recipe("finetune.seeds=[5, 6]", "seed=3")
    for name in ("pretrained", "sentiment"):
        shutil.copytree(sentiment, recipe.folder / name)
    (recipe.folder / "finetune").mkdir()
    save_results(recipe, [SeedResult(5, 10, 0.8, 0.5), SeedResult(6, 10, 0.9, 0.4)])
    seeds = [(target / "README.md").read_text().partition("\nSeed ")[2][:2] for target in export(recipe)]
    assert seeds == ["3.", "6."]


def test_the_card_has_the_settings_that_the_run_was_trained_with(
    make_recipe: MakeRecipe, caplog: pytest.LogCaptureFixture
) -> None:
    recipe = with_pretrained(make_recipe("finetune.epochs=1", "finetune.dropout=0.3", "seed=1"))
    assert finetune(recipe)
    (recipe.folder / "finetune" / "overrides.json").unlink()  # as if it had stood in the recipe
    plain = recipe.finetune.model_copy(update={"dropout": 0.1})
    (target,) = [
        path
        for path in export(recipe.model_copy(update={"finetune": plain, "overrides": ("seed=1",)}))
        if path.name == "sentiment"
    ]
    card = (target / "README.md").read_text()
    assert "python -m training all tiny.toml seed=1 finetune.dropout=0.3\n" in card
    assert '"dropout": 0.3' in card
    assert "trained with finetune.dropout=0.3; the card says so" in caplog.text


def test_the_card_has_what_was_said_when_the_classifier_was_trained(
    make_recipe: MakeRecipe, recipe_file: Path, save_pretrained: MakeCheckpoint
) -> None:
    start = save_pretrained("start")
    said = [f"finetune.pretrained={start}", "finetune.epochs=0.2", "finetune.batch=4"]
    recipe = make_recipe(*said)
    assert finetune(recipe)
    places = [f"data={recipe.data}", f"run={recipe.run}"]
    (target,) = export(load_recipe(str(recipe_file), [*places, "finetune.batch=4"]))
    card = (target / "README.md").read_text()
    started = f"runs/{start.parent.name}/{start.name}"
    assert f"Trained from {started} by this repository" in card
    assert f"all tiny.toml finetune.batch=4 finetune.pretrained={started} finetune.epochs=0.2\n" in card


def test_the_card_names_no_folder_of_this_machine(
    make_recipe: MakeRecipe, pretrained: Path, tmp_path: Path
) -> None:
    recipe = make_recipe(f"export.pretrained={tmp_path / 'weights'}", f"pretrain.start={pretrained}")
    shutil.copytree(pretrained, recipe.folder / "pretrained")
    export(recipe)
    card = (tmp_path / "weights" / "README.md").read_text()
    started = f"runs/{pretrained.parent.name}/{pretrained.name}"
    assert f"pretrain.start={started}" in card
    assert f'"start": "{started}"' in card
    assert f"Trained from {started} by this repository" in card
    assert str(pretrained.parent.parent) not in card
