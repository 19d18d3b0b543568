"""Recipes: strict, typed, with overrides; a mistake names its key."""

from __future__ import annotations

from pathlib import Path

import pytest

from training.errors import RecipeError
from training.recipe import RECIPES, load_recipe

SHIPPED = sorted(file.stem for file in RECIPES.glob("*.toml"))


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_recipe_is_valid_and_bears_its_files_name(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.name == name
    assert recipe.description


def test_overrides_are_toml_values_in_nested_tables(recipe_file: Path) -> None:
    overrides = ["pretrain.tokens=5", "pretrain.examples.whole_word=true", "name=mine", "model.preset=tiny"]
    recipe = load_recipe(str(recipe_file), overrides)
    assert recipe.pretrain.tokens == 5
    assert recipe.pretrain.examples.whole_word
    assert (recipe.name, recipe.model.preset) == ("mine", "tiny")
    assert recipe.folder == Path("runs/mine")


def test_what_is_to_be_text_is_taken_as_it_stands(recipe_file: Path) -> None:
    start = ["export.pretrained=7", "pretrain.start=1e5", "adapt.tokens=1"]
    recipe = load_recipe(str(recipe_file), ["name=2024", "data=2024-01-31", "description=true", *start])
    assert (recipe.name, recipe.data, recipe.description) == ("2024", Path("2024-01-31"), "true")
    assert (recipe.export.pretrained, recipe.pretrain.start) == (Path("7"), Path("1e5"))
    assert load_recipe(str(recipe_file), ['name="2024"']).name == "2024"
    assert load_recipe(str(recipe_file), ["weaknesses=['slow']"]).weaknesses == ("slow",)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("pretrain.token=5", r"pretrain\.token: Extra inputs"),
        ("pretrain.batch=0", r"pretrain\.batch: .*greater than 0"),
        ("pretrain.minutes=5", "exactly one budget: minutes or tokens"),
        (
            "pretrain.examples.sequence_length=128",
            "is 128, but model.max_position_embeddings is 64",
        ),
        ("pretrain.examples.sequence_length=4", "leaves no room for two segments"),
        ("pretrain.examples.random_fraction=0.7", r"next_fraction \+ random_fraction is more than 1"),
        ("pretrain.long_length=4096", "long_length is 4096"),
        ("finetune.max_length=100", r"finetune\.max_length is 100"),
        ("model.num_attention_heads=3", "not divisible"),
        ('finetune.labels={"0"="BAD"}', "labels must be two or more"),
        ('finetune.labels={"0"="BAD","1"="BAD","2"="GOOD"}', "merge values in the data"),
        ("pretrain.tokens.much=1", "tokens is no table"),
        ("corpus.sources=[{}]", "needs a path or a data set of the hub"),
        (
            'corpus.sources=[{path="a.txt"},{path="b/a.txt"}]',
            r"corpus\.sources: 2 are called 'a'; give each a name of its own",
        ),
        ('finetune.train=[{path="a.csv"},{path="b/a.csv"}]', r"finetune\.train: 2 are called 'a'"),
        ('finetune.test=[{path="a.csv"},{path="b/a.csv"}]', r"finetune\.test: 2 are called 'a'"),
        (
            'finetune.train=[{path="a.csv",text=["title","summary","text"]}]',
            "a has 3 text columns; name one, or two for a pair",
        ),
        ("name=", "name: .*at least 1 character"),
        ("pretrain.dropout=1", r"pretrain\.dropout: .*less than 1"),
        ("finetune.attention_dropout=1", r"finetune\.attention_dropout: .*less than 1"),
        ("pretrain.tokens", "not of the form key=value"),
        ("seed=-1", "seed: .*greater than or equal to 0"),
        ("seed=9223372036854775808", "seed: .*less than"),
        ("finetune.seeds=[-3]", r"finetune\.seeds\.0: .*greater than or equal to 0"),
        ("finetune.seeds=[1,2,1]", "seeds must differ"),
        ("finetune.repeat.film=2", "no source of train is called film; they are "),
        ("pretrain.betas=[0.9,1.5]", r"pretrain\.betas\.1: .*less than 1"),
        ("finetune.betas=[-0.1,0.9]", r"finetune\.betas\.0: .*greater than or equal to 0"),
    ],
)
def test_a_mistake_names_the_key(recipe_file: Path, override: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        load_recipe(str(recipe_file), [override])


def test_how_long_texts_may_be_is_for_the_checkpoint_to_say_where_there_is_one(recipe_file: Path) -> None:
    recipe = load_recipe(str(recipe_file), ["finetune.max_length=1024", "finetune.pretrained=some/checkpoint"])
    assert recipe.finetune.max_length == 1024


def test_broken_toml_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "broken.toml").write_text("name = ")
    with pytest.raises(RecipeError, match=r"broken\.toml"):
        load_recipe(str(tmp_path / "broken.toml"))


def test_a_recipe_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "windows.toml").write_bytes(b'\xef\xbb\xbfname = "caf\xc3\xa9"\r\n')
    assert load_recipe(str(tmp_path / "windows.toml")).name == "café"


def test_a_recipe_that_is_not_utf_8_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "latin.toml").write_bytes(b'name = "caf\xe9"')
    with pytest.raises(RecipeError, match=r"latin\.toml: 'utf-8' codec can't decode byte 0xe9"):
        load_recipe(str(tmp_path / "latin.toml"))


def test_an_unknown_recipe_lists_the_shipped_ones() -> None:
    with pytest.raises(RecipeError, match="quick"):
        load_recipe("unknown")
