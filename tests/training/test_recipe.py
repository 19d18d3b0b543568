"""Recipes: strict and typed, with overrides; an error names the key."""

from __future__ import annotations

from pathlib import Path

import pytest

from training.errors import RecipeError
from training.recipe import RECIPES, load_recipe, read_resolved, recipe_keys, write_resolved

SHIPPED = sorted(file.relative_to(RECIPES).with_suffix("").as_posix() for file in RECIPES.rglob("*.toml"))

MAX_KEYS = 80
"""A key that serves one experiment does not belong into a recipe."""


def test_recipe_keys_are_few_and_explained() -> None:
    found = dict(recipe_keys())
    assert len(found) <= MAX_KEYS
    assert all(field.description for field in found.values())


@pytest.mark.parametrize("name", SHIPPED)
def test_recipe_that_ships_is_valid_and_has_the_name_of_its_file(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.name == name.rpartition("/")[2]
    assert recipe.description


def test_recipe_in_a_folder_is_named() -> None:
    with pytest.raises(RecipeError, match="no such recipe; it is called examples/imdb now"):
        load_recipe("imdb")


def test_recipe_without_its_suffix_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text('name = "mine"\n')
    with pytest.raises(RecipeError, match=r"^mine: no such recipe; did you mean mine\.toml\?"):
        load_recipe("mine")


def test_recipe_takes_what_it_does_not_say_from_another(tmp_path: Path) -> None:
    (tmp_path / "base.toml").write_text(
        'name = "base"\nseed = 7\n[pretrain]\ntokens = 9\nlearning_rate = 1e-3\n[finetune.labels]\n1 = "A"\n2 = "B"\n'
    )
    (tmp_path / "mine.toml").write_text(
        'name = "mine"\nfrom = "base.toml"\n[pretrain]\nminutes = 2\n[finetune.labels]\n2 = "C"\n'
    )
    recipe = load_recipe(str(tmp_path / "mine.toml"), ["seed=8"])
    assert (recipe.name, recipe.seed, recipe.pretrain.learning_rate) == ("mine", 8, 1e-3)
    assert (recipe.pretrain.tokens, recipe.pretrain.minutes) == (9, 2), "the smaller budget counts"
    assert recipe.finetune.labels == {"1": "A", "2": "C"}
    assert load_recipe("cpu").finetune.test == load_recipe("english").finetune.test
    student, teacher = load_recipe("shipped"), load_recipe("large")
    assert student.corpus == teacher.corpus == load_recipe("english").corpus
    assert student.tokenizer == teacher.tokenizer, "one vocabulary"
    assert student.pretrain.teacher == teacher.folder / "pretrained"


@pytest.mark.parametrize(
    ("base", "message"),
    [
        ('"mine.toml"', "mine.toml: from: the recipe takes keys from itself"),
        ('"none.toml"', "none.toml: no such recipe"),
        ("7", "mine.toml: from: give the name of a recipe, or its file"),
    ],
)
def test_recipe_from_a_wrong_recipe_is_an_error(tmp_path: Path, base: str, message: str) -> None:
    (tmp_path / "mine.toml").write_text(f'name = "mine"\nfrom = {base}\n')
    with pytest.raises(RecipeError, match=message):
        load_recipe(str(tmp_path / "mine.toml"))


def test_overrides_are_toml_values_in_nested_tables(recipe_file: Path) -> None:
    overrides = ["pretrain.tokens=5", "pretrain.examples.short_length=16", "name=mine", "model.preset=tiny"]
    recipe = load_recipe(str(recipe_file), overrides)
    assert recipe.pretrain.tokens == 5
    assert recipe.pretrain.examples.short_length == 16
    assert (recipe.name, recipe.model.preset) == ("mine", "tiny")
    assert recipe.folder == Path("runs/mine")
    assert recipe.overrides == tuple(overrides)


@pytest.mark.parametrize(
    ("overrides", "tokens"),
    [((), 5_000_000), (("minutes=5",), None), (("tokens=7",), 7), (("minutes=5", "tokens=7"), 7)],
)
def test_budget_has_a_default_where_a_recipe_gives_none(
    tmp_path: Path, overrides: tuple[str, ...], tokens: int | None
) -> None:
    (tmp_path / "short.toml").write_text('name = "short"')
    recipe = load_recipe(str(tmp_path / "short.toml"), [f"pretrain.{override}" for override in overrides])
    assert recipe.pretrain.budget_tokens == tokens


def test_overrides_of_text_keys_are_taken_literally(recipe_file: Path) -> None:
    values = ["export.folder=7", "pretrain.start=1e5"]
    recipe = load_recipe(str(recipe_file), ["name=2024", "data=2024-01-31", "description=true", *values])
    assert (recipe.name, recipe.data, recipe.description) == ("2024", Path("2024-01-31"), "true")
    assert (recipe.export.folder, recipe.pretrain.start) == (Path("7"), Path("1e5"))
    assert load_recipe(str(recipe_file), ['name="2024"']).name == "2024"
    assert load_recipe(str(recipe_file), ["limits=['slow']"]).limits == ("slow",)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("pretrain.token=5", r"pretrain\.token: no such key; did you mean pretrain\.tokens\?"),
        ("pretrain.batch=8", r"pretrain\.batch: no such key; did you mean pretrain\.batch_tokens\?"),
        ("pretrain.mask_fraction=0.2", r"did you mean pretrain\.examples\.mask_fraction\?"),
        ("pretrian.tokens=5", r"pretrian: no such key; did you mean pretrain\?"),
        (
            'corpus.sources=[{path="a",header=false}]',
            r"0\.header: no such key; did you mean table = { header = \.\.\. }",
        ),
        ('corpus.sources=[{pth="a"}]', r"corpus\.sources\.0\.pth: no such key; did you mean source\.path\?"),
        ('finetune.train=[{path="a",labels="b"}]', r"finetune\.train\.0\.labels: .*did you mean source\.label\?"),
        ("zebra=1", r"zebra: no such key$"),
    ],
)
def test_unknown_key_names_the_key_that_may_be_meant(recipe_file: Path, override: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        load_recipe(str(recipe_file), [override])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("pretrain.batch_tokens=0", r"pretrain\.batch_tokens: .*greater than 0"),
        ("pretrain.examples.short_length=4", r"pretrain\.examples\.short_length: .*greater than or equal to 8"),
        ("pretrain.examples.long_length=16", "long_length 16 is below short_length 32"),
        ("pretrain.examples.random_fraction=0.7", r"pretrain\.examples\.random_fraction: .*less than or equal to 0\.5"),
        ("pretrain.examples.mask_fraction=0", r"mask_fraction: .*greater than 0"),
        ("pretrain.examples.final_mask_fraction=2", r"final_mask_fraction: .*less than or equal to 1"),
        ("model.hidden_size=200", "model: hidden_size is 200: give a multiple of 64, or less than 128"),
        ("soft_labels=2000000", r"soft_labels: give a table, such as \[soft_labels\]"),
        ("pretrain.average_fraction=0.1", r"pretrain\.average_fraction: no such key any more: delete it, because"),
        (
            "pretrain.before_decay=a.pt",
            r"pretrain\.before_decay: no such key any more: pretrain\.start trains a network",
        ),
        ("pretrain.examples=5", r"pretrain\.examples: give a table, such as \[pretrain\.examples\]"),
        ("finetune.passes=inf", r"finetune\.passes: .*finite"),
        ("pretrain.tokens=true", r"pretrain\.tokens: give a number"),
        ("finetune.max_length=3", r"finetune\.max_length: .*greater than or equal to 8"),
        ('finetune.train={path="a.csv"}', r"finetune\.train: give a list: begin each of its tables with \[\[finetune"),
        (
            'corpus.sources="texts"',
            r"corpus\.sources: give a list: begin each of its tables with \[\[corpus\.sources\]\]",
        ),
        ('corpus.sources=["texts"]', r'corpus\.sources\.0: give a table, such as \{ path = "texts\.jsonl" \}'),
        ("finetune.seeds=3", r"finetune\.seeds: give a list: \[ \.\.\. \]"),
        ("finetune.labels={1.0='BAD'}", r"finetune\.labels\.1: give a string; a value with a dot has quotation marks"),
        ('finetune.labels={"0"="BAD"}', "labels must name at least two labels"),
        ('finetune.labels={"0"="BAD","1"="BAD","2"=""}', "labels must name at least two labels"),
        (
            'finetune.train=[{path="a.csv",separator=";"}]',
            "a separator or several columns of labels need problem_type = 'multi_label",
        ),
        ("pretrain.tokens.much=1", "tokens is not a table"),
        ("corpus.sources=[{}]", "needs a path or a data set of the hub"),
        (
            'corpus.sources=[{path="a.txt"},{path="b/a.txt"}]',
            r"corpus\.sources: 2 sources are called 'a'; give each its own name",
        ),
        ('finetune.train=[{path="a.csv"},{path="b/a.csv"}]', r"finetune\.train: 2 sources are called 'a'"),
        ('finetune.test=[{path="a.csv"},{path="b/a.csv"}]', r"finetune\.test: 2 sources are called 'a'"),
        ("name=", "name: String should match pattern"),
        ("pretrain.dropout=1", r"pretrain\.dropout: .*less than 1"),
        ("pretrain.tokens", "not of the form key=value"),
        ("seed=-1", "seed: .*greater than or equal to 0"),
        ("seed=9223372036854775808", "seed: .*less than"),
        ("finetune.seeds=[-3]", r"finetune\.seeds\.0: .*greater than or equal to 0"),
        ("finetune.seeds=[1,2,1]", "seeds must differ"),
        ("finetune.test_fraction=0.8", "dev_fraction and test_fraction leave no text to train on"),
    ],
)
def test_invalid_value_names_its_key(recipe_file: Path, override: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        load_recipe(str(recipe_file), [override])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["micro_batch_tokens=100"], "micro_batch_tokens must be a multiple of 128, not 100"),
        (
            ["pretrain.batch_tokens=384"],
            r"pretrain\.batch_tokens \(384\) must be a multiple of micro_batch_tokens",
        ),
        (
            ["finetune.batch_tokens=384"],
            r"finetune\.batch_tokens \(384\) must be a multiple of micro_batch_tokens",
        ),
        (
            ["pretrain.examples.long_length=300"],
            "an example has up to 300 tokens, more than micro_batch_tokens",
        ),
        (["finetune.max_length=300"], "finetune: an example has up to 300 tokens, more than"),
    ],
)
def test_batch_tokens_that_do_not_fit_name_the_rule(recipe_file: Path, overrides: list[str], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        load_recipe(str(recipe_file), overrides)


def test_micro_batch_tokens_need_no_room_for_examples_of_pretraining_in_a_recipe_without_it(recipe_file: Path) -> None:
    longer = ["pretrain.examples.long_length=512", "micro_batch_tokens=256"]
    assert load_recipe(str(recipe_file), ["corpus.sources=[]", *longer]).micro_batch_tokens == 256
    with pytest.raises(RecipeError, match=r"pretrain: an example has up to 512 tokens, more than micro_batch"):
        load_recipe(str(recipe_file), longer)


@pytest.mark.parametrize("columns", ['["text"]', '["title","summary","text"]'])
@pytest.mark.parametrize("read", ["pair", "both"])
def test_read_as_a_pair_needs_two_columns(recipe_file: Path, columns: str, read: str) -> None:
    source = f'finetune.train=[{{path="a.csv",text={columns},read="{read}"}}]'
    with pytest.raises(RecipeError, match=f"read = '{read}' needs two text columns, not"):
        load_recipe(str(recipe_file), [source])


def test_labels_have_the_order_of_the_recipe_and_leave_out_empty_ones(recipe_file: Path) -> None:
    recipe = load_recipe(str(recipe_file), ['finetune.labels={"5"="GOOD","4"="GOOD","3"="","1"="BAD"}'])
    assert recipe.finetune.label_names == ["GOOD", "BAD"]


def test_positions_of_a_network_cover_all_stages_and_whole_reviews(recipe_file: Path) -> None:
    assert load_recipe(str(recipe_file)).positions == 512
    longer = ["micro_batch_tokens=1024", "pretrain.batch_tokens=1024", "finetune.batch_tokens=1024"]
    assert load_recipe(str(recipe_file), [*longer, "finetune.max_length=800"]).positions == 800


def test_resolved_recipe_is_read_back_equal(recipe_file: Path, tmp_path: Path) -> None:
    overrides = ["pretrain.minutes=0.5", "pretrain.start=some/checkpoint", "soft_labels.teacher=t", "export.folder=e"]
    recipe = load_recipe(str(recipe_file), overrides)
    write_resolved(recipe, tmp_path / "run")
    assert read_resolved(tmp_path / "run") == recipe


def test_resolved_recipe_that_is_missing_or_damaged_is_none(tmp_path: Path) -> None:
    assert read_resolved(tmp_path) is None
    (tmp_path / "recipe.json").write_text('{"name": ')
    assert read_resolved(tmp_path) is None


def test_resolved_recipe_is_read_without_keys_that_no_longer_exist(recipe_file: Path, tmp_path: Path) -> None:
    recipe = load_recipe(str(recipe_file))
    write_resolved(recipe, tmp_path)
    file = tmp_path / "recipe.json"
    file.write_text(file.read_text().replace('"corpus": {', '"corpus": {"engine": "local", '))
    assert "engine" in file.read_text()
    assert read_resolved(tmp_path) == recipe


def test_recipe_batch_below_the_micro_batch_is_one_forward_pass(recipe_file: Path) -> None:
    recipe = load_recipe(str(recipe_file), ["micro_batch_tokens=2048", "finetune.batch_tokens=4096"])
    assert [recipe.micro_tokens(stage) for stage in (recipe.pretrain, recipe.finetune)] == [256, 2048]
    with pytest.raises(RecipeError, match=r"toml: pretrain\.batch_tokens must be a multiple of 128, not 200"):
        load_recipe(str(recipe_file), ["pretrain.batch_tokens=200"])


@pytest.mark.parametrize("name", ["mine-2", "Müller & Söhne (final) [3]", "~", " 2024"])
def test_recipe_name_may_be_any_name_of_a_folder(recipe_file: Path, name: str) -> None:
    assert load_recipe(str(recipe_file), [f'name="{name}"']).folder == Path("runs", name)


@pytest.mark.parametrize("name", ["../x/y", "..", ".hidden", "a/b", "", r"a\\b", r"a\nb", r"a\n", "/"])
def test_recipe_name_outside_the_folder_of_runs_is_refused(recipe_file: Path, name: str) -> None:
    with pytest.raises(RecipeError, match="name: String should match pattern"):
        load_recipe(str(recipe_file), [f'name="{name}"'])


def test_recipe_source_text_may_be_one_column(recipe_file: Path) -> None:
    recipe = load_recipe(str(recipe_file), ['corpus.sources=[{path="a.csv", text="body"}, {path="b.csv", text=2}]'])
    assert [source.text for source in recipe.corpus.sources] == [("body",), ("2",)]


def test_broken_toml_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "broken.toml").write_text("name = ")
    with pytest.raises(RecipeError, match=r"broken\.toml"):
        load_recipe(str(tmp_path / "broken.toml"))


def test_recipe_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "windows.toml").write_bytes(b'\xef\xbb\xbfname = "caf\xc3\xa9"\r\n')
    assert load_recipe(str(tmp_path / "windows.toml")).name == "café"


def test_recipe_that_is_not_utf_8_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "latin.toml").write_bytes(b'name = "caf\xe9"')
    with pytest.raises(RecipeError, match=r"latin\.toml: 'utf-8' codec can't decode byte 0xe9"):
        load_recipe(str(tmp_path / "latin.toml"))


def test_unknown_recipe_lists_the_shipped_ones() -> None:
    with pytest.raises(RecipeError, match="quick"):
        load_recipe("unknown")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("soft_labels.weight=0.5", "soft_labels needs one label per text, and problem_type is 'regression'"),
        ("finetune.bag_weight=0.5", "finetune.bag_weight needs labels, and problem_type is 'regression'"),
        ('finetune.train=[{path="a.csv",balance=2}]', "balance needs one label per text, and problem_type is 'regres"),
    ],
)
def test_recipe_of_a_regression_refuses_what_needs_labels(recipe_file: Path, override: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        load_recipe(str(recipe_file), ["finetune.problem_type=regression", override])
