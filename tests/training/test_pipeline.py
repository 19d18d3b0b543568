"""The pipeline of a recipe: what each key depends on, results side by side, what is listed and removed."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import asdict
from pathlib import Path

import pytest

from model import load_checkpoint
from tests.training.commands import occupied
from tests.training.conftest import MakeRecipe
from tests.training.stages import made, put_network, save_new_network
from tests.training.texts import squeezed
from training.command import main
from training.errors import RunError
from training.finetune.selection import SeedResult
from training.pipeline import MIN_TRAINING_SHARE, Pipeline
from training.recipe import Recipe, load_recipe
from training.runtime.files import DONE
from training.stage import LINKS

STAGES = {"tokenizer", "corpus", "labelled", "pretrain", "finetune", "bag"}


@pytest.fixture
def recipe(recipe_file: Path, data: Path, tmp_path: Path) -> Recipe:
    """The tiny recipe in an empty run folder, with text of its own."""
    shutil.copytree(data, tmp_path / "data")
    return load_recipe(str(recipe_file), [f"data={tmp_path / 'data'}", f"run={tmp_path / 'run'}"])


def keys(recipe: Recipe, *overrides: str) -> dict[str, str]:
    """Folders of the stages by name."""
    changed = load_recipe(recipe.loaded, [*recipe.overrides, *overrides])
    return {stage.name: stage.folder.name for stage in Pipeline(changed).all()}


def changed(before: dict[str, str], after: dict[str, str]) -> set[str]:
    """Names of the stages whose keys differ."""
    return {name for name in {*before, *after} if before.get(name) != after.get(name)}


def of_size(recipe: Recipe, vocab_size: int) -> Recipe:
    return recipe.model_copy(update={"tokenizer": recipe.tokenizer.model_copy(update={"vocab_size": vocab_size})})


# --- keys


@pytest.mark.parametrize(
    "override",
    [
        *("name=other", "device=cuda", "checkpoint_minutes=1", "cuda_graphs=true"),
        *("description=words", "limits=['slow']", "export.folder=there", "micro_batch_tokens=128"),
        'corpus.sources=[{name="stories",path="stories.txt",note="public domain"}]',
        'finetune.train=[{name="reviews",path="reviews.jsonl",label="label",note="public domain"}]',
    ],
)
def test_pipeline_keys_do_not_depend_on_what_changes_no_result(recipe: Recipe, override: str) -> None:
    assert keys(recipe, override) == keys(recipe)


def test_pipeline_keys_do_not_depend_on_the_folder_of_runs_or_on_where_and_when_the_text_was_written(
    recipe: Recipe, tmp_path: Path
) -> None:
    before = keys(recipe)
    (tmp_path / "data").rename(tmp_path / "moved")
    os.utime(tmp_path / "moved" / "stories.txt", ns=(1, 1))
    assert keys(recipe, f"data={tmp_path / 'moved'}", f"run={tmp_path / 'other'}") == before


@pytest.mark.parametrize(
    ("override", "names"),
    [
        ("tokenizer.vocab_size=150", STAGES),
        ("corpus.heldout_fraction=0.2", {"corpus", "pretrain", "finetune"}),
        ("pretrain.tokens=25600", {"pretrain", "finetune"}),
        ("pretrain.examples.short_length=16", {"corpus", "pretrain", "finetune"}),
        ("pretrain.examples.long_length=100", {"pretrain", "finetune"}),
        ("model.hidden_size=32", {"pretrain", "finetune"}),
        ("half_residual=true", {"pretrain", "finetune"}),
        ("seed=2", {"pretrain", "finetune"}),
        ("finetune.dev_fraction=0.3", {"bag", "labelled", "finetune"}),
        ('finetune.labels={"1"="POSITIVE","0"="NEGATIVE"}', {"bag", "labelled", "finetune"}),
        ("finetune.passes=3", {"finetune"}),
        ("finetune.all_rows=true", {"final"}),
        ("finetune.seeds=[1]", set()),
        ("finetune.seeds=[2]", {"finetune"}),
        ("soft_labels.weight=0.5", {"teacher", "soft_labels", "finetune"}),
        ("soft_labels.weight=0", set()),
    ],
)
def test_pipeline_keys_depend_on_the_settings_of_a_stage_and_of_those_before_it(
    recipe: Recipe, override: str, names: set[str]
) -> None:
    assert changed(keys(recipe), keys(recipe, override)) == names


@pytest.mark.parametrize(
    ("before", "after", "names"),
    [
        ('corpus.sources=[{path="a.txt"}]', 'corpus.sources=[{name="b",path="a.txt"}]', {"corpus"}),
        ('corpus.sources=[{path="a.txt"}]', 'corpus.sources=[{path="a.txt",by="city",balance=2}]', set()),
        ('corpus.heldout=[{path="a.txt"}]', 'corpus.heldout=[{name="b",path="a.txt"}]', {"corpus"}),
        ("finetune.test=[{A}]", 'finetune.test=[{name="b",A}]', {"labelled"}),
        ("finetune.test=[{A}]", 'finetune.test=[{by="city",A}]', {"labelled"}),
        ("finetune.test=[{A}]", 'finetune.test=[{read="text",A}]', {"labelled"}),
        ("finetune.test=[{A}]", 'finetune.test=[{group="film",A}]', {"bag", "labelled", "finetune"}),
        ("finetune.train=[{A}]", 'finetune.train=[{name="b",A}]', {"labelled"}),
        ("finetune.train=[{A}]", 'finetune.train=[{by="city",A}]', {"bag", "labelled", "finetune"}),
    ],
)
@pytest.mark.parametrize("from_network", [False, True])
def test_pipeline_trainings_do_not_depend_on_what_only_a_report_shows(
    recipe: Recipe, pretrained: Path, before: str, after: str, names: set[str], *, from_network: bool
) -> None:
    (recipe.data / "a.txt").write_text("A text.")
    start = [f"pretrain.start={pretrained}"] * from_network
    written, found = (
        keys(recipe, *start, each.replace("A}", 'path="reviews.jsonl",label="label"}')) for each in (before, after)
    )
    if from_network and "group" in after:  # texts of test are left out of the corpus
        names = names | {"corpus", "pretrain"}
    assert changed(written, found) == names


@pytest.mark.parametrize(
    "override", ["finetune.dev_fraction=0.3", "finetune.test_fraction=0.3", 'finetune.labels={0="A",1="B",2=""}']
)
def test_pipeline_corpus_depends_on_the_split_of_labelled_texts_if_a_network_is_trained_on(
    recipe: Recipe, pretrained: Path, override: str
) -> None:
    assert "corpus" not in changed(keys(recipe), keys(recipe, override))
    start = f"pretrain.start={pretrained}"
    assert "corpus" in changed(keys(recipe, start), keys(recipe, start, override))


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("stories.txt", STAGES),
        ("reviews.jsonl", {"bag", "labelled", "finetune"}),
        ("test.jsonl", {"bag", "labelled", "finetune"}),
    ],
)
def test_pipeline_keys_depend_on_the_contents_of_files(recipe: Recipe, name: str, names: set[str]) -> None:
    before = keys(recipe)
    with (recipe.data / name).open("a") as file:
        file.write("\n")
    assert changed(before, keys(recipe)) == names


def test_pipeline_key_of_a_seed_does_not_depend_on_the_other_seeds(recipe: Recipe) -> None:
    def found(seeds: str) -> dict[int, str]:
        pipeline = Pipeline(load_recipe(recipe.loaded, [*recipe.overrides, f"finetune.seeds={seeds}"]))
        return {seed: stage.key for seed, stage in pipeline.seeds.items()}

    assert found("[3,1,2]").items() >= found("[1,2]").items()
    assert len(set(found("[1,2]").values())) == 2


@pytest.mark.parametrize(
    ("overrides", "trainings"),
    [
        (["finetune.seeds=[1,2]"], 2),
        (["finetune.seeds=[1,2]", "finetune.all_rows=true"], 3),
        (["finetune.seeds=[1,2]", "soft_labels.folds=4"], 6),
        (["finetune.seeds=[1,2]", "soft_labels.teacher=network"], 2),
        (["soft_labels.folds=2"], 3),
    ],
)
def test_pipeline_trainings_of_classifiers_share_the_minutes(
    recipe: Recipe, pretrained: Path, overrides: list[str], trainings: int
) -> None:
    overrides = [each.replace("network", str(pretrained)) for each in overrides]
    pipeline = Pipeline(load_recipe(recipe.loaded, [*recipe.overrides, "finetune.minutes=9", *overrides]))
    stages = [*pipeline.teachers, *pipeline.seeds.values(), *filter(None, [pipeline.final])]
    assert [stage.settings["finetune"]["minutes"] for stage in stages] == [9 / trainings] * trainings


@pytest.mark.parametrize(("spent", "left"), [(None, 1.0), (3.0, 2 / 3), (100.0, MIN_TRAINING_SHARE)])
def test_pipeline_trainings_get_the_minutes_that_are_left(recipe: Recipe, spent: float | None, left: float) -> None:
    recipe = load_recipe(recipe.loaded, [*recipe.overrides, "finetune.minutes=9"])
    began = None if spent is None else time.monotonic() - 60 * spent
    assert Pipeline(recipe, began)._share_left == pytest.approx(left, abs=0.01)


def test_pipeline_teachers_do_not_depend_on_the_weight_of_their_labels(recipe: Recipe) -> None:
    before = keys(recipe, "soft_labels.weight=0.5")
    assert changed(before, keys(recipe, "soft_labels.weight=0.6")) == {"finetune"}
    assert changed(before, keys(recipe, "soft_labels.folds=2")) == {"teacher", "soft_labels", "finetune"}


def test_pipeline_keys_depend_on_the_contents_of_the_network_to_start_from(
    recipe: Recipe, pretrained: Path, tmp_path: Path
) -> None:
    start = tmp_path / "start"
    shutil.copytree(pretrained, start)
    overrides = f"pretrain.start={start}", f"pretrain.teacher={start}", f"finetune.pretrained={start}"
    before = [keys(recipe, override) for override in overrides]
    elsewhere = [override.replace(str(start), str(pretrained)) for override in overrides]
    assert [keys(recipe, override) for override in elsewhere] == before, "where it is does not count"
    with (start / "config.json").open("a") as file:
        file.write("\n")
    after = [keys(recipe, override) for override in overrides]
    networks = {"pretrain", "finetune"}
    assert [changed(*both) for both in zip(before, after, strict=True)] == [networks, networks, {"finetune"}]


def command(recipe: Recipe) -> list[str]:
    """Arguments of a command."""
    return [recipe.loaded, *recipe.overrides]


# --- results


@pytest.mark.parametrize("name", LINKS)
def test_pipeline_with_a_folder_in_place_of_a_link_is_refused(recipe: Recipe, name: str) -> None:
    (recipe.folder / name).mkdir(parents=True)
    with pytest.raises(RunError, match=rf"tiny/{name} is not a link into stages/, .* or give this run another name"):
        Pipeline(recipe)


@pytest.mark.parametrize("key", ["pretrain.start", "pretrain.teacher", "finetune.pretrained", "soft_labels.teacher"])
def test_pipeline_that_starts_from_a_link_of_its_own_run_is_refused(recipe: Recipe, key: str) -> None:
    path = recipe.folder / "pretrained"
    with pytest.raises(RunError, match=rf"{key} is \S*tiny/pretrained, which changes with this run: give the run an"):
        keys(recipe, f"{key}={path}")
    recipe.folder.mkdir(parents=True)
    path.symlink_to("stages/earlier")
    with pytest.raises(
        RunError, match=rf"{key} is {path}, .*: name {recipe.folder}/stages/earlier, or give the run an"
    ):
        keys(recipe, f"{key}={path}")


def test_pipeline_links_lead_to_the_best_seed(make_recipe: MakeRecipe, sentiment: Path) -> None:
    recipe = save_new_network(make_recipe("finetune.seeds=[1,2,3]"))
    pipeline, network = Pipeline(recipe), load_checkpoint(sentiment)
    for seed, score in ((1, 0.7), (2, 0.9)):
        result = SeedResult(seed, score, 0.5, 0.1)
        put_network(pipeline.seeds[seed], network.model, network.tokenizer, result=asdict(result))
    assert set(pipeline.models()) == {"pretrained"}
    with pytest.raises(RunError, match=r"has no finetune of these settings.*; run finetune first"):
        pipeline.results()
    two = Pipeline(load_recipe(recipe.loaded, [*recipe.overrides, "finetune.seeds=[1,2]"]))
    two.link_best()
    assert (recipe.folder / "finetune").resolve() == two.seeds[2].folder
    assert (recipe.folder / "classifier").resolve() == two.models()["classifier"] == two.seeds[2].folder / "model"


def test_pipeline_of_a_source_with_another_name_makes_no_training_again(make_recipe: MakeRecipe) -> None:
    recipe = make_recipe("pretrain.tokens=512", "finetune.train=[]")
    assert made(recipe, "pretrain")
    before = Pipeline(recipe).pretrain.folder
    renamed = load_recipe(
        recipe.loaded,
        [*recipe.overrides, 'corpus.sources=[{name="tales",path="stories.txt"}]', "micro_batch_tokens=128"],
    )
    trained = (before / DONE).stat().st_mtime_ns
    assert made(renamed, "prepare", "pretrain", "evaluate")
    assert Pipeline(renamed).pretrain.folder == before
    assert (before / DONE).stat().st_mtime_ns == trained
    assert "| tales |" in squeezed((recipe.folder / "report.md").read_text())


# --- the command line


def test_list_names_what_is_done_begun_missing_and_unneeded(
    make_recipe: MakeRecipe, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = make_recipe()
    pipeline = Pipeline(recipe)
    other = Pipeline(of_size(recipe, 150)).tokenizer
    assert made(of_size(recipe, 150), "tokenizer")
    pipeline.pretrain.folder.mkdir()
    (pipeline.pretrain.folder / "state-000000001.pt").write_bytes(bytes(1_500_000))
    assert main(["list", *command(recipe)]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [[line[0], *line[3:]] for line in lines] == [
        ["done", str(pipeline.tokenizer.folder)],
        ["missing", str(pipeline.labelled.folder)],
        ["done", str(pipeline.corpus.folder)],
        ["begun", str(pipeline.pretrain.folder)],
        ["missing", str(pipeline.seeds[1].folder)],
        ["missing", str(pipeline.bag.folder)],
        ["unneeded", str(other.folder)],
    ]
    assert [line[1:3] for line in lines if line[0] == "begun"] == [["1.5", "MB"]]


def test_clean_keeps_the_result_of_the_run_that_the_recipe_starts_from(make_recipe: MakeRecipe) -> None:
    recipe = save_new_network(make_recipe())
    earlier = Pipeline(recipe).pretrain.folder
    start = f"pretrain.start={earlier / 'model'}"
    later = Pipeline(load_recipe(recipe.loaded, [*recipe.overrides, start]))
    assert earlier not in {stage.folder for stage in later.all()}
    assert earlier not in list(later.unneeded())


def test_clean_removes_what_the_recipe_does_not_need(
    make_recipe: MakeRecipe, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = save_new_network(make_recipe())
    other = Pipeline(of_size(recipe, 150)).tokenizer
    assert made(of_size(recipe, 150), "tokenizer")
    before = {folder.name for folder in (recipe.folder / "stages").iterdir()}
    trained = recipe.folder / "stages" / "z-trained"  # it may read the folders before it
    with occupied(trained / "rank-0"):
        assert main(["clean", *command(recipe)]) == 1
    assert "another process works in" in capsys.readouterr().err
    assert other.folder.is_dir()
    shutil.rmtree(trained)
    assert main(["clean", *command(recipe)]) == 0
    assert capsys.readouterr().out.split()[0::3] == ["removing", str(other.folder)]
    assert {folder.name for folder in (recipe.folder / "stages").iterdir()} == before - {other.folder.name}
    assert Pipeline(recipe).corpus.record is not None
    assert main(["clean", *command(recipe)]) == 0
    assert capsys.readouterr().out == ""
